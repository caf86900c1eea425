"""The gated activation of the feed-forward block."""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def swiglu_kernel(gate_up, out, width, row_stride, BLOCK: tl.constexpr):
    """Program (r, c): BLOCK columns of row r."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def swiglu(gate_up: Tensor) -> Tensor:
    """As `kernels.swiglu.swiglu`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    if rows:
        swiglu_kernel[(rows, triton.cdiv(width, _BLOCK))](gate_up, out, width, gate_up.stride(0), BLOCK=_BLOCK)
    return out
