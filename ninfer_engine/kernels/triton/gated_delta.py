"""The gated delta rule in chunks: one kernel prepares every chunk on its own, one carries the state through them.

Within a chunk of tokens with normalised keys k, decay D[i, j] = exp(sum of g over j < t <= i) and rate b, the
updates solve (I + A) x = right with A[i, j] = b[i] (k[i] . k[j]) D[i, j] below the diagonal. The inverse is taken row
by row: products of powers of A would be fewer steps, but cancel badly when keys repeat.
"""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.gated_delta import DeltaInputs
from ninfer_engine.kernels.triton.arguments import SMALLEST_DOT, power_of_two, precision
from ninfer_engine.kernels.triton.products import product

_L2_EPS = 1e-6


@triton.jit
def inverse_norms(x, eps):
    """One over the root of the summed squares of each row of fp32 x."""
    return 1.0 / tl.sqrt(tl.sum(x * x, 1) + eps)


@triton.jit(do_not_specialize=["n"])
def delta_chunks_kernel(
    qk, v, log_decay, rate, fresh, reads, within, scales, decays, n, key_heads, repeat, key_dim, value_dim,
    qk_row, v_row, decay_row, rate_row, eps,
    CHUNK: tl.constexpr, BLOCK_KEY: tl.constexpr, BLOCK_VALUE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (c, h): chunk c of value head h. Padding has decay and rate 0.

    With T = (I + A)^-1 and G the decay from the chunk's start to a token, writes, padded to whole chunks: fresh = T b v
    [tokens, heads, value_dim]; reads = T b G k [tokens, heads, key_dim]; within = (q . k) D [tokens, heads, CHUNK];
    scales [tokens, heads, 2], by which raw queries read the chunk's first state and raw keys write its last; decays
    [chunks, heads], the whole chunk's decay. Queries carry key_dim ** -0.5.
    """
    chunk, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    position = tl.arange(0, CHUNK)
    token = (chunk * CHUNK + position).to(tl.int64)
    real = token < n
    at_key, at_value = tl.arange(0, BLOCK_KEY), tl.arange(0, BLOCK_VALUE)
    key_mask = real[:, None] & (at_key < key_dim)[None, :]
    value_mask = real[:, None] & (at_value < value_dim)[None, :]
    query_at = qk + token[:, None] * qk_row + (head // repeat) * key_dim + at_key[None, :]
    k = tl.load(query_at + key_heads * key_dim, mask=key_mask, other=0.0).to(tl.float32)
    q = tl.load(query_at, mask=key_mask, other=0.0).to(tl.float32)
    key_norm = inverse_norms(k, eps)
    query_norm = inverse_norms(q, eps) / tl.sqrt(key_dim * 1.0)
    k *= key_norm[:, None]
    q *= query_norm[:, None]
    grown = tl.cumsum(tl.load(log_decay + token * decay_row + head, mask=real, other=0.0), 0)
    last = tl.sum(tl.where(position == CHUNK - 1, grown, 0.0), 0)
    b = tl.load(rate + token * rate_row + head, mask=real, other=0.0)
    lane = token * heads + head
    tl.store(scales + lane * 2, query_norm * tl.exp(grown))
    tl.store(scales + lane * 2 + 1, key_norm * tl.exp(last - grown))
    tl.store(decays + chunk * heads + head, tl.exp(last))
    pair = tl.where(i >= j, tl.exp(tl.where(i >= j, grown[:, None] - grown[None, :], 0.0)), 0.0)
    tl.store(within + lane[:, None] * CHUNK + j, product(q, tl.trans(k), PRECISION) * pair)
    below = tl.where(i > j, product(k, tl.trans(k), PRECISION) * pair * b[:, None], 0.0)
    inverse = tl.where(i == j, 1.0, 0.0)
    for row in range(1, tl.minimum(CHUNK, n - chunk * CHUNK)):
        factors = tl.sum(tl.where(i == row, below, 0.0), 0)
        solved = tl.sum(factors[:, None] * inverse, 0)
        inverse = tl.where(i == row, inverse - solved[None, :], inverse)
    # Read again rather than kept: registers are short in the loop.
    k = tl.load(query_at + key_heads * key_dim, mask=key_mask, other=0.0).to(tl.float32)
    right = k * (key_norm * b * tl.exp(grown))[:, None]
    tl.store(reads + lane[:, None] * key_dim + at_key[None, :],
             product(inverse, right, PRECISION), mask=(at_key < key_dim)[None, :])
    value = tl.load(v + token[:, None] * v_row + head * value_dim + at_value[None, :], mask=value_mask, other=0.0)
    updates = product(inverse, value.to(tl.float32) * b[:, None], PRECISION)
    tl.store(fresh + lane[:, None] * value_dim + at_value[None, :], updates, mask=(at_value < value_dim)[None, :])


@triton.jit(do_not_specialize=["n", "src", "dst"])
def delta_state_kernel(
    qk, fresh, reads, within, scales, decays, recurrent, out, n, src, dst, key_heads, repeat, key_dim, value_dim,
    qk_row, CHUNK: tl.constexpr, BLOCK_KEY: tl.constexpr, BLOCK_VALUE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (h, c): carries BLOCK_VALUE columns of head h's state from slot src through all chunks to slot dst."""
    head, heads = tl.program_id(0), tl.num_programs(0)
    position, at_key = tl.arange(0, CHUNK), tl.arange(0, BLOCK_KEY)
    at_value = tl.program_id(1) * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    real_key, real_value = at_key < key_dim, at_value < value_dim
    state_mask = real_key[:, None] & real_value[None, :]
    cell = at_key[:, None] * value_dim + at_value[None, :]
    size = heads.to(tl.int64) * key_dim * value_dim
    source = recurrent + tl.maximum(src, 0) * size + head * key_dim * value_dim + cell
    target = recurrent + dst * size + head * key_dim * value_dim + cell
    state = tl.load(source, mask=state_mask & (cell * 0 + src >= 0), other=0.0)
    for chunk in range(tl.cdiv(n, CHUNK)):
        token = (chunk * CHUNK + position).to(tl.int64)
        real = token < n
        lane = token * heads + head
        key_mask = real[:, None] & real_key[None, :]
        read = tl.load(reads + lane[:, None] * key_dim + at_key[None, :], mask=real_key[None, :], other=0.0)
        update = tl.load(fresh + lane[:, None] * value_dim + at_value[None, :], mask=real_value[None, :], other=0.0)
        update -= product(read, state, PRECISION)
        query_at = qk + token[:, None] * qk_row + (head // repeat) * key_dim + at_key[None, :]
        q = tl.load(query_at, mask=key_mask, other=0.0).to(tl.float32)
        result = product(q, state, PRECISION) * tl.load(scales + lane * 2)[:, None]
        scores = tl.load(within + lane[:, None] * CHUNK + position[None, :])
        result += product(scores, update, PRECISION)
        tl.store(out + lane[:, None] * value_dim + at_value[None, :], result, mask=real[:, None] & real_value[None, :])
        k = tl.load(query_at + key_heads * key_dim, mask=key_mask, other=0.0).to(tl.float32)
        update *= tl.load(scales + lane * 2 + 1)[:, None]
        state = state * tl.load(decays + chunk * heads + head)
        state += product(tl.trans(k), update, PRECISION)
    # Source and destination may be one slot: every thread has read its part before any writes.
    tl.debug_barrier()
    tl.store(target, state, mask=state_mask)


def chunk_tokens(dtype: torch.dtype) -> int:
    """Tokens of a chunk: 64, or 32 for fp32, whose products take three times the registers and shared memory."""
    return 32 if dtype == torch.float32 else 64


def gated_delta_prefill(inputs: DeltaInputs, recurrent: Tensor, src_slot: int, dst_slot: int) -> Tensor:
    """As `kernels.gated_delta.gated_delta_prefill`.

    Scratch: fp32 [n rounded up to a chunk, value_heads, key_dim + value_dim + chunk].
    """
    n, heads, value_dim = inputs.v.shape
    _, _, key_heads, key_dim = inputs.qk.shape
    chunk = chunk_tokens(inputs.qk.dtype)
    chunks = triton.cdiv(n, chunk)
    fresh, reads, within, scales = (
        torch.empty(chunks * chunk, heads, width, dtype=torch.float32, device=recurrent.device)
        for width in (value_dim, key_dim, chunk, 2)
    )
    decays = torch.empty(chunks, heads, dtype=torch.float32, device=recurrent.device)
    out = torch.empty(n, heads, value_dim, dtype=torch.float32, device=recurrent.device)
    block_key = power_of_two(key_dim, SMALLEST_DOT)
    exact = precision(inputs.qk.dtype)
    shape = (key_heads, heads // key_heads, key_dim, value_dim)
    qk_row = inputs.qk.stride(0)
    delta_chunks_kernel[(chunks, heads)](
        inputs.qk, inputs.v, inputs.log_decay, inputs.rate, fresh, reads, within, scales, decays, n, *shape,
        qk_row, inputs.v.stride(0), inputs.log_decay.stride(0), inputs.rate.stride(0), _L2_EPS,
        CHUNK=chunk, BLOCK_KEY=block_key, BLOCK_VALUE=power_of_two(value_dim, SMALLEST_DOT), PRECISION=exact,
        num_warps=8, num_stages=1,
    )  # fmt: skip
    # Columns of the state that one program carries: enough programs for every core, registers for the state.
    block_value = min(chunk // 2, power_of_two(value_dim, SMALLEST_DOT))
    delta_state_kernel[(heads, triton.cdiv(value_dim, block_value))](
        inputs.qk, fresh, reads, within, scales, decays, recurrent, out, n, src_slot, dst_slot, *shape, qk_row,
        CHUNK=chunk, BLOCK_KEY=block_key, BLOCK_VALUE=block_value, PRECISION=exact, num_warps=8, num_stages=1,
    )  # fmt: skip
    return out
