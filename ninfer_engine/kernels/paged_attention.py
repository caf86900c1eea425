"""Attention over paged keys and values: prefill (history and chunk apart) and decode, both merged by log-sum-exp.

No mask over history exists: a chunk's queries see all of the history, and only the square within the chunk is causal.
Results depend on the logical blocks of `pages.HistoryPlan` alone, bit for bit, not on where pages lie.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS, KVTensors
from ninfer_engine.kernels.pages import BlockRun, HistoryPlan, PageTable, TokenRun, plan_history
from ninfer_engine.kernels.quantised import dequantise, quantise

PREFILL_BLOCK = 4096
"""Tokens of a history block in prefill: fewer blocks mean fewer merges of chunk-sized partial outputs."""

DECODE_BLOCK = 1024
"""Tokens of a history block in decode: enough blocks to keep every core busy, small enough to gather cheaply."""

_SCRATCH_FLOATS = 2 << 20
"""Floats of partial outputs that are alive at once in prefill."""

_WIDENED_TOKENS = 8192
"""Tokens of int8 history that exist as fp32 at once."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True, slots=True)
class Partial:
    """Attention over some keys: out [kv_heads, rows, head_dim]; lse [kv_heads, rows], the log of the softmax's sum."""

    out: Tensor
    lse: Tensor


