"""Sampling by whole weights: the same tokens as `kernels.sampling`, by search instead of sorting."""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.sampling import LARGEST_VOCABULARY, UNIT, Filters

_TILE = 1024
_PROBES = 8


@triton.jit
def weights_kernel(logits, largest, temperature, weights, vocab, row_stride, UNIT: tl.constexpr, TILE: tl.constexpr):
    """Program (r, c): the whole weights of TILE tokens of row r. exp is taken in fp64: see `kernels.sampling`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    logit = tl.load(logits + row * row_stride + at, mask=at < vocab, other=float("-inf")).to(tl.float64)
    apart = logit - tl.load(largest + row).to(tl.float64)
    heat = tl.load(temperature + row)
    warm = (tl.exp(apart / tl.where(heat <= 0, 1.0, heat)) * UNIT).to(tl.int64)
    tl.store(weights + row * vocab + at, tl.where(heat <= 0, tl.where(apart == 0, UNIT, 0), warm), mask=at < vocab)


@triton.jit
def above(weights, vocab, threshold, floor, COUNTS: tl.constexpr, TILE: tl.constexpr, PROBES: tl.constexpr):
    """For each threshold [PROBES], over weights of `floor` or more: the number, or the sum, of those above it."""
    sums = tl.zeros([PROBES, TILE], dtype=tl.int64)
    for first in range(0, vocab, TILE):
        at = first + tl.arange(0, TILE)
        weight = tl.load(weights + at, mask=at < vocab, other=-1)
        counted = (weight[None, :] > threshold[:, None]) & (weight >= floor)[None, :]
        sums += tl.where(counted, tl.where(COUNTS, 1, weight.to(tl.int64))[None, :], 0)
    return tl.sum(sums, 1)


@triton.jit
def least_below(
    weights, vocab, floor, limit, UNIT: tl.constexpr, COUNTS: tl.constexpr, TILE: tl.constexpr, PROBES: tl.constexpr
):
    """The smallest threshold t in floor .. UNIT with above(t) < limit; UNIT if there is none below it."""
    low, high = floor, tl.full([], UNIT, dtype=tl.int64)
    probe = tl.arange(0, PROBES)
    while low < high:
        step = tl.maximum((high - low) // PROBES, 1)
        threshold = low + probe * step
        held = above(weights, vocab, threshold, floor, COUNTS, TILE, PROBES).to(tl.float64) < limit
        # above() falls as the threshold grows: the first probe that holds bounds the answer from above.
        first = tl.min(tl.where(held, probe, PROBES), 0)
        high = tl.minimum(high, tl.where(first < PROBES, low + first * step, high))
        low = tl.minimum(high, tl.where(first > 0, low + (first - 1) * step + 1, low))
    return high


@triton.jit
def choose_kernel(
    weights, temperature, top_k, top_p, min_p, uniforms, chosen, vocab,
    UNIT: tl.constexpr, TILE: tl.constexpr, PROBES: tl.constexpr,
):  # fmt: skip
    """Program r: filters row r's weights and draws one token."""
    row = tl.program_id(0).to(tl.int64)
    weights += row * vocab
    count, mass, share = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    least = tl.full([], 1, dtype=tl.int64)
    if (count > 0) & (count < vocab):
        least = least_below(weights, vocab, least, count.to(tl.float64), UNIT, True, TILE, PROBES)
    if mass < 1:
        everything = above(weights, vocab, least - 1 + tl.zeros([PROBES], tl.int64), least, False, TILE, PROBES)
        limit = mass * tl.max(everything, 0).to(tl.float64)
        least = least_below(weights, vocab, least, limit, UNIT, False, TILE, PROBES)
    share = tl.minimum(tl.maximum(share, 0.0), 1.0)
    least = tl.maximum(least, tl.ceil(share * UNIT).to(tl.int64))
    total = tl.full([], 0, dtype=tl.int64)
    for first in range(0, vocab, TILE):
        at = first + tl.arange(0, TILE)
        weight = tl.load(weights + at, mask=at < vocab, other=0)
        total += tl.sum(tl.where(weight >= least, weight, 0), 0)
    target = tl.minimum((tl.load(uniforms + row) * total.to(tl.float64)).to(tl.int64), total - 1)
    target = tl.where(tl.load(temperature + row) <= 0, 0, target)
    before = tl.full([], 0, dtype=tl.int64)
    found = tl.full([], 0, dtype=tl.int64) + vocab
    for first in range(0, vocab, TILE):
        at = first + tl.arange(0, TILE)
        weight = tl.load(weights + at, mask=at < vocab, other=0)
        sums = before + tl.cumsum(tl.where(weight >= least, weight, 0), 0)
        found = tl.minimum(found, tl.min(tl.where(sums > target, at, vocab), 0).to(tl.int64))
        before = tl.max(sums, 0)
    tl.store(chosen + row, found)


def sample(logits: Tensor, filters: Filters, uniforms: Tensor) -> Tensor:
    """As `kernels.sampling.sample`. Scratch: int64 [b, vocab]."""
    rows, vocab = logits.shape
    if vocab > LARGEST_VOCABULARY:
        raise ValueError(f"a vocabulary of {vocab} tokens: weights sum up exactly for {LARGEST_VOCABULARY}")
    weights = torch.empty(rows, vocab, dtype=torch.int64, device=logits.device)
    chosen = torch.empty(rows, dtype=torch.int64, device=logits.device)
    weights_kernel[(rows, triton.cdiv(vocab, _TILE))](
        logits, logits.amax(-1), filters.temperature, weights, vocab, logits.stride(0), UNIT=UNIT, TILE=_TILE
    )
    choose_kernel[(rows,)](
        weights, filters.temperature, filters.top_k, filters.top_p, filters.min_p, uniforms, chosen, vocab,
        UNIT=UNIT, TILE=_TILE, PROBES=_PROBES, num_warps=8,
    )  # fmt: skip
    return chosen
