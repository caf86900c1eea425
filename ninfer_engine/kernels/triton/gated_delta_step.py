"""One step of the gated delta rule for several sequences, each with a source and a destination slot."""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.gated_delta import DeltaInputs
from ninfer_engine.kernels.triton.arguments import device_ints, power_of_two

_VALUES = 32
_L2_EPS = 1e-6


@triton.jit
def delta_step_kernel(
    qk, v, log_decay, rate, recurrent, out, srcs, dsts, key_heads, repeat, key_dim, value_dim,
    qk_row, v_row, decay_row, rate_row, eps, BLOCK_KEY: tl.constexpr, BLOCK_VALUE: tl.constexpr,
):  # fmt: skip
    """Program (r, h, c): BLOCK_VALUE columns of head h's state of row r."""
    row, head, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    at_key = tl.arange(0, BLOCK_KEY)
    at_value = tl.program_id(2) * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    real_key, real_value = at_key < key_dim, at_value < value_dim
    state_mask = real_key[:, None] & real_value[None, :]
    query_at = qk + row * qk_row + (head // repeat) * key_dim + at_key
    q = tl.load(query_at, mask=real_key, other=0.0).to(tl.float32)
    k = tl.load(query_at + key_heads * key_dim, mask=real_key, other=0.0).to(tl.float32)
    q = q / tl.sqrt(tl.sum(q * q, 0) + eps) / tl.sqrt(key_dim * 1.0)
    k = k / tl.sqrt(tl.sum(k * k, 0) + eps)
    value = tl.load(v + row * v_row + head * value_dim + at_value, mask=real_value, other=0.0).to(tl.float32)
    decay = tl.exp(tl.load(log_decay + row * decay_row + head))
    b = tl.load(rate + row * rate_row + head)
    src, dst = tl.load(srcs + row), tl.load(dsts + row)
    size = heads.to(tl.int64) * key_dim * value_dim
    cell = head * key_dim * value_dim + at_key[:, None] * value_dim + at_value[None, :]
    held = state_mask & (cell * 0 + src >= 0)  # a block: the interpreter cannot join a scalar condition to a mask
    state = tl.load(recurrent + tl.maximum(src, 0) * size + cell, mask=held, other=0.0) * decay
    delta = (value - tl.sum(k[:, None] * state, 0)) * b
    state += k[:, None] * delta[None, :]
    result = tl.sum(q[:, None] * state, 0)
    # Source and destination may be one slot: every thread has read its part before any writes.
    tl.debug_barrier()
    tl.store(recurrent + dst * size + cell, state, mask=state_mask)
    tl.store(out + (row * heads + head) * value_dim + at_value, result, mask=real_value)


def gated_delta_decode(
    inputs: DeltaInputs, recurrent: Tensor, src_slots: Sequence[int], dst_slots: Sequence[int]
) -> Tensor:
    """As `kernels.gated_delta.gated_delta_decode`."""
    n, heads, value_dim = inputs.v.shape
    _, _, key_heads, key_dim = inputs.qk.shape
    out = torch.empty(n, heads, value_dim, dtype=torch.float32, device=recurrent.device)
    srcs, dsts = (device_ints(slots, recurrent.device) for slots in (src_slots, dst_slots))
    block_value = min(_VALUES, power_of_two(value_dim))
    delta_step_kernel[(n, heads, triton.cdiv(value_dim, block_value))](
        inputs.qk, inputs.v, inputs.log_decay, inputs.rate, recurrent, out, srcs, dsts,
        key_heads, heads // key_heads, key_dim, value_dim,
        inputs.qk.stride(0), inputs.v.stride(0), inputs.log_decay.stride(0), inputs.rate.stride(0), _L2_EPS,
        BLOCK_KEY=power_of_two(key_dim), BLOCK_VALUE=block_value, num_warps=4,
    )  # fmt: skip
    return out
