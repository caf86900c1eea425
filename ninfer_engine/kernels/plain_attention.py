"""Paged attention by plain torch operations on any device: what runs on a GPU when the reference is asked for there.

The CPU reference (`paged_attention`) calls an operator that exists on CPU alone. This one forms all scores of a head
group at once, so it is for finding faults, not for serving.
"""

import torch
from torch import Tensor

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS, KVTensors
from ninfer_engine.kernels.pages import HistoryPlan
from ninfer_engine.kernels.quantised import dequantise, quantise


def prefill_attention(q: Tensor, k: Tensor, v: Tensor, kv: KVTensors, layer: int, history: HistoryPlan) -> Tensor:
    """As `paged_attention.prefill_attention`, for queries of any last m tokens of the chunk."""
    if kv.quantised:
        k, v = (dequantise(quantise(x)) for x in (k, v))
    own = [x.transpose(0, 1).float() for x in (k, v)]
    keys, values = (torch.cat(pair, 1) for pair in zip(_stored(kv, layer, history), own, strict=True))
    return _attend(q, keys, values)


def decode_attention(q: Tensor, kv: KVTensors, layer: int, histories: list[HistoryPlan]) -> Tensor:
    """As `paged_attention.decode_attention`."""
    rows = [
        _attend(q[row : row + 1], *_stored(kv, layer, plan))
        for row, plan in enumerate(histories)
    ]
    return torch.cat(rows)


def _attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of the last m of the keys' tokens. q: [m, heads, dim]; keys, values: [kv_heads, tokens, dim]."""
    m, heads, dim = q.shape
    kv_heads, tokens, _ = keys.shape
    grouped = q.float().view(m, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("mhgd,htd->hgmt", grouped, keys) * dim**-0.5
    visible = torch.ones(m, tokens, dtype=torch.bool, device=q.device).tril(tokens - m)
    weights = scores.masked_fill_(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hgmt,htd->mhgd", weights, values).reshape(m, heads, dim).to(q.dtype)


def _stored(kv: KVTensors, layer: int, plan: HistoryPlan) -> tuple[Tensor, Tensor]:
    """The plan's keys and values as fp32 [kv_heads, tokens, dim] each."""
    keys, values = _rows(kv.keys[layer], plan), _rows(kv.values[layer], plan)
    if kv.quantised:
        return keys * _rows(kv.key_scales[layer], plan), values * _rows(kv.value_scales[layer], plan)
    return keys, values


def _rows(pool: Tensor, plan: HistoryPlan) -> Tensor:
    """The plan's rows of a pool [kv_heads, rows, dim], in fp32."""
    kv_heads, _, dim = pool.shape
    paged = pool.view(kv_heads, -1, PAGE_TOKENS, dim)
    parts = [pool.new_empty(kv_heads, 0, dim, dtype=torch.float32)]
    for run in (run for group in plan.groups for run in group):
        pages = torch.from_numpy(run.pages).to(pool.device)
        rows = paged.index_select(1, pages).reshape(kv_heads, -1, dim)
        parts.append(rows[:, : run.blocks * run.tokens].float())
    return torch.cat(parts, 1)
