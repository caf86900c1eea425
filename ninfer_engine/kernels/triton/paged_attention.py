"""Paged attention, prefill and decode. Keys are split into fixed logical blocks, and the parts merged by log-sum-exp.

What is computed depends on positions alone, never on where pages lie. In decode the blocks are the same however many
other sequences there are, so a row has the same bits in every batch. In prefill the number of splits follows from the
start and the size of the chunk: a long chunk fills the device without splitting, a fork's few tokens do not.
"""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from collections.abc import Callable, Sequence
from math import e, log2
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.cache_layout import KVTensors
from ninfer_engine.kernels.pages import HistoryPlan, PageTable
from ninfer_engine.kernels.quantised import dequantise, quantise
from ninfer_engine.kernels.triton.arguments import (
    SMALLEST_DOT,
    Latest,
    device_ints,
    device_table,
    power_of_two,
    precision,
)
from ninfer_engine.kernels.triton.attention_parts import history_steps, merge, scales_of, softmax_step

DECODE_SPLIT = 256
"""Tokens of history that one program reads in decode: enough programs to fill a device from 16,384 tokens on."""

PREFILL_SPLIT = 1024
"""Prefill splits history at multiples of this, where it splits at all."""

_PROGRAMS_WANTED = 256
"""Programs that fill the largest devices that we know twice over (132 and 170 cores)."""


