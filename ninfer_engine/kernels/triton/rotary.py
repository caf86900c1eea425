"""Rotary position embedding in place."""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.rotary import Angles
from ninfer_engine.kernels.triton.arguments import power_of_two


@triton.jit
def rotary_kernel(
    x, cos, sin, heads, half, token_stride, head_stride, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr
):
    """Program t: all heads of token t."""
    token = tl.program_id(0).to(tl.int64)
    head, pair = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_HALF)
    real = pair < half
    inside = (head < heads)[:, None] & real[None, :]
    c = tl.load(cos + token * half + pair, mask=real, other=0.0)[None, :]
    s = tl.load(sin + token * half + pair, mask=real, other=0.0)[None, :]
    at = x + token * token_stride + head[:, None] * head_stride + pair[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (first * c - second * s).to(x.dtype.element_ty), mask=inside)
    tl.store(at + half, (second * c + first * s).to(x.dtype.element_ty), mask=inside)


def apply_rotary_(x: Tensor, angles: Angles) -> Tensor:
    """As `kernels.rotary.apply_rotary_`, in fp32 whatever x is. The last dimension of x is dense."""
    n, heads, _ = x.shape
    half = angles.cos.shape[-1]
    if n and half:
        rotary_kernel[(n,)](
            x, angles.cos, angles.sin, heads, half, x.stride(0), x.stride(1),
            BLOCK_HEADS=power_of_two(heads), BLOCK_HALF=power_of_two(half),
        )  # fmt: skip
    return x
