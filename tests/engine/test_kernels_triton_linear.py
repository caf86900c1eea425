"""Convolution and gated delta rule in Triton's interpreter against torch: every way of pairing slots, any length."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton_interpreted import DTYPES, TRITON, assert_agrees, normal

from ninfer_engine.kernels.cache_layout import NO_SLOT
from ninfer_engine.kernels.dispatch import TORCH_CPU
from ninfer_engine.kernels.gated_delta import DeltaInputs
from ninfer_engine.kernels.triton.gated_delta import chunk_tokens

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**31)
slots = st.sampled_from([(NO_SLOT, 0), (0, 0), (2, 0)])
"""From the zero state, in place, and a fork: another slot is read than is written."""


def delta_inputs(
    n: int, key_heads: int, repeat: int, key_dim: int, value_dim: int, dtype: torch.dtype, seed: int
) -> DeltaInputs:
    """As slices of one fused projection, with rows apart."""
    heads, keys = key_heads * repeat, 2 * key_heads * key_dim
    mixed = normal(seed, n, keys + heads * value_dim + 5, dtype=dtype)
    uniform = torch.rand(2, n, heads, generator=torch.Generator().manual_seed(seed))
    return DeltaInputs(
        qk=mixed[:, :keys].view(n, 2, key_heads, key_dim),
        v=mixed[:, keys : keys + heads * value_dim].view(n, heads, value_dim),
        log_decay=-(uniform[0] ** 4) * 3,
        rate=uniform[1],
    )


def wide(inputs: DeltaInputs) -> DeltaInputs:
    return DeltaInputs(*(tensor.float() for tensor in inputs))


def rows_of(inputs: DeltaInputs, at: slice) -> DeltaInputs:
    return DeltaInputs(*(tensor[at] for tensor in inputs))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.sampled_from([1, 9, 130]), st.integers(2, 5), slots, dtypes, seeds)
def test_a_convolved_chunk_and_its_tail_equal_the_reference(
    n: int, channels: int, width: int, pair: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    x = normal(seed, n, channels + 3, dtype=dtype)[:, :channels]
    weight, conv = normal(seed + 1, channels, width, dtype=dtype), normal(seed + 2, 3, channels, width - 1)
    found_conv, expected_conv = conv.clone(), conv.clone()
    found = TRITON.conv_prefill(x, weight, found_conv, *pair)
    assert_agrees(found, TORCH_CPU.conv_prefill(x.float(), weight.float(), expected_conv, *pair), dtype)
    assert torch.equal(found_conv, expected_conv)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.sampled_from([1, 9, 130]), st.integers(2, 5), st.booleans(), st.booleans(), dtypes, seeds)
def test_a_convolved_batch_of_tokens_equals_the_reference(
    b: int, channels: int, width: int, apart: bool, rooted: bool, dtype: torch.dtype, seed: int
) -> None:
    x = normal(seed, b, channels + 3, dtype=dtype)[:, :channels]
    weight, conv = normal(seed + 1, channels, width, dtype=dtype), normal(seed + 2, 2 * b, channels, width - 1)
    sources = list(range(b))
    targets = [b + row for row in sources] if apart else sources.copy()
    if rooted:
        sources[-1] = NO_SLOT
    found_conv, expected_conv = conv.clone(), conv.clone()
    found = TRITON.conv_decode(x, weight, found_conv, sources, targets)
    assert_agrees(found, TORCH_CPU.conv_decode(x.float(), weight.float(), expected_conv, sources, targets), dtype)
    assert torch.equal(found_conv, expected_conv)


shapes = st.tuples(
    st.integers(1, 150), st.integers(1, 2), st.integers(1, 2), st.sampled_from([4, 16, 24]), st.sampled_from([4, 8, 40])
)


@settings(max_examples=20, deadline=None)
@given(shapes, slots, dtypes, seeds)
def test_a_chunked_prefill_equals_the_reference(
    shape: tuple[int, int, int, int, int], pair: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    inputs = delta_inputs(*shape, dtype, seed)
    state = normal(seed, 3, inputs.v.shape[1], shape[3], shape[4])
    found_state, expected_state = state.clone(), state.clone()
    found = TRITON.gated_delta_prefill(inputs, found_state, *pair)
    expected = TORCH_CPU.gated_delta_prefill(wide(inputs), expected_state, *pair)
    assert_agrees(found, expected, dtype)
    assert_agrees(found_state, expected_state, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_lengths_around_whole_chunks_equal_the_reference(dtype: torch.dtype, extra: int) -> None:
    inputs = delta_inputs(2 * chunk_tokens(dtype) + extra, 1, 2, 16, 16, dtype, 3)
    found_state, expected_state = torch.full((2, 1, 2, 16, 16), torch.nan).unbind(0)
    found = TRITON.gated_delta_prefill(inputs, found_state, NO_SLOT, 0)
    assert_agrees(found, TORCH_CPU.gated_delta_prefill(wide(inputs), expected_state, NO_SLOT, 0), dtype)
    assert_agrees(found_state, expected_state, dtype)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 140), seeds, st.data())
def test_a_prefill_cut_anywhere_equals_the_whole(n: int, seed: int, data: st.DataObject) -> None:
    inputs = delta_inputs(n, 1, 2, 16, 8, torch.float32, seed)
    cut = data.draw(st.integers(1, n - 1))
    state = torch.full((3, 2, 16, 8), torch.nan)
    whole = TRITON.gated_delta_prefill(inputs, state, NO_SLOT, 0)
    first = TRITON.gated_delta_prefill(rows_of(inputs, slice(0, cut)), state, NO_SLOT, 1)
    anchor = state[1].clone()
    second = TRITON.gated_delta_prefill(rows_of(inputs, slice(cut, n)), state, 1, 2)
    assert_agrees(torch.cat((first, second)), whole, torch.float32)
    assert_agrees(state[2], state[0], torch.float32)
    assert torch.equal(state[1], anchor)


def test_the_same_key_again_and_again_loses_no_precision() -> None:
    inputs = delta_inputs(64, 1, 1, 16, 16, torch.float32, 0)
    same = inputs.qk[:1].expand(64, -1, -1, -1).contiguous()
    hard = DeltaInputs(same, inputs.v, torch.zeros(64, 1), torch.ones(64, 1))
    found_state, expected_state = torch.zeros(2, 1, 1, 16, 16).unbind(0)
    found = TRITON.gated_delta_prefill(hard, found_state, NO_SLOT, 0)
    by_token = torch.cat([
        TORCH_CPU.gated_delta_decode(rows_of(hard, slice(t, t + 1)), expected_state, [0], [0]) for t in range(64)
    ])  # fmt: skip
    assert_agrees(found, by_token, torch.float32)
    assert_agrees(found_state, expected_state, torch.float32)


def test_the_strongest_decay_leaves_no_nan() -> None:
    inputs = delta_inputs(100, 1, 1, 8, 8, torch.float32, 0)._replace(log_decay=torch.full((100, 1), -40.0))
    found_state, expected_state = torch.zeros(2, 1, 1, 8, 8).unbind(0)
    found = TRITON.gated_delta_prefill(inputs, found_state, NO_SLOT, 0)
    assert_agrees(found, TORCH_CPU.gated_delta_prefill(inputs, expected_state, NO_SLOT, 0), torch.float32)


@settings(max_examples=30, deadline=None)
@given(shapes, st.booleans(), st.booleans(), dtypes, seeds)
def test_a_batch_of_recurrent_steps_equals_the_reference(
    shape: tuple[int, int, int, int, int], apart: bool, rooted: bool, dtype: torch.dtype, seed: int
) -> None:
    b = min(shape[0], 4)
    inputs = delta_inputs(b, *shape[1:], dtype, seed)
    sources = list(range(b))
    targets = [b + row for row in sources] if apart else sources.copy()
    if rooted:
        sources[0] = NO_SLOT
    state: Tensor = normal(seed, 2 * b, inputs.v.shape[1], shape[3], shape[4])
    found_state, expected_state = state.clone(), state.clone()
    found = TRITON.gated_delta_decode(inputs, found_state, sources, targets)
    expected = TORCH_CPU.gated_delta_decode(wide(inputs), expected_state, sources, targets)
    assert_agrees(found, expected, dtype)
    assert_agrees(found_state, expected_state, dtype)
    if apart:
        assert torch.equal(found_state[:b], state[:b])
