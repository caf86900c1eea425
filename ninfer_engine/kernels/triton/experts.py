"""A mixture of experts: routing, tokens sorted by expert, two grouped products, and the weighted sum.

No step waits for the device: tiles are as many as could be needed, and those that are not needed return at once.
"""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.experts import Routes
from ninfer_engine.kernels.triton.arguments import power_of_two, precision
from ninfer_engine.kernels.triton.products import product

_SCANNED = 1024
_SUMMED = 1024


@triton.jit
def route_kernel(scores, chosen, shares, experts, row_stride, TOP: tl.constexpr, NORMALISED: tl.constexpr,
                 BLOCK: tl.constexpr, BLOCK_TOP: tl.constexpr):  # fmt: skip
    """Program t: token t's TOP likeliest experts, of equal ones the lowest number first."""
    token = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, BLOCK), tl.arange(0, BLOCK_TOP)
    score = tl.load(scores + token * row_stride + expert, mask=expert < experts, other=float("-inf")).to(tl.float32)
    weight = tl.exp(score - tl.max(score, 0))
    weight = tl.where(expert < experts, weight / tl.sum(weight, 0), -1.0)
    taken = tl.zeros([BLOCK_TOP], dtype=tl.float32)
    for rank in tl.static_range(TOP):
        best = tl.max(weight, 0)
        who = tl.min(tl.where(weight == best, expert, BLOCK), 0)
        tl.store(chosen + token * TOP + rank, who.to(tl.int64))
        taken = tl.where(place == rank, best, taken)
        weight = tl.where(expert == who, -1.0, weight)
    if NORMALISED:
        taken = taken / tl.sum(taken, 0)
    tl.store(shares + token * TOP + place, taken, mask=place < TOP)


@triton.jit(do_not_specialize=["total"])
def count_kernel(chosen, counts, total, BLOCK: tl.constexpr):
    """Program e: how many entries of chosen [total] are e."""
    expert = tl.program_id(0)
    found = tl.zeros([BLOCK], dtype=tl.int32)
    for first in range(0, total, BLOCK):
        at = first + tl.arange(0, BLOCK)
        found += (tl.load(chosen + at, mask=at < total, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, 0))


@triton.jit(do_not_specialize=["total"])
def sort_kernel(chosen, ends, order, total, BLOCK: tl.constexpr):
    """Program e: writes the places of e in chosen [total], in order, to order[.. ends[e]]."""
    expert = tl.program_id(0)
    free = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    for first in range(0, total, BLOCK):
        at = first + tl.arange(0, BLOCK)
        mine = (tl.load(chosen + at, mask=at < total, other=-1) == expert).to(tl.int32)
        tl.store(order + free + tl.cumsum(mine, 0) - 1, at, mask=mine != 0)
        free += tl.sum(mine, 0)


