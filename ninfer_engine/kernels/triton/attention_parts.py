"""Pieces of paged attention: one step of the running softmax, the merge of partial results, and the KV write."""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.cache_layout import KVTensors
from ninfer_engine.kernels.pages import TokenRun
from ninfer_engine.kernels.triton.arguments import Latest, power_of_two
from ninfer_engine.kernels.triton.products import product

_MERGED_AT_ONCE = 16
_STORED_TOKENS = 16


@triton.jit
def softmax_step(
    q, k, v, key_scale, value_scale, visible, scale, best, total, acc, SCALED: tl.constexpr, PRECISION: tl.constexpr
):
    """Take keys k and values v [tokens, dim] into the running softmax of rows q. scale: includes log2(e).

    best: row maxima of scaled scores so far; total: sums of exp2(score - best); acc: weighted sums of values.
    SCALED: a key's numbers are k times key_scale [tokens], a value's v times value_scale. They are multiplied where one
    number a token suffices, so that int8 tiles go into the products as they are, exact in 16 bits.
    """
    scores = product(q, tl.trans(k), PRECISION) * scale
    if SCALED:
        scores = scores * key_scale[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    now = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(now == float("-inf"), 0.0, now)  # a row that has seen nothing yet
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weights, 1)
    if SCALED:
        weights = weights * value_scale[None, :]
    return now, total, acc * shrink[:, None] + product(weights.to(v.dtype), v, PRECISION)


