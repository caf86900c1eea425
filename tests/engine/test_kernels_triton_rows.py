"""Norms, rotary embedding and the gated activation in Triton's interpreter against torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton_interpreted import DTYPES, TRITON, assert_agrees, normal

from ninfer_engine.kernels.dispatch import TORCH_CPU
from ninfer_engine.kernels.rotary import inverse_frequencies, rotary_angles

EPS = 1e-6
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**31)


def strided(seed: int, rows: int, heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """The middle heads of a wider projection: rows do not follow one another."""
    return normal(seed, rows, heads + 3, dim, dtype=dtype)[:, 1 : heads + 1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 150), dtypes, seeds, st.booleans())
def test_rms_norm_of_heads_equals_the_reference(
    rows: int, heads: int, dim: int, dtype: torch.dtype, seed: int, shared: bool
) -> None:
    x, weight = strided(seed, rows, heads, dim, dtype), normal(seed + 1, *((dim,) if shared else (heads, dim)))
    found = TRITON.rms_norm(x, weight, EPS)
    assert found.dtype == dtype
    assert_agrees(found, TORCH_CPU.rms_norm(x.float(), weight, EPS), dtype)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.sampled_from([1, 7, 64, 129, 1000, 5120]), dtypes, seeds)
def test_rms_norm_with_a_residual_returns_the_sum_that_it_normalised(
    rows: int, dim: int, dtype: torch.dtype, seed: int
) -> None:
    x, residual = normal(seed, rows, dim, dtype=dtype), normal(seed + 1, rows, dim, dtype=dtype)
    weight = normal(seed + 2, dim)
    before = x.clone(), residual.clone()
    total, normed = TRITON.add_rms_norm(x, residual, weight, EPS)
    assert_agrees(total, x.float() + residual.float(), dtype)
    if dtype != torch.bfloat16:  # which the interpreter cuts off where a GPU rounds to nearest
        assert torch.equal(total, TORCH_CPU.add_rms_norm(x, residual, weight, EPS).total)
    assert_agrees(normed, TORCH_CPU.rms_norm(total.float(), weight, EPS), dtype)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.integers(1, 5), st.sampled_from([1, 8, 40, 128]), dtypes, seeds)
def test_gated_rms_norm_equals_the_reference(rows: int, heads: int, dim: int, dtype: torch.dtype, seed: int) -> None:
    x, weight = normal(seed, rows, heads, dim), normal(seed + 1, dim)
    gate = strided(seed + 2, rows, heads, dim, dtype) * 4
    found = TRITON.gated_rms_norm(x, gate, weight, EPS)
    assert found.dtype == dtype
    assert_agrees(found, TORCH_CPU.gated_rms_norm(x, gate.float(), weight, EPS), dtype)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.integers(1, 6), st.integers(1, 40), st.integers(0, 9), dtypes, seeds)
def test_rotary_turns_the_first_part_in_place_and_leaves_the_rest(
    rows: int, heads: int, half: int, rest: int, dtype: torch.dtype, seed: int
) -> None:
    whole = normal(seed, rows, heads + 2, 2 * half + rest, dtype=dtype)
    x = whole[:, :heads]
    angles = rotary_angles(torch.arange(7, 7 + rows), inverse_frequencies(2 * half, 1e4))
    expected = TORCH_CPU.apply_rotary_(x.float(), angles)
    before = whole.clone()
    assert TRITON.apply_rotary_(x, angles) is x
    assert_agrees(x, expected, dtype)
    assert torch.equal(x[..., 2 * half :], before[:, :heads, 2 * half :])
    assert torch.equal(whole[:, heads:], before[:, heads:])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.sampled_from([1, 5, 64, 1023, 1025]), dtypes, seeds)
def test_swiglu_equals_the_reference(rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    gate_up = normal(seed, rows, 2 * width + 4, dtype=dtype)[:, : 2 * width] * 5
    assert_agrees(TRITON.swiglu(gate_up), TORCH_CPU.swiglu(gate_up.float()), dtype)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_swiglu_of_numbers_far_out_is_no_nan() -> None:
    gate_up = torch.tensor([[-1e4, 1e4, -300.0, 2.0, 3.0, 4.0]])
    assert torch.equal(TRITON.swiglu(gate_up), torch.tensor([[-0.0, 3e4, -0.0]]))
