"""Routing and grouped products in Triton's interpreter against torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_interpreted import DTYPES, TRITON, assert_agrees, normal

from ninfer_engine.kernels.dispatch import TORCH_CPU
from ninfer_engine.kernels.triton.experts import group_by_expert

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**31)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 40), st.booleans(), dtypes, seeds, st.data())
def test_routes_equal_the_reference(
    n: int, experts: int, normalised: bool, dtype: torch.dtype, seed: int, data: st.DataObject
) -> None:
    top = data.draw(st.integers(1, min(experts, 10)))
    # Scores that differ by a quarter at least: equal ones are ordered by torch as it likes.
    generator = torch.Generator().manual_seed(seed)
    scores = torch.stack([torch.randperm(experts, generator=generator) for _ in range(n)] or [torch.zeros(experts)])
    scores = (scores[:n] / 4).to(dtype)
    chosen, shares = TRITON.route(scores, top, normalised)
    expected = TORCH_CPU.route(scores, top, normalised)
    assert torch.equal(chosen, expected.chosen)
    torch.testing.assert_close(shares, expected.shares, atol=1e-6, rtol=1e-5)


def test_of_equally_likely_experts_the_lowest_number_comes_first() -> None:
    chosen, _ = TRITON.route(torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0]]), 4, True)
    assert chosen.tolist() == [[1, 2, 4, 0]]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), seeds, st.data())
def test_tokens_are_sorted_by_expert_and_keep_their_order(
    n: int, experts: int, seed: int, data: st.DataObject
) -> None:
    top = data.draw(st.integers(1, experts))
    chosen = normal(seed, n, experts).argsort(1)[:, :top]
    grouping = group_by_expert(chosen, experts)
    assert grouping.order.tolist() == chosen.flatten().argsort(stable=True).tolist()
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    assert grouping.ends.tolist() == counts.cumsum(0).tolist()
    needed = int((-(-counts // grouping.rows_of_tile)).sum())
    assert int(grouping.tile_ends[-1]) == needed <= grouping.tiles


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.sampled_from([16, 24, 72]), dtypes, seeds, st.data())
def test_the_mixture_equals_the_reference(
    n: int, experts: int, width: int, dtype: torch.dtype, seed: int, data: st.DataObject
) -> None:
    top = data.draw(st.integers(1, experts))
    x, shares = normal(seed, n, 40, dtype=dtype), normal(seed + 1, n, top, dtype=dtype)
    chosen = normal(seed + 2, n, experts).argsort(1)[:, :top]
    gate_up = (normal(seed + 3, experts, 2 * width, 40) / 40**0.5).to(dtype)
    down = (normal(seed + 4, experts, 40, width) / width**0.5).to(dtype)
    found = TRITON.expert_mlp(x, chosen, shares, gate_up, down, torch.mm)
    wide = (x.float(), chosen, shares.float(), gate_up.float(), down.float())
    assert found.dtype == dtype
    assert_agrees(found, TORCH_CPU.expert_mlp(*wide, torch.mm), dtype)


@pytest.mark.parametrize("n", [1, 130])
def test_all_tokens_may_go_to_one_expert(n: int) -> None:
    x, gate_up, down = normal(0, n, 16), normal(1, 5, 32, 16), normal(2, 5, 16, 16)
    chosen, shares = torch.full((n, 1), 3), torch.ones(n, 1)
    found = TRITON.expert_mlp(x, chosen, shares, gate_up, down, torch.mm)
    assert_agrees(found, TORCH_CPU.expert_mlp(x, chosen, shares, gate_up, down, torch.mm), torch.float32)


def test_no_tokens_give_no_rows() -> None:
    none = torch.zeros(0, 2, dtype=torch.int64)
    gate_up, down = normal(1, 4, 32, 16), normal(2, 4, 16, 16)
    out = TRITON.expert_mlp(normal(0, 0, 16), none, normal(0, 0, 2), gate_up, down, torch.mm)
    assert out.shape == (0, 16)
