"""Paged attention in Triton's interpreter against the CPU's flash attention: pages anywhere, groups, splits, tails."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton_interpreted import DTYPES, TRITON, assert_agrees, normal

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS, KVTensors
from ninfer_engine.kernels.dispatch import TORCH_ANY, TORCH_CPU
from ninfer_engine.kernels.paged_attention import plan_decode, plan_prefill
from ninfer_engine.kernels.pages import HistoryPlan, PageTable, page_table, token_runs
from ninfer_engine.kernels.triton.paged_attention import DECODE_SPLIT, PREFILL_SPLIT, plan_pages, plan_tokens

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**31)


class Stored:
    """A sequence of random tokens whose pages lie in shuffled order in a pool that is NaN elsewhere."""

    def __init__(self, tokens: int, kv_heads: int, group: int, dim: int, dtype: torch.dtype, seed: int) -> None:
        self.kv_heads, self.dim, self.dtype = kv_heads, dim, dtype
        self.q = normal(seed, tokens, kv_heads * group, dim, dtype=dtype) * 2
        self.k, self.v = (normal(seed + i, tokens, kv_heads, dim, dtype=dtype) for i in (1, 2))
        pages = -(-tokens // PAGE_TOKENS)
        order = torch.randperm(pages + 2, generator=torch.Generator().manual_seed(seed))
        self.table = page_table(order[:pages].tolist())
        self.pool_shape = (kv_heads, (pages + 2) * PAGE_TOKENS, dim)

    def pool(self, stop: int, table: PageTable | None = None) -> KVTensors:
        """Positions up to `stop` are stored, through the kernel under test."""
        kv = KVTensors(*([torch.full(self.pool_shape, torch.nan, dtype=self.dtype)] for _ in range(2)))
        if stop:
            runs = token_runs(self.table if table is None else table, 0, stop)
            TRITON.store_kv(kv, 0, self.k[:stop], self.v[:stop], runs)
        return kv

    def plan(self, start: int, m: int) -> HistoryPlan:
        return plan_prefill(self.table, start, self.kv_heads, m * self.q.shape[1] // self.kv_heads, self.dim)


def wide(kv: KVTensors) -> KVTensors:
    return KVTensors([kv.keys[0].float()], [kv.values[0].float()])


def assert_prefill_agrees(case: Stored, start: int, n: int, m: int) -> None:
    kv, plan = case.pool(start), case.plan(start, m)
    q, k, v = case.q[start + n - m : start + n], case.k[start : start + n], case.v[start : start + n]
    found = TRITON.prefill_attention(q, k, v, kv, 0, plan)
    expected = TORCH_CPU.prefill_attention(q.float(), k.float(), v.float(), wide(kv), 0, plan)
    assert found.dtype == case.dtype
    assert_agrees(found, expected, case.dtype)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 200), st.integers(1, 90), st.integers(1, 2), st.integers(1, 3), st.sampled_from([8, 24, 64]),
    st.booleans(), dtypes, seeds,
)  # fmt: skip
def test_prefill_equals_the_reference(
    start: int, n: int, kv_heads: int, group: int, dim: int, last_only: bool, dtype: torch.dtype, seed: int
) -> None:
    case = Stored(start + n, kv_heads, group, dim, dtype, seed)
    assert_prefill_agrees(case, start, n, 1 if last_only else n)


@pytest.mark.parametrize(("start", "dtype"), [
    (63, torch.float32), (64, torch.bfloat16), (65, torch.float16), (PREFILL_SPLIT - 1, torch.bfloat16),
    (PREFILL_SPLIT, torch.float32), (PREFILL_SPLIT + 1, torch.float16), (2 * PREFILL_SPLIT + 5, torch.bfloat16),
    (3 * PREFILL_SPLIT + 5, torch.float32),
])  # fmt: skip
def test_a_few_tokens_after_a_long_history_are_split_and_merged(start: int, dtype: torch.dtype) -> None:
    assert_prefill_agrees(Stored(start + 3, 2, 2, 16, dtype, start), start, 3, 3)


def test_a_chunk_from_the_middle_of_a_page_sees_all_before_it_and_nothing_after() -> None:
    case = Stored(100, 1, 1, 8, torch.float32, 0)
    assert_prefill_agrees(case, 70, 30, 30)
    arguments = (case.q[96:], case.k[70:], case.v[70:], case.pool(70), 0, case.plan(70, 4))
    found = TRITON.prefill_attention(*arguments)
    assert_agrees(found, TORCH_ANY.prefill_attention(*arguments), torch.float32)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 2 * DECODE_SPLIT + 70), min_size=1, max_size=3), st.integers(1, 2), st.integers(1, 5),
    st.sampled_from([8, 24, 64]), dtypes, seeds,
)  # fmt: skip
def test_decode_of_sequences_of_any_lengths_equals_the_reference(
    lengths: list[int], kv_heads: int, group: int, dim: int, dtype: torch.dtype, seed: int
) -> None:
    case = Stored(max(lengths), kv_heads, group, dim, dtype, seed)
    kv, plans = case.pool(max(lengths)), [plan_decode(case.table, length) for length in lengths]
    q = normal(seed + 3, len(lengths), kv_heads * group, dim, dtype=dtype)
    found = TRITON.decode_attention(q, kv, 0, plans)
    assert_agrees(found, TORCH_CPU.decode_attention(q.float(), wide(kv), 0, plans), dtype)


@pytest.mark.parametrize(
    "length", [1, 63, 64, 65, DECODE_SPLIT - 1, DECODE_SPLIT, DECODE_SPLIT + 1, 17 * DECODE_SPLIT + 1]
)
def test_decode_at_the_borders_of_pages_splits_and_merged_groups(length: int) -> None:
    case = Stored(length, 1, 2, 8, torch.float32, length)
    kv, plans = case.pool(length), [plan_decode(case.table, length)]
    found = TRITON.decode_attention(case.q[-1:], kv, 0, plans)
    assert_agrees(found, TORCH_CPU.decode_attention(case.q[-1:], kv, 0, plans), torch.float32)


def test_a_sequence_has_the_same_bits_alone_and_in_a_batch() -> None:
    case = Stored(700, 2, 3, 24, torch.float32, 0)
    kv = case.pool(700)
    plans = [plan_decode(case.table, length) for length in (700, 5, 257)]
    together = TRITON.decode_attention(case.q[:3], kv, 0, plans)
    for row, plan in enumerate(plans):
        assert torch.equal(together[row : row + 1], TRITON.decode_attention(case.q[row : row + 1], kv, 0, [plan]))


def test_bits_do_not_depend_on_where_pages_lie() -> None:
    case = Stored(300, 2, 2, 16, torch.bfloat16, 0)
    outs: list[tuple[Tensor, Tensor]] = []
    for table in (page_table(range(5)), case.table):
        kv = case.pool(260, table)
        case_plan = plan_prefill(table, 260, 2, 80, 16)
        prefill = TRITON.prefill_attention(case.q[260:], case.k[260:], case.v[260:], kv, 0, case_plan)
        outs.append((prefill, TRITON.decode_attention(case.q[:1], kv, 0, [plan_decode(table, 260)])))
    assert torch.equal(outs[0][0], outs[1][0])
    assert torch.equal(outs[0][1], outs[1][1])


def test_a_pool_of_another_dtype_than_the_model_is_read_and_written() -> None:
    case = Stored(150, 2, 2, 16, torch.float32, 0)
    written, kv = (KVTensors(*([torch.zeros(case.pool_shape, dtype=torch.bfloat16)] for _ in range(2))) for _ in "ab")
    runs = token_runs(case.table, 0, 140)
    TRITON.store_kv(written, 0, case.k[:140], case.v[:140], runs)
    TORCH_CPU.store_kv(kv, 0, case.k[:140], case.v[:140], runs)
    # Not equal: the interpreter cuts bf16 off where a GPU rounds to nearest.
    torch.testing.assert_close(written.keys[0], kv.keys[0], atol=0, rtol=2**-7)
    torch.testing.assert_close(written.values[0], kv.values[0], atol=0, rtol=2**-7)
    plan = case.plan(140, 10)
    found = TRITON.prefill_attention(case.q[140:], case.k[140:], case.v[140:], kv, 0, plan)
    expected = TORCH_CPU.prefill_attention(case.q[140:], case.k[140:], case.v[140:], kv, 0, plan)
    assert_agrees(found, expected, torch.bfloat16)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 200), st.integers(1, 90), st.integers(1, 3), dtypes, seeds)
def test_stored_rows_are_those_of_the_reference_and_no_others(
    start: int, n: int, kv_heads: int, dtype: torch.dtype, seed: int
) -> None:
    case = Stored(start + n, kv_heads, 1, 8, dtype, seed)
    runs = token_runs(case.table, start, n)
    pools = [KVTensors(*([torch.full(case.pool_shape, 7.0, dtype=dtype)] for _ in range(2))) for _ in range(2)]
    joined = torch.stack((case.k[start:], case.v[start:]), 1)  # keys and values as strided parts of one tensor
    for kernels, pool in zip((TRITON, TORCH_CPU), pools, strict=True):
        kernels.store_kv(pool, 0, joined[:, 0], joined[:, 1], runs)
    assert torch.equal(pools[0].keys[0], pools[1].keys[0])
    assert torch.equal(pools[0].values[0], pools[1].values[0])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 300), st.integers(1, 60), st.booleans(), seeds)
def test_plain_attention_equals_the_reference(start: int, n: int, last_only: bool, seed: int) -> None:
    case = Stored(start + n, 2, 2, 16, torch.float32, seed)
    kv, m = case.pool(start + n), 1 if last_only else n
    plan = case.plan(start, m)
    arguments = (case.q[start + n - m :], case.k[start:], case.v[start:], kv, 0, plan)
    assert_agrees(TORCH_ANY.prefill_attention(*arguments), TORCH_CPU.prefill_attention(*arguments), torch.float32)
    plans = [plan_decode(case.table, length) for length in {1, start + n}]
    q = case.q[: len(plans)]
    if len(q) == len(plans):
        found = TORCH_ANY.decode_attention(q, kv, 0, plans)
        assert_agrees(found, TORCH_CPU.decode_attention(q, kv, 0, plans), torch.float32)


def int8_pool(case: Stored) -> KVTensors:
    numbers = [[torch.zeros(case.pool_shape, dtype=torch.int8)] for _ in range(2)]
    scales = [[torch.full((*case.pool_shape[:2], 1), torch.nan)] for _ in range(2)]
    return KVTensors(*numbers, *scales)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 150), st.integers(1, 3), st.sampled_from([8, 24]), dtypes, seeds)
def test_int8_rows_and_their_scales_are_those_of_the_reference(
    n: int, kv_heads: int, dim: int, dtype: torch.dtype, seed: int
) -> None:
    case = Stored(n, kv_heads, 1, dim, dtype, seed)
    case.k[0] = 0  # a row without a magnitude
    runs, pools = token_runs(case.table, 0, n), [int8_pool(case), int8_pool(case)]
    for kernels, pool in zip((TRITON, TORCH_CPU), pools, strict=True):
        kernels.store_kv(pool, 0, case.k, case.v, runs)
    for found, expected in zip(pools[0].tensors, pools[1].tensors, strict=True):
        assert torch.equal(found.nan_to_num(9), expected.nan_to_num(9))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 150), st.integers(1, 40), st.integers(1, 2), st.integers(1, 3), dtypes, seeds)
def test_attention_over_int8_equals_the_reference_over_int8(
    start: int, n: int, kv_heads: int, group: int, dtype: torch.dtype, seed: int
) -> None:
    case = Stored(start + n, kv_heads, group, 16, dtype, seed)
    kv = int8_pool(case)
    TORCH_CPU.store_kv(kv, 0, case.k, case.v, token_runs(case.table, 0, start + n))
    plan = case.plan(start, n)
    found = TRITON.prefill_attention(case.q[start:], case.k[start:], case.v[start:], kv, 0, plan)
    wide_chunk = (case.q[start:].float(), case.k[start:].float(), case.v[start:].float())
    for reference in (TORCH_CPU, TORCH_ANY):
        assert_agrees(found, reference.prefill_attention(*wide_chunk, kv, 0, plan), dtype)
    plans = [plan_decode(case.table, start + n)]
    found = TRITON.decode_attention(case.q[-1:], kv, 0, plans)
    for reference in (TORCH_CPU, TORCH_ANY):
        assert_agrees(found, reference.decode_attention(case.q[-1:].float(), kv, 0, plans), dtype)


@given(st.integers(0, 9000), seeds)
def test_a_plan_gives_back_the_pages_and_tokens_that_it_was_made_of(tokens: int, seed: int) -> None:
    pages = -(-tokens // PAGE_TOKENS)
    table = np.random.default_rng(seed).permutation(pages + 9)
    plan = plan_prefill(table, tokens, 1, 1, 8)
    assert plan_tokens(plan) == tokens
    assert plan_pages(plan).tolist() == table[:pages].tolist()


def test_more_queries_than_the_chunk_has_are_refused() -> None:
    case = Stored(10, 1, 1, 8, torch.float32, 0)
    with pytest.raises(ValueError, match="no queries"):
        TRITON.prefill_attention(case.q, case.k[:5], case.v[:5], case.pool(0), 0, case.plan(0, 10))