def plan_prefill(table: PageTable, start: int, kv_heads: int, rows: int, head_dim: int) -> HistoryPlan:
    """How `rows` query rows a KV head read the history 0 .. start."""
    return plan_history(table, start, PREFILL_BLOCK, max(1, _SCRATCH_FLOATS // (kv_heads * rows * head_dim)))


def plan_decode(table: PageTable, tokens: int) -> HistoryPlan:
    """How one new token reads positions 0 .. tokens, itself included."""
    return plan_history(table, tokens, DECODE_BLOCK, 1 << 30)


def store_kv(kv: KVTensors, layer: int, k: Tensor, v: Tensor, runs: list[TokenRun]) -> None:
    """Write k and v, each [n, kv_heads, head_dim], to the rows of `runs`. Side effect: changes the pool."""
    written = [(kv.keys[layer], k), (kv.values[layer], v)]
    if kv.quantised:
        (k8, k_scale), (v8, v_scale) = quantise(k), quantise(v)
        written = [(kv.keys[layer], k8), (kv.values[layer], v8),
                   (kv.key_scales[layer], k_scale), (kv.value_scales[layer], v_scale)]
    for run in runs:
        for pool, new in written:
            pool[:, run.row : run.row + run.count].copy_(new[run.offset : run.offset + run.count].transpose(0, 1))


def prefill_attention(q: Tensor, k: Tensor, v: Tensor, kv: KVTensors, layer: int, history: HistoryPlan) -> Tensor:
    """Attention of a chunk's queries over history and over the chunk itself.

    q: [m, heads, head_dim], the queries of the chunk's last m tokens, m = n (causal) or m = 1 (sees all of the chunk).
    k, v: [n, kv_heads, head_dim], the chunk's own. history: from `plan_prefill` with rows = m * heads / kv_heads.
    Returns [m, heads, head_dim]. Scale is head_dim ** -0.5.
    """
    m, heads, dim = q.shape
    n, kv_heads, _ = k.shape
    if m not in (1, n):
        raise ValueError(f"queries must be those of the whole chunk ({n}) or of its last token, not of {m} tokens")
    if kv.quantised:  # so that a token's keys and values are the same numbers for its own chunk and for later ones
        k, v = dequantise(quantise(k)).to(k.dtype), dequantise(quantise(v)).to(v.dtype)
    group = heads // kv_heads
    grouped = q.view(m, kv_heads, group, dim).permute(1, 2, 0, 3).contiguous()
    own_k = k.transpose(0, 1).unsqueeze(1).expand(kv_heads, group, n, dim)
    own_v = v.transpose(0, 1).unsqueeze(1).expand(kv_heads, group, n, dim)
    out, lse = _flash(grouped, own_k, own_v, 0.0, m == n)
    total = Partial(out.reshape(kv_heads, group * m, dim), lse.reshape(kv_heads, group * m))
    rows = grouped.view(kv_heads, group * m, dim)
    for part in _history_partials(rows, kv, layer, history):
        total = _merge(torch.stack((total.out, part.out)), torch.stack((total.lse, part.lse)))
    return total.out.view(kv_heads, group, m, dim).permute(2, 0, 1, 3).reshape(m, heads, dim)


def decode_attention(q: Tensor, kv: KVTensors, layer: int, histories: list[HistoryPlan]) -> Tensor:
    """One query a sequence over its stored keys, its own included. q: [b, heads, head_dim]; returns the same shape.

    The query heads of one KV head stand as rows of one call, so keys and values are read once for all of them.
    """
    rows, heads, dim = q.shape
    kv_heads = kv.keys[layer].shape[0]
    grouped = q.view(rows, kv_heads, heads // kv_heads, dim)
    outs = [_decode_row(grouped[row], kv, layer, plan) for row, plan in enumerate(histories)]
    return (outs[0].unsqueeze(0) if rows == 1 else torch.stack(outs)).reshape(rows, heads, dim)


def _decode_row(q: Tensor, kv: KVTensors, layer: int, plan: HistoryPlan) -> Tensor:
    (part,) = _history_partials(q, kv, layer, plan)
    return part.out


def _history_partials(q: Tensor, kv: KVTensors, layer: int, plan: HistoryPlan) -> list[Partial]:
    """One merged partial a group. q: [kv_heads, rows, head_dim]."""
    keys, values = kv.keys[layer], kv.values[layer]
    scales = (kv.key_scales[layer], kv.value_scales[layer]) if kv.quantised else None
    parts: list[Partial] = []
    for group in plan.groups:
        results = [_attend_run(q, keys, values, run) for run in group] if scales is None else [
            _attend_quantised(q, keys, values, scales, piece) for run in group for piece in run.pieces(_WIDENED_TOKENS)]
        outs = [out for out, _ in results]
        lses = [lse for _, lse in results]
        if len(outs) == 1:
            parts.append(_merge(outs[0], lses[0]))
        else:
            parts.append(_merge(torch.cat(outs), torch.cat(lses)))
    return parts


def _attend_run(q: Tensor, keys: Tensor, values: Tensor, run: BlockRun) -> tuple[Tensor, Tensor]:
    """Unmasked attention over each block of a run: [blocks, kv_heads, rows, head_dim] and [blocks, kv_heads, rows]."""
    return _attend(q, _blocks(keys, run), _blocks(values, run))


def _attend_quantised(
    q: Tensor, keys: Tensor, values: Tensor, scales: tuple[Tensor, Tensor], run: BlockRun
) -> tuple[Tensor, Tensor]:
    """`_attend_run` over int8 keys and values, which become fp32 for this run alone."""
    key_scales, value_scales = scales
    k, v = _blocks(keys, run) * _blocks(key_scales, run), _blocks(values, run) * _blocks(value_scales, run)
    return _attend(q, k, v)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Unmasked attention of q [kv_heads, rows, head_dim] over the blocks of k, v [blocks, kv_heads, tokens, head_dim].

    One block of one head would be the only piece of work: torch then does not share it out, the products in it share
    themselves out over threads and round otherwise than as one piece of several. So it is done as the first of two.
    """
    blocks, alone = len(k), len(k) * len(q) == 1
    if alone:
        k, v = k.expand(2, *k.shape[1:]), v.expand(2, *v.shape[1:])
    query = q.to(k.dtype).unsqueeze(0).expand(len(k), *q.shape)
    out, lse = _flash(query, k, v)
    return out[:blocks].to(q.dtype), lse[:blocks]


def _blocks(pool: Tensor, run: BlockRun) -> Tensor:
    """The run's rows of a pool as [blocks, kv_heads, tokens, head_dim]: in place where contiguous, else gathered."""
    kv_heads, _, dim = pool.shape
    if run.row is None:
        paged = pool.view(kv_heads, -1, PAGE_TOKENS, dim)
        gathered = paged.index_select(1, torch.from_numpy(run.pages).to(pool.device))
        return gathered.view(1, kv_heads, -1, dim)[:, :, : run.tokens]
    return pool.as_strided(
        (run.blocks, kv_heads, run.tokens, dim),
        (run.tokens * dim, pool.stride(0), dim, 1),
        pool.storage_offset() + run.row * dim,
    )


def _merge(outs: Tensor, lses: Tensor) -> Partial:
    """Partials over disjoint keys, stacked in dimension 0, as one. Exact up to rounding: softmax is shift-invariant."""
    if outs.shape[0] == 1:
        return Partial(outs[0], lses[0])
    lse = torch.logsumexp(lses, 0)
    weights = (lses - lse).exp_().to(outs.dtype)
    return Partial(torch.einsum("bhr,bhrd->hrd", weights, outs), lse)