@triton.jit
def tile_of(tile, ends, tile_ends, experts, BLOCK_EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """The expert that a tile belongs to (`experts` past the last tile), its first sorted row, and its expert's end."""
    number = tl.arange(0, BLOCK_EXPERTS)
    passed = tl.load(tile_ends + number, mask=number < experts, other=2147483647) <= tile
    expert = tl.sum(passed.to(tl.int32), 0)
    begun = expert > 0
    first_tile = tl.load(tile_ends + expert - 1, mask=begun, other=0)
    first_row = tl.load(ends + expert - 1, mask=begun, other=0)
    stop = tl.load(ends + expert, mask=expert < experts, other=0)
    return expert, first_row + (tile - first_tile) * ROWS, stop


@triton.jit(do_not_specialize=["total"])
def gate_up_kernel(
    x, order, ends, tile_ends, gate_up, inner, total, experts, top, width, hidden, x_row,
    BLOCK_EXPERTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (t, c): silu(gate) * up of a tile of sorted rows and columns. gate_up: [experts, 2 width, hidden]."""
    expert, first, stop = tile_of(tl.program_id(0), ends, tile_ends, experts, BLOCK_EXPERTS, ROWS)
    if expert < experts:
        row, column = first + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        real = row < stop
        token = (tl.load(order + row, mask=real, other=0) // top).to(tl.int64)
        weights = gate_up + expert.to(tl.int64) * 2 * width * hidden + column[None, :].to(tl.int64) * hidden
        gate = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        up = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for depth in range(0, hidden, DEPTH):
            at = depth + tl.arange(0, DEPTH)
            rows = tl.load(x + token[:, None] * x_row + at[None, :],
                           mask=real[:, None] & (at < hidden)[None, :], other=0.0)
            mask = (at < hidden)[:, None] & (column < width)[None, :]
            gate += product(rows, tl.load(weights + at[:, None], mask=mask, other=0.0), PRECISION)
            up += product(rows, tl.load(weights + width * hidden + at[:, None], mask=mask, other=0.0),
                         PRECISION)
        result = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(inner + row.to(tl.int64)[:, None] * width + column[None, :], result.to(inner.dtype.element_ty),
                 mask=real[:, None] & (column < width)[None, :])


@triton.jit(do_not_specialize=["total"])
def down_kernel(
    inner, order, ends, tile_ends, down, shares, parts, total, experts, width, hidden,
    BLOCK_EXPERTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (t, c): share * down(inner) of a tile of sorted rows, in place again. down: [experts, hidden, width]."""
    expert, first, stop = tile_of(tl.program_id(0), ends, tile_ends, experts, BLOCK_EXPERTS, ROWS)
    if expert < experts:
        row, column = first + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        real = row < stop
        place = tl.load(order + row, mask=real, other=0).to(tl.int64)
        weights = down + expert.to(tl.int64) * hidden * width + column[None, :].to(tl.int64) * width
        result = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for depth in range(0, width, DEPTH):
            at = depth + tl.arange(0, DEPTH)
            rows = tl.load(inner + row.to(tl.int64)[:, None] * width + at[None, :],
                           mask=real[:, None] & (at < width)[None, :], other=0.0)
            mask = (at < width)[:, None] & (column < hidden)[None, :]
            result += product(rows, tl.load(weights + at[:, None], mask=mask, other=0.0), PRECISION)
        share = tl.load(shares + place, mask=real, other=0.0).to(tl.float32)
        result = (result * share[:, None]).to(parts.dtype.element_ty)
        tl.store(parts + place[:, None] * hidden + column[None, :], result,
                 mask=real[:, None] & (column < hidden)[None, :])


@triton.jit
def combine_kernel(parts, out, hidden, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """Program (t, c): the sum of token t's TOP parts, in the order of the token's own list of experts."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for rank in tl.static_range(TOP):
        total += tl.load(parts + (token * TOP + rank) * hidden + column, mask=column < hidden, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), mask=column < hidden)


class Grouping(NamedTuple):
    """order: the places of [n, top] sorted by expert; ends, tile_ends: after each expert's last row and last tile."""

    order: Tensor
    ends: Tensor
    tile_ends: Tensor
    tiles: int
    rows_of_tile: int


def route(scores: Tensor, top: int, normalised: bool) -> Routes:
    """As `kernels.experts.route`; of equally likely experts the lowest number comes first."""
    n, experts = scores.shape
    chosen = torch.empty(n, top, dtype=torch.int64, device=scores.device)
    shares = torch.empty(n, top, dtype=torch.float32, device=scores.device)
    if n:
        route_kernel[(n,)](scores, chosen, shares, experts, scores.stride(0), TOP=top, NORMALISED=normalised,
                           BLOCK=power_of_two(experts), BLOCK_TOP=power_of_two(top))  # fmt: skip
    return Routes(chosen, shares)


def group_by_expert(chosen: Tensor, experts: int) -> Grouping:
    """Sort the places of chosen [n, top] by expert, stably; everything stays on the device."""
    chosen, total = chosen.contiguous(), chosen.numel()
    rows = 16 if total <= 16 * experts else 64
    counts = torch.empty(experts, dtype=torch.int32, device=chosen.device)
    order = torch.empty(total, dtype=torch.int32, device=chosen.device)
    count_kernel[(experts,)](chosen, counts, total, BLOCK=_SCANNED)
    ends = counts.cumsum(0, dtype=torch.int32)
    tile_ends = ((counts + (rows - 1)) // rows).cumsum(0, dtype=torch.int32)
    sort_kernel[(experts,)](chosen, ends, order, total, BLOCK=_SCANNED)
    return Grouping(order, ends, tile_ends, min(total, triton.cdiv(total, rows) + experts), rows)


def expert_mlp(
    x: Tensor, chosen: Tensor, shares: Tensor, gate_up: Tensor, down: Tensor, mm: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """As `kernels.experts.expert_mlp`, added in the order of a token's list of experts; `mm` is not used.

    A row's bits do not depend on what other rows hold. Scratch: [n * top, width] and [n * top, hidden], in x's dtype.
    """
    n, hidden = x.shape
    experts, width = len(gate_up), gate_up.shape[1] // 2
    out = x.new_empty(n, hidden)
    total = chosen.numel()
    if total == 0:
        return out
    grouping = group_by_expert(chosen, experts)
    inner, parts = x.new_empty(total, width), x.new_empty(total, hidden)
    columns = 32 if x.dtype == torch.float32 else 64
    settings = {
        "BLOCK_EXPERTS": power_of_two(experts), "ROWS": grouping.rows_of_tile, "COLUMNS": columns, "DEPTH": columns,
        "PRECISION": precision(x.dtype), "num_warps": 4, "num_stages": 3,
    }  # fmt: skip
    groups = (grouping.order, grouping.ends, grouping.tile_ends)
    gate_up_kernel[(grouping.tiles, triton.cdiv(width, columns))](
        x, *groups, gate_up, inner, total, experts, chosen.shape[1], width, hidden, x.stride(0), **settings
    )
    down_kernel[(grouping.tiles, triton.cdiv(hidden, columns))](
        inner, *groups, down, shares.contiguous(), parts, total, experts, width, hidden, **settings
    )
    combine_kernel[(n, triton.cdiv(hidden, _SUMMED))](parts, out, hidden, TOP=chosen.shape[1], BLOCK=_SUMMED)
    return out
