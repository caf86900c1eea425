"""The gated delta rule against a token-by-token loop written from its definition."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ninfer_engine.kernels.gated_delta import DeltaInputs, gated_delta_decode, gated_delta_prefill


def naive(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """S <- a S + k (b (v - k^T a S))^T; o = S^T q / sqrt(dim), one token and one head at a time, in float64."""
    n, heads, value_dim = inputs.v.shape
    key_heads, key_dim = inputs.qk.shape[2:]
    out = torch.empty(n, heads, value_dim, dtype=torch.float64)
    state = state.double().clone()
    for t in range(n):
        for h in range(heads):
            q, k = (inputs.qk[t, part, h * key_heads // heads].double() for part in (0, 1))
            q = q / torch.sqrt(q @ q + 1e-6) / key_dim**0.5
            k = k / torch.sqrt(k @ k + 1e-6)
            decayed = state[h] * torch.exp(inputs.log_decay[t, h].double())
            update = inputs.rate[t, h].double() * (inputs.v[t, h].double() - k @ decayed)
            state[h] = decayed + torch.outer(k, update)
            out[t, h] = q @ state[h]
    return out, state


def make(n: int, key_heads: int, repeat: int, key_dim: int, value_dim: int, seed: int) -> DeltaInputs:
    g = torch.Generator().manual_seed(seed)
    heads = key_heads * repeat
    return DeltaInputs(
        qk=torch.randn(n, 2, key_heads, key_dim, generator=g),
        v=torch.randn(n, heads, value_dim, generator=g),
        log_decay=-(torch.rand(n, heads, generator=g) ** 4) * 3,
        rate=torch.rand(n, heads, generator=g),
    )


def rows(inputs: DeltaInputs, at: slice) -> DeltaInputs:
    return DeltaInputs(inputs.qk[at], inputs.v[at], inputs.log_decay[at], inputs.rate[at])


shapes = st.tuples(
    st.integers(1, 150), st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 16, 24]), st.sampled_from([4, 8, 40])
)


@settings(max_examples=25, deadline=None)
@given(shapes, st.integers(0, 2**31), st.booleans())
def test_chunked_prefill_equals_the_definition(shape: tuple[int, int, int, int, int], seed: int, rooted: bool) -> None:
    inputs = make(*shape, seed)
    _, heads, value_dim = inputs.v.shape
    recurrent = torch.randn(3, heads, shape[3], value_dim, generator=torch.Generator().manual_seed(seed))
    source = torch.zeros_like(recurrent[1]) if rooted else recurrent[1].clone()
    expected, state = naive(inputs, source)
    out = gated_delta_prefill(inputs, recurrent, -1 if rooted else 1, 2)
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(recurrent[2].double(), state, atol=1e-4, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(shapes, st.integers(0, 2**31), st.data())
def test_a_prefill_cut_anywhere_equals_the_whole(
    shape: tuple[int, int, int, int, int], seed: int, data: st.DataObject
) -> None:
    inputs = make(*shape, seed)
    _, heads, value_dim = inputs.v.shape
    cut = data.draw(st.integers(0, shape[0]))
    recurrent = torch.full((3, heads, shape[3], value_dim), torch.nan)
    whole = gated_delta_prefill(inputs, recurrent, -1, 0)
    parts, src = [], -1
    for at in (slice(0, cut), slice(cut, shape[0])):
        if at.start < at.stop:
            parts.append(gated_delta_prefill(rows(inputs, at), recurrent, src, 1))
            src = 1
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(recurrent[1], recurrent[0], atol=1e-4, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(shapes, st.integers(0, 2**31), st.booleans())
def test_a_batch_of_decode_steps_equals_the_definition(
    shape: tuple[int, int, int, int, int], seed: int, rooted: bool
) -> None:
    batch = min(shape[0], 4)
    inputs = make(batch, *shape[1:], seed)
    _, heads, value_dim = inputs.v.shape
    recurrent = torch.randn(2 * batch, heads, shape[3], value_dim, generator=torch.Generator().manual_seed(seed))
    sources = list(range(batch))
    if rooted:
        sources[-1] = -1
    before = recurrent.clone()
    out = gated_delta_decode(inputs, recurrent, sources, list(range(batch, 2 * batch)))
    for row, source in enumerate(sources):
        start = torch.zeros_like(before[0]) if source == -1 else before[source]
        expected, state = naive(rows(inputs, slice(row, row + 1)), start)
        torch.testing.assert_close(out[row].double(), expected[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(recurrent[batch + row].double(), state, atol=1e-4, rtol=1e-4)
    assert torch.equal(recurrent[:batch], before[:batch])


def test_decode_may_write_the_slot_that_it_reads() -> None:
    inputs = make(2, 2, 2, 8, 8, 0)
    recurrent = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    apart = gated_delta_decode(inputs, recurrent.clone(), [0, 1], [2, 3])
    assert torch.equal(gated_delta_decode(inputs, recurrent, [0, 1], [0, 1]), apart)


def test_the_strongest_decay_leaves_no_nan() -> None:
    inputs = make(130, 1, 1, 8, 8, 0)
    inputs = DeltaInputs(inputs.qk, inputs.v, torch.full((130, 1), -40.0), inputs.rate)
    out = gated_delta_prefill(inputs, torch.zeros(1, 1, 8, 8), -1, 0)
    expected, _ = naive(inputs, torch.zeros(1, 8, 8))
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-4)
