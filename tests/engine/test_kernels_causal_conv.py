"""The causal convolution against torch's own conv1d over the whole sequence."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ninfer_engine.kernels.causal_conv import conv_decode, conv_prefill


def whole(x: Tensor, weight: Tensor) -> Tensor:
    padded = F.pad(x.t()[None], (weight.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, weight[:, None], groups=len(weight)))[0].t()


def make(n: int, channels: int, width: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(n, channels, generator=g), torch.randn(channels, width, generator=g)
    return x, weight, torch.full((4, channels, width - 1), torch.nan)


sizes = st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(2, 5), st.integers(0, 2**31))


@settings(max_examples=40, deadline=None)
@given(sizes, st.data())
def test_a_sequence_in_two_chunks_equals_conv1d(size: tuple[int, int, int, int], data: st.DataObject) -> None:
    x, weight, conv = make(*size)
    cut = data.draw(st.integers(0, len(x)))
    out, src = [], -1
    for part in (x[:cut], x[cut:]):
        if len(part):
            out.append(conv_prefill(part, weight, conv, src, 1))
            src = 1
    torch.testing.assert_close(torch.cat(out), whole(x, weight), atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 3))
def test_decode_steps_equal_conv1d_in_every_row(size: tuple[int, int, int, int], batch: int) -> None:
    cases = [make(*size[:3], size[3] + row) for row in range(batch)]
    weight, conv = cases[0][1], cases[0][2]
    slots = list(range(batch))
    for step in range(size[0]):
        x = torch.stack([case[0][step] for case in cases])
        out = conv_decode(x, weight, conv, slots if step else [-1] * batch, slots)
        for row, case in enumerate(cases):
            torch.testing.assert_close(out[row], whole(case[0][: step + 1], weight)[-1], atol=1e-5, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(sizes)
def test_the_source_tail_is_left_unchanged_and_holds_the_last_inputs(size: tuple[int, int, int, int]) -> None:
    x, weight, conv = make(*size)
    conv_prefill(x, weight, conv, -1, 0)
    tail = conv[0].clone()
    padded = F.pad(x.t(), (size[2] - 1, 0))
    assert torch.equal(tail, padded[:, -(size[2] - 1) :])
    conv_prefill(x, weight, conv, 0, 1)
    conv_decode(x[:1], weight, conv, [0], [2])
    conv_decode(x[:2].expand(2, -1), weight, conv, [0, 0], [2, 3])
    assert torch.equal(conv[0], tail)