@triton.jit
def history_steps(
    q, keys, values, key_scales, value_scales, table, start, stop, first_row, dim, scale, best, total, acc,
    SCALED: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Softmax steps over the stored positions start .. stop; start is a multiple of BLOCK_KEYS, which divides 64.

    first_row: of the KV head in the pool. q has the keys' dtype; with SCALED keys and values become q's.
    """
    inner, column = tl.arange(0, BLOCK_KEYS), tl.arange(0, BLOCK_DIM)
    for first in range(start, stop, BLOCK_KEYS):
        page = tl.load(table + first // 64).to(tl.int64)
        row = first_row + page * 64 + first % 64 + inner
        seen = first + inner < stop
        at = row[:, None] * dim + column[None, :]
        mask = seen[:, None] & (column < dim)[None, :]
        k = tl.load(keys + at, mask=mask, other=0)
        v = tl.load(values + at, mask=mask, other=0)
        key_scale = scale
        value_scale = scale
        if SCALED:
            # By way of fp32: the interpreter makes no bf16 of an int8.
            k, v = k.to(tl.float32).to(q.dtype), v.to(tl.float32).to(q.dtype)
            key_scale = tl.load(key_scales + row, mask=seen, other=0.0)
            value_scale = tl.load(value_scales + row, mask=seen, other=0.0)
        best, total, acc = softmax_step(
            q, k, v, key_scale, value_scale, seen[None, :], scale, best, total, acc, SCALED, PRECISION
        )
    return best, total, acc


@triton.jit(do_not_specialize=["rows", "splits"])
def merge_kernel(
    partial, log_sums, tokens, out, rows, splits, dim, heads,
    SPLIT_TOKENS: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Program r: one row's partial results [splits, rows, dim] by their log2 of sums [splits, rows], in order.

    SPLIT_TOKENS > 0: row r belongs to sequence r // heads and has ceil(tokens / SPLIT_TOKENS) parts; else it has all.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_DIM)
    count = splits
    if SPLIT_TOKENS > 0:
        count = tl.cdiv(tl.load(tokens + row // heads), SPLIT_TOKENS)
    best = tl.full([1], float("-inf"), dtype=tl.float32)
    total = tl.zeros([1], dtype=tl.float32)
    acc = tl.zeros([BLOCK_DIM], dtype=tl.float32)
    for first in range(0, count, BLOCK_SPLITS):
        split = first + tl.arange(0, BLOCK_SPLITS)
        real = split < count
        lane = split.to(tl.int64) * rows + row
        sums = tl.load(log_sums + lane, mask=real, other=float("-inf"))
        now = tl.maximum(best, tl.max(sums, 0))
        weights = tl.exp2(sums - now)
        part = tl.load(partial + lane[:, None] * dim + column[None, :],
                       mask=real[:, None] & (column < dim)[None, :], other=0.0)
        shrink = tl.exp2(best - now)
        acc = acc * shrink + tl.sum(part * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        best = now
    tl.store(out + row * dim + column, (acc / total).to(out.dtype.element_ty), mask=column < dim)


@triton.jit
def quantised(x):
    """fp32 rows [tokens, dim] as whole numbers in -127 .. 127 and a scale a row, as `kernels.quantised.quantise`."""
    scale = tl.maximum(tl.math.div_rn(tl.max(tl.abs(x), 1), tl.full([x.shape[0]], 127.0, tl.float32)), 1e-30)
    steps = tl.math.div_rn(x, scale[:, None] + tl.zeros_like(x))
    # Adding 1.5 * 2 ** 23 leaves no room for a fraction: fp32 itself rounds to nearest, ties to even.
    return (steps + 12582912.0) - 12582912.0, scale


@triton.jit(do_not_specialize=["n"])
def store_kv_kernel(
    k, v, keys, values, key_scales, value_scales, rows, n, dim, pool_rows, k_row, k_head, v_row, v_head,
    SCALED: tl.constexpr, TOKENS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Program (t, h): TOKENS tokens of KV head h go to the pool's rows."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK_DIM)
    mask = (token < n)[:, None] & (column < dim)[None, :]
    target = head * pool_rows + tl.load(rows + token, mask=token < n, other=0)
    at = target[:, None] * dim + column[None, :]
    wide = token.to(tl.int64)[:, None]
    key = tl.load(k + wide * k_row + head * k_head + column[None, :], mask=mask, other=0.0)
    value = tl.load(v + wide * v_row + head * v_head + column[None, :], mask=mask, other=0.0)
    if SCALED:
        key, key_scale = quantised(key.to(tl.float32))
        value, value_scale = quantised(value.to(tl.float32))
        tl.store(key_scales + target, key_scale, mask=token < n)
        tl.store(value_scales + target, value_scale, mask=token < n)
    tl.store(keys + at, key.to(keys.dtype.element_ty), mask=mask)
    tl.store(values + at, value.to(values.dtype.element_ty), mask=mask)


def merge(
    partial: Tensor, log_sums: Tensor, out: Tensor, tokens: Tensor | None = None, split_tokens: int = 0
) -> None:
    """Write the merged rows to out [..., heads, dim]. partial: fp32 [splits, rows, dim]; log_sums: [splits, rows]."""
    splits, rows, dim = partial.shape
    merge_kernel[(rows,)](
        partial, log_sums, partial if tokens is None else tokens, out, rows, splits, dim, out.shape[-2],
        SPLIT_TOKENS=split_tokens, BLOCK_SPLITS=_MERGED_AT_ONCE, BLOCK_DIM=power_of_two(dim),
    )  # fmt: skip


def _rows_of(runs: list[TokenRun], device: torch.device) -> Tensor:
    parts = [torch.arange(run.row, run.row + run.count, dtype=torch.int64) for run in runs]
    return torch.cat(parts).to(device)


_pool_rows: Callable[[list[TokenRun], torch.device], Tensor] = Latest(_rows_of)


def scales_of(kv: KVTensors, layer: int) -> tuple[Tensor, Tensor]:
    """A layer's scales of keys and values; where there are none, tensors that no kernel reads."""
    return (kv.key_scales[layer], kv.value_scales[layer]) if kv.quantised else (kv.keys[layer], kv.values[layer])


def store_kv(kv: KVTensors, layer: int, k: Tensor, v: Tensor, runs: list[TokenRun]) -> None:
    """As `kernels.paged_attention.store_kv`; runs stand in the order of their offsets and leave no gap."""
    keys, values = kv.keys[layer], kv.values[layer]
    n, kv_heads, dim = k.shape
    store_kv_kernel[(triton.cdiv(n, _STORED_TOKENS), kv_heads)](
        k, v, keys, values, *scales_of(kv, layer), _pool_rows(runs, keys.device), n, dim, keys.shape[1],
        k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        SCALED=kv.quantised, TOKENS=_STORED_TOKENS, BLOCK_DIM=power_of_two(dim),
    )  # fmt: skip
