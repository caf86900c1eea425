"""Paged attention against a plain masked softmax over the whole sequence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS, KVTensors
from ninfer_engine.kernels.paged_attention import (
    DECODE_BLOCK,
    PREFILL_BLOCK,
    decode_attention,
    plan_decode,
    plan_prefill,
    prefill_attention,
    store_kv,
)
from ninfer_engine.kernels.pages import page_table, plan_history, token_runs


def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q: [m, heads, dim], the last m of n tokens; k, v: [n, kv_heads, dim]; float64, with a mask."""
    m, heads, dim = q.shape
    n, kv_heads, _ = k.shape
    k, v = (x.double().repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    scores = torch.einsum("mhd,nhd->hmn", q.double(), k) / dim**0.5
    visible = torch.ones(m, n, dtype=torch.bool).tril(n - m)
    return torch.einsum("hmn,nhd->mhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)


class Case:
    """A sequence of random queries, keys and values stored on a shuffled page table."""

    def __init__(self, total: int, kv_heads: int, group: int, dim: int, seed: int, shuffled: bool = True) -> None:
        g = torch.Generator().manual_seed(seed)
        self.q = torch.randn(total, kv_heads * group, dim, generator=g) * 2
        self.k, self.v = (torch.randn(total, kv_heads, dim, generator=g) for _ in range(2))
        pages = -(-total // PAGE_TOKENS)
        order = torch.randperm(pages + 3, generator=g) if shuffled else torch.arange(pages)
        self.table = page_table([int(page) for page in order[:pages]])
        pool = (kv_heads, (pages + 3) * PAGE_TOKENS, dim)
        self.kv = KVTensors([torch.full(pool, torch.nan)], [torch.full(pool, torch.nan)])

    def store(self, start: int, stop: int) -> None:
        runs = token_runs(self.table, start, stop - start)
        store_kv(self.kv, 0, self.k[start:stop], self.v[start:stop], runs)

    def prefill(self, start: int, stop: int, wanted: int) -> Tensor:
        kv_heads, dim = self.k.shape[1:]
        rows = wanted * self.q.shape[1] // kv_heads
        history = plan_prefill(self.table, start, kv_heads, rows, dim)
        q, k, v = self.q[stop - wanted : stop], self.k[start:stop], self.v[start:stop]
        return prefill_attention(q, k, v, self.kv, 0, history)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 700), st.integers(1, 200), st.integers(1, 3), st.integers(1, 3), st.sampled_from([8, 16, 64]),
    st.integers(0, 2**31), st.booleans(),
)  # fmt: skip
def test_prefill_equals_masked_softmax(
    start: int, n: int, kv_heads: int, group: int, dim: int, seed: int, last_only: bool
) -> None:
    case = Case(start + n, kv_heads, group, dim, seed)
    case.store(0, start)
    wanted = 1 if last_only else n
    expected = reference(case.q[start + n - wanted :], case.k, case.v)
    torch.testing.assert_close(case.prefill(start, start + n, wanted).double(), expected, atol=2e-5, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 2 * DECODE_BLOCK + 90), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31))
def test_decode_equals_masked_softmax(total: int, kv_heads: int, group: int, seed: int) -> None:
    case = Case(total, kv_heads, group, 16, seed)
    case.store(0, total)
    out = decode_attention(case.q[-1:], case.kv, 0, [plan_decode(case.table, total)])
    torch.testing.assert_close(out.double(), reference(case.q[-1:], case.k, case.v), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("start", [PREFILL_BLOCK, 2 * PREFILL_BLOCK, 2 * PREFILL_BLOCK + 130])
def test_history_of_several_blocks_equals_masked_softmax(start: int) -> None:
    case = Case(start + 50, 2, 2, 16, 0)
    case.store(0, start)
    expected = reference(case.q[start:], case.k, case.v)
    torch.testing.assert_close(case.prefill(start, start + 50, 50).double(), expected, atol=2e-5, rtol=1e-4)


def test_groups_of_blocks_bound_scratch_and_change_no_result_beyond_rounding() -> None:
    case = Case(PREFILL_BLOCK * 3 + 70, 1, 1, 8, 0)
    start = PREFILL_BLOCK * 3
    case.store(0, start)
    q, k, v = case.q[start:], case.k[start:], case.v[start:]
    parts = [plan_history(case.table, start, PREFILL_BLOCK, group) for group in (1, 2, 100)]
    assert [len(plan.groups) for plan in parts] == [3, 2, 1]
    outs = [prefill_attention(q, k, v, case.kv, 0, plan) for plan in parts]
    torch.testing.assert_close(outs[0], outs[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outs[0], outs[2], atol=1e-5, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**31), st.integers(1, 3))
def test_a_batch_of_rows_with_unequal_histories_equals_rows_alone(total: int, seed: int, rows: int) -> None:
    case = Case(total, 2, 2, 8, seed)
    case.store(0, total)
    plans = [plan_decode(case.table, max(1, total - 7 * row)) for row in range(rows)]
    q = case.q[:1].expand(rows, -1, -1).contiguous()
    together = decode_attention(q, case.kv, 0, plans)
    for row, plan in enumerate(plans):
        assert torch.equal(together[row : row + 1], decode_attention(q[row : row + 1], case.kv, 0, [plan]))


def test_a_plan_reads_contiguous_blocks_in_place_and_gathers_the_others() -> None:
    table = page_table([*range(32), 90, *range(33, 48), *range(64, 80), 81])
    (runs,) = plan_history(table, 65 * PAGE_TOKENS - 3, 1024, 100).groups
    assert [(run.blocks, run.tokens, run.row) for run in runs] == [
        (2, 1024, 0),
        (1, 1024, None),
        (1, 1024, 64 * PAGE_TOKENS),
        (1, 61, 81 * PAGE_TOKENS),
    ]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), st.data())
def test_token_runs_cover_a_chunk_once_in_order(pages: list[int], data: st.DataObject) -> None:
    table = page_table(pages)
    start = data.draw(st.integers(0, len(pages) * PAGE_TOKENS - 1))
    count = data.draw(st.integers(1, len(pages) * PAGE_TOKENS - start))
    rows = [run.row + i for run in token_runs(table, start, count) for i in range(run.count)]
    expected = [pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in range(start, start + count)]
    assert rows == expected


def test_queries_of_a_part_of_the_chunk_are_refused() -> None:
    case = Case(10, 1, 1, 8, 0)
    with pytest.raises(ValueError, match="whole chunk"):
        case.prefill(0, 10, 4)
