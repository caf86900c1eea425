"""RMS norms in one pass: an optional residual is added before, an optional gate multiplied after."""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.norms import Added
from ninfer_engine.kernels.triton.arguments import power_of_two

_TILE = 4096
"""Elements that one program normalises, where rows are short."""


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x, other, weight, summed, out, rows, heads, dim, weight_rows, x_row, x_head, other_row, other_head, eps,
    ADDS: tl.constexpr, GATES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Row r of [n, heads, dim] is head r % heads of token r // heads. other: the residual (ADDS) or gate (GATES)."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_DIM)
    inside = (row < rows)[:, None] & (column < dim)[None, :]
    token, head = (row // heads).to(tl.int64), row % heads
    wide = tl.load(x + (token * x_row + head * x_head)[:, None] + column[None, :], mask=inside, other=0.0)
    other_at = other + (token * other_row + head * other_head)[:, None] + column[None, :]
    out_at = row.to(tl.int64)[:, None] * dim + column[None, :]
    if ADDS:
        # The sum is rounded to its dtype before it is normalised: what the next layers add to is what was normalised.
        wide = (wide.to(tl.float32) + tl.load(other_at, mask=inside, other=0.0).to(tl.float32)).to(wide.dtype)
        tl.store(summed + out_at, wide, mask=inside)
    wide = wide.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 1) / dim + eps)
    scales = tl.load(weight + (row % weight_rows)[:, None] * dim + column[None, :], mask=inside, other=0.0)
    normed = wide * scale[:, None] * scales
    if GATES:
        gate = tl.load(other_at, mask=inside, other=0.0).to(tl.float32)
        normed = normed * gate / (1.0 + tl.exp(-gate))
    tl.store(out + out_at, normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `kernels.norms.rms_norm`. x: [n, dim] or [n, heads, dim], rows anywhere, the last dimension dense."""
    return _launch(x, x, weight, eps, x, x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Added:
    """As `kernels.norms.add_rms_norm`, in one pass over both."""
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    return Added(total, _launch(x, residual, weight, eps, total, x.dtype, adds=True))


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `kernels.norms.gated_rms_norm`."""
    return _launch(x, gate, weight, eps, x, gate.dtype, gates=True)


def _launch(
    x: Tensor, other: Tensor, weight: Tensor, eps: float, summed: Tensor, dtype: torch.dtype,
    adds: bool = False, gates: bool = False,
) -> Tensor:  # fmt: skip
    dim = x.shape[-1]
    rows = x.numel() // dim
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if rows == 0:
        return out
    wide, wide_other = (t if t.dim() == 3 else t.reshape(-1, 1, dim) for t in (x, other))
    block_dim = power_of_two(dim)
    block_rows = max(1, min(power_of_two(rows), _TILE // block_dim // 2))
    rms_norm_kernel[(triton.cdiv(rows, block_rows),)](
        wide, wide_other, weight, summed, out, rows, wide.shape[1], dim, weight.numel() // dim,
        wide.stride(0), wide.stride(1), wide_other.stride(0), wide_other.stride(1), eps,
        ADDS=adds, GATES=gates, BLOCK_ROWS=block_rows, BLOCK_DIM=block_dim,
        num_warps=4 if block_dim <= 2048 else 8,
    )  # fmt: skip
    return out