@triton.jit(do_not_specialize=["m", "n", "start", "split_tokens", "rows"])
def prefill_kernel(
    q, own_k, own_v, keys, values, key_scales, value_scales, table, partial, log_sums, out,
    m, n, start, split_tokens, rows, group, heads, dim, pool_rows, q_row, q_head, k_row, k_head, v_row, v_head, scale,
    SCALED: tl.constexpr, SPLITS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (r, h, s): a tile of the query rows of KV head h over part s of the history; the last part also over the
    chunk itself. Row r of a head is query head r % group of token r // group among the last m tokens of the chunk."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    kv_head, split = tl.program_id(1), tl.program_id(2)
    column, inner = tl.arange(0, BLOCK_DIM), tl.arange(0, BLOCK_KEYS)
    token = row // group
    head = kv_head * group + row % group
    real = column < dim
    mask = (token < m)[:, None] & real[None, :]
    query_at = token.to(tl.int64)[:, None] * q_row + head[:, None] * q_head + column[None, :]
    query = tl.load(q + query_at, mask=mask, other=0.0)
    best = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_ROWS], dtype=tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
    best, total, acc = history_steps(
        query if SCALED else query.to(keys.dtype.element_ty), keys, values, key_scales, value_scales, table,
        split * split_tokens, tl.minimum(start, (split + 1) * split_tokens), kv_head.to(tl.int64) * pool_rows, dim,
        scale, best, total, acc, SCALED, BLOCK_KEYS, BLOCK_DIM, PRECISION,
    )  # fmt: skip
    if split == tl.num_programs(2) - 1:
        sees = n - m + token  # the last token of the chunk that a row sees
        stop = tl.minimum(n, n - m + (tl.program_id(0) * BLOCK_ROWS + BLOCK_ROWS - 1) // group + 1)
        for first in range(0, stop, BLOCK_KEYS):
            at = first + inner
            key_mask = (at < n)[:, None] & real[None, :]
            wide = at.to(tl.int64)[:, None]
            k = tl.load(own_k + wide * k_row + kv_head * k_head + column[None, :], mask=key_mask, other=0.0)
            v = tl.load(own_v + wide * v_row + kv_head * v_head + column[None, :], mask=key_mask, other=0.0)
            visible = (at[None, :] <= sees[:, None]) & (at < n)[None, :]
            best, total, acc = softmax_step(
                query, k, v, scale, scale, visible, scale, best, total, acc, False, PRECISION
            )
    lane = token.to(tl.int64) * heads + head
    if SPLITS:
        lane += split.to(tl.int64) * rows
        tl.store(partial + lane[:, None] * dim + column[None, :], acc / total[:, None], mask=mask)
        tl.store(log_sums + lane, best + tl.log2(total), mask=token < m)
    else:
        result = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + lane[:, None] * dim + column[None, :], result, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def decode_kernel(
    q, keys, values, key_scales, value_scales, table, firsts, tokens, partial, log_sums, rows,
    group, heads, dim, pool_rows, q_row, q_head, scale,
    SCALED: tl.constexpr, SPLIT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (s, h, b): the query heads of KV head h of sequence b over the SPLIT positions from s * SPLIT on."""
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    stop = tl.load(tokens + sequence)
    if split * SPLIT < stop:
        member, column = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_DIM)
        mask = (member < group)[:, None] & (column < dim)[None, :]
        head = kv_head * group + member
        query = tl.load(q + sequence * q_row + head[:, None] * q_head + column[None, :], mask=mask, other=0.0)
        best = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK_ROWS], dtype=tl.float32)
        acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
        best, total, acc = history_steps(
            query if SCALED else query.to(keys.dtype.element_ty), keys, values, key_scales, value_scales,
            table + tl.load(firsts + sequence), split * SPLIT, tl.minimum(stop, (split + 1) * SPLIT),
            kv_head.to(tl.int64) * pool_rows, dim, scale, best, total, acc, SCALED, BLOCK_KEYS, BLOCK_DIM, PRECISION,
        )  # fmt: skip
        lane = split.to(tl.int64) * rows + sequence * heads + head
        tl.store(partial + lane[:, None] * dim + column[None, :], acc / total[:, None], mask=mask)
        tl.store(log_sums + lane, best + tl.log2(total), mask=member < group)


class Histories(NamedTuple):
    """Where the sequences of a batch lie: their page tables one after another, where each begins, their lengths."""

    table: Tensor
    firsts: Tensor
    tokens: Tensor
    longest: int


def plan_pages(plan: HistoryPlan) -> PageTable:
    """The page table that a plan was made from, as far as it covers the plan's tokens."""
    runs = [run.pages for group in plan.groups for run in group]
    return np.concatenate(runs) if runs else np.zeros(0, dtype=np.int64)


def plan_tokens(plan: HistoryPlan) -> int:
    """Tokens that a plan covers."""
    return sum(run.blocks * run.tokens for group in plan.groups for run in group)


def _placed(plans: Sequence[HistoryPlan], device: torch.device) -> Histories:
    tables = [plan_pages(plan) for plan in plans]
    firsts = np.cumsum([0, *(len(table) for table in tables)])[:-1].tolist()
    tokens = [plan_tokens(plan) for plan in plans]
    table = device_table(np.concatenate(tables), device)
    return Histories(table, device_ints(firsts, device), device_ints(tokens, device), max(tokens))


_histories: Callable[[list[HistoryPlan], torch.device], Histories] = Latest(_placed)


def prefill_attention(q: Tensor, k: Tensor, v: Tensor, kv: KVTensors, layer: int, history: HistoryPlan) -> Tensor:
    """As `kernels.paged_attention.prefill_attention`, for queries of any last m tokens of the chunk."""
    m, heads, dim = q.shape
    n, kv_heads, _ = k.shape
    if not 1 <= m <= n:
        raise ValueError(f"a chunk of {n} tokens has no queries for its last {m} tokens")
    if kv.quantised:  # so that a token's keys and values are the same numbers for its own chunk and for later ones
        k, v = (dequantise(quantise(x)).to(x.dtype) for x in (k, v))
    keys, values = kv.keys[layer], kv.values[layer]
    start = plan_tokens(history)
    group = heads // kv_heads
    block_rows = _block_rows(m * group, power_of_two(dim, SMALLEST_DOT), q.dtype)
    tiles = triton.cdiv(m * group, block_rows)
    split_tokens, splits = _prefill_splits(start, tiles * kv_heads)
    out = q.new_empty(m, heads, dim)
    rows = m * heads if splits > 1 else 0
    partial = torch.empty(splits, rows, dim, dtype=torch.float32, device=q.device)
    log_sums = torch.empty(splits, rows, dtype=torch.float32, device=q.device)
    block_dim = power_of_two(dim, SMALLEST_DOT)
    prefill_kernel[(tiles, kv_heads, splits)](
        q, k, v, keys, values, *scales_of(kv, layer), device_table(plan_pages(history), q.device),
        partial, log_sums, out, m, n, start, split_tokens, rows, group, heads, dim, keys.shape[1],
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), dim**-0.5 * log2(e),
        SCALED=kv.quantised, SPLITS=splits > 1, BLOCK_ROWS=block_rows,
        BLOCK_KEYS=_block_keys(block_dim, q.dtype, keys.dtype), BLOCK_DIM=block_dim,
        PRECISION=precision(q.dtype), num_warps=8 if block_rows * block_dim > 8192 else 4, num_stages=2,
    )  # fmt: skip
    if splits > 1:
        merge(partial, log_sums, out)
    return out


def decode_attention(q: Tensor, kv: KVTensors, layer: int, histories: list[HistoryPlan]) -> Tensor:
    """As `kernels.paged_attention.decode_attention`; the plans are those of `plan_decode`."""
    b, heads, dim = q.shape
    keys, values = kv.keys[layer], kv.values[layer]
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    placed = _histories(histories, q.device)
    splits = triton.cdiv(placed.longest, DECODE_SPLIT)
    partial = torch.empty(splits, b * heads, dim, dtype=torch.float32, device=q.device)
    log_sums = torch.empty(splits, b * heads, dtype=torch.float32, device=q.device)
    block_dim = power_of_two(dim, SMALLEST_DOT)
    decode_kernel[(splits, kv_heads, b)](
        q, keys, values, *scales_of(kv, layer), placed.table, placed.firsts, placed.tokens,
        partial, log_sums, b * heads, group, heads, dim, keys.shape[1], q.stride(0), q.stride(1), dim**-0.5 * log2(e),
        SCALED=kv.quantised, SPLIT=DECODE_SPLIT, BLOCK_ROWS=power_of_two(group, SMALLEST_DOT),
        BLOCK_KEYS=_block_keys(block_dim, q.dtype, keys.dtype), BLOCK_DIM=block_dim,
        PRECISION=precision(q.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
    out = q.new_empty(b, heads, dim)
    merge(partial, log_sums, out, placed.tokens, DECODE_SPLIT)
    return out


def _block_rows(rows: int, block_dim: int, dtype: torch.dtype) -> int:
    """Query rows of one program: 64 where there are as many; fp32 rows of large heads take four times the registers."""
    if rows <= SMALLEST_DOT or block_dim * dtype.itemsize > 512:
        return SMALLEST_DOT
    return 64


def _block_keys(block_dim: int, *dtypes: torch.dtype) -> int:
    """Keys of one softmax step: two stages of keys and values stay within 64 KiB, as the smaller devices ask."""
    return max(16, min(64, 16384 // (block_dim * max(dtype.itemsize for dtype in dtypes))))


def _prefill_splits(start: int, programs: int) -> tuple[int, int]:
    """Tokens of a split, and the number of splits, of a history of `start` tokens that `programs` tiles read."""
    blocks = triton.cdiv(start, PREFILL_SPLIT)
    wanted = max(1, min(blocks, _PROGRAMS_WANTED // programs))
    per_split = max(1, triton.cdiv(blocks, wanted))
    return per_split * PREFILL_SPLIT, max(1, triton.cdiv(blocks, per_split))
