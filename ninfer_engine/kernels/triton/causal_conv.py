"""Depthwise causal convolution with silu and a tail in a state slot: a chunk of one sequence, or a token of several."""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.triton.arguments import device_ints

_TOKENS = 16
_CHANNELS = 128


@triton.jit(do_not_specialize=["n", "src", "dst"])
def conv_prefill_kernel(
    x, weight, conv, out, n, channels, x_row, src, dst,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Program (t, c): a tile of tokens and channels. The first tile reads the source tail and writes the new one."""
    first = tl.program_id(0) * TOKENS
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real = channel < channels
    held = channel * 0 + src >= 0  # a block: the interpreter cannot join a scalar condition to a mask
    token = first + tl.arange(0, TOKENS)
    tail = WIDTH - 1
    source = conv + tl.maximum(src, 0).to(tl.int64) * channels * tail
    target = conv + dst.to(tl.int64) * channels * tail
    total = tl.zeros([TOKENS, CHANNELS], dtype=tl.float32)
    for tap in tl.static_range(WIDTH):
        at = token + tap - tail
        row = at.to(tl.int64)[:, None]
        value = tl.load(
            x + row * x_row + channel[None, :], mask=((at >= 0) & (at < n))[:, None] & real[None, :], other=0.0
        ).to(tl.float32)
        if first == 0:
            old = source + channel[None, :] * tail + (row + tail)
            before = (at < 0)[:, None] & real[None, :] & held[None, :]
            value += tl.load(old, mask=before, other=0.0)
        scale = tl.load(weight + channel * WIDTH + tap, mask=real, other=0.0).to(tl.float32)
        total += value * scale[None, :]
    inside = (token < n)[:, None] & real[None, :]
    silu = total / (1.0 + tl.exp(-total))
    out_at = token.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(out + out_at, silu.to(out.dtype.element_ty), mask=inside)
    if first == 0:
        # Source and destination may be one slot: every thread has read the old tail before any writes the new one.
        tl.debug_barrier()
        for place in tl.static_range(WIDTH - 1):
            last = n + place - tail
            given = real & (channel * 0 + last >= 0)
            new = tl.load(x + tl.maximum(last, 0).to(tl.int64) * x_row + channel, mask=given, other=0.0)
            kept = tl.load(source + channel * tail + n + place, mask=real & held & (channel * 0 + last < 0), other=0.0)
            # A chunk shorter than the tail moves the old tail forward, from low places to high: each is read before
            # it is overwritten, by the thread that overwrites it.
            tl.store(target + channel * tail + place, new.to(tl.float32) + kept, mask=real)


@triton.jit
def conv_decode_kernel(
    x, weight, conv, out, srcs, dsts, channels, x_row, WIDTH: tl.constexpr, CHANNELS: tl.constexpr
):
    """Program (r, c): a tile of channels of row r."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real = channel < channels
    tail = WIDTH - 1
    src, dst = tl.load(srcs + row), tl.load(dsts + row)
    source = conv + tl.maximum(src, 0).to(tl.int64) * channels * tail + channel * tail
    target = conv + dst.to(tl.int64) * channels * tail + channel * tail
    held = real & (channel * 0 + src >= 0)  # a block: the interpreter cannot join a scalar condition to a mask
    newest = tl.load(x + row * x_row + channel, mask=real, other=0.0).to(tl.float32)
    total = newest * tl.load(weight + channel * WIDTH + tail, mask=real, other=0.0).to(tl.float32)
    for place in tl.static_range(WIDTH - 1):
        old = tl.load(source + place, mask=held, other=0.0)
        total += old * tl.load(weight + channel * WIDTH + place, mask=real, other=0.0).to(tl.float32)
        if place > 0:  # one thread a channel: the place before was read already
            tl.store(target + place - 1, old, mask=real)
    tl.store(target + tail - 1, newest, mask=real)
    silu = total / (1.0 + tl.exp(-total))
    tl.store(out + row * channels + channel, silu.to(out.dtype.element_ty), mask=real)


def conv_prefill(x: Tensor, weight: Tensor, conv: Tensor, src_slot: int, dst_slot: int) -> Tensor:
    """As `kernels.causal_conv.conv_prefill`, summed in fp32. Rows of x may be strided."""
    n, channels = x.shape
    out = x.new_empty(n, channels)
    conv_prefill_kernel[(triton.cdiv(n, _TOKENS), triton.cdiv(channels, _CHANNELS))](
        x, weight, conv, out, n, channels, x.stride(0), src_slot, dst_slot,
        WIDTH=weight.shape[1], TOKENS=_TOKENS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return out


def conv_decode(x: Tensor, weight: Tensor, conv: Tensor, src_slots: Sequence[int], dst_slots: Sequence[int]) -> Tensor:
    """As `kernels.causal_conv.conv_decode`, summed in fp32. Rows of x may be strided."""
    rows, channels = x.shape
    out = x.new_empty(rows, channels)
    srcs, dsts = (device_ints(slots, x.device) for slots in (src_slots, dst_slots))
    conv_decode_kernel[(rows, triton.cdiv(channels, _CHANNELS))](
        x, weight, conv, out, srcs, dsts, channels, x.stride(0), WIDTH=weight.shape[1], CHANNELS=_CHANNELS
    )
    return out
