"""A decode step on a CPU, in few calls: what lies between two reads of paged memory is one call of TorchScript.

With one token a sequence an operator works for less than a microsecond, and Python takes as long to reach it, to make a
view for it and to come back. TorchScript's interpreter runs the very same operators without Python in between. Each
function here is the composition of the reference operations of this package that its docstring names; nothing is fused
numerically, and what a row becomes does not depend on the other rows, where the product sees to that. kind: the
product's number in `row_products.PRODUCTS`.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ninfer_engine.kernels.row_products import product, rows_apart


@dataclass(frozen=True, slots=True)
class RowConstants:
    """Numbers as zero-dimensional tensors, on the CPU. eps: of the model's norms; tiny: of the unit norm of queries and
    keys; scale: what unit queries and unit keys are multiplied with, [2, 1, 1, 1]."""

    eps: Tensor
    tiny: Tensor
    scale: Tensor

    @classmethod
    def of(cls, eps: float, key_dim: int = 1) -> "RowConstants":
        """The constants of layers with this eps and this dimension of keys."""
        return cls(torch.tensor(eps), torch.tensor(1e-6), torch.tensor([key_dim**-0.5, 1.0]).view(2, 1, 1, 1))


def normed(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """`norms.rms_norm`."""
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, 2.0, -1, True)
    root = torch.addcmul(eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
    return (wide * root).mul_(weight).to(x.dtype)


def feed_forward(x: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: Tensor, kind: int) -> Tensor:
    """x + down(swiglu(gate_up(rms_norm(x)))). x: [b, hidden]."""
    inner = product(normed(x, norm, eps), gate_up, kind)
    width = inner.shape[1] // 2
    gate, up = inner[:, :width], inner[:, width:]
    return product(F.silu(gate).mul_(up), down, kind).add_(x)


def read_slots(states: Tensor, slots: list[int]) -> Tensor:
    """The states of some slots, [b, ...]; zeros for a slot below 0. A view for one slot, else a copy."""
    if len(slots) == 1 and slots[0] >= 0:
        return states[slots[0] : slots[0] + 1]
    found = states.index_select(0, torch.tensor([max(slot, 0) for slot in slots]))
    for row, slot in enumerate(slots):
        if slot < 0:
            found[row].zero_()
    return found


def write_slots(states: Tensor, slots: list[int], values: Tensor) -> None:
    """Side effect: states[slots[i]] becomes values[i]."""
    if len(slots) == 1:
        states[slots[0] : slots[0] + 1].copy_(values)
    else:
        states.index_copy_(0, torch.tensor(slots), values.to(states.dtype))


def linear_mix(
    x: Tensor, norm: Tensor, project: Tensor, conv: Tensor, dt_bias: Tensor, neg_decay: Tensor, out_norm: Tensor,
    out: Tensor, tails: Tensor, states: Tensor, sources: list[int], targets: list[int], eps: Tensor, tiny: Tensor,
    scale: Tensor, kind: int,
) -> Tensor:
    """x + a gated-delta-rule layer: rms_norm, projection, `conv_decode`, `gated_delta_decode`, `gated_rms_norm`,
    output projection. x: [b, hidden]; weights as in `model.weights.LinearWeights`, matrices transposed.

    tails: [slots, channels, width - 1]; states: [slots, value_heads, key_dim, value_dim], both fp32. Row i reads slot
    sources[i] (below 0: the zero state). Side effect: writes slot targets[i].
    """
    rows, heads, key_dim, value_dim = x.shape[0], states.shape[1], states.shape[2], states.shape[3]
    channels, values = conv.shape[0], heads * value_dim
    keys = (channels - values) // 2
    mixed, z, rate, decay = product(normed(x, norm, eps), project, kind).split_with_sizes(
        [channels, values, heads, heads], -1)

    window = torch.cat((read_slots(tails, sources).to(x.dtype), mixed.unsqueeze(-1)), -1)
    write_slots(tails, targets, window[:, :, 1:])
    mixed = F.silu(rows_apart((window * conv).sum(-1)))

    qk = mixed[:, : 2 * keys].reshape(rows, 2, keys // key_dim, key_dim).float().transpose(0, 1)
    length = torch.linalg.vector_norm(qk, 2.0, -1, True)
    qk = (qk * torch.addcmul(tiny, length, length).rsqrt_()).mul_(scale)
    shared = heads * key_dim // keys
    if shared > 1:
        qk = qk.unsqueeze(3).expand(2, rows, keys // key_dim, shared, key_dim)
    qk = qk.reshape(2, rows * heads, 1, key_dim)
    q, k = qk[0], qk[1]

    gate = (F.softplus(rows_apart(decay.float() + dt_bias)) * neg_decay).exp_().view(rows, heads, 1, 1)
    if rows == 1:
        state = states[targets[0] : targets[0] + 1]
        torch.mul(read_slots(states, sources), gate, out=state)
    else:
        state = read_slots(states, sources).mul_(gate)
    flat = state.view(rows * heads, key_dim, value_dim)
    v = mixed[:, 2 * keys :].reshape(rows * heads, 1, value_dim).float()
    delta = (v - torch.bmm(k, flat)).mul_(rows_apart(rate.float()).sigmoid().reshape(rows * heads, 1, 1))
    flat.addcmul_(k.transpose(1, 2), delta)
    read = torch.bmm(q, flat).view(rows, heads, value_dim)
    if rows > 1:
        write_slots(states, targets, state)

    opening = F.silu(rows_apart(z.float())).reshape(rows, heads, value_dim)
    opened = normed(read, out_norm, eps).mul_(opening).to(x.dtype)
    return product(opened.view(rows, values), out, kind).add_(x)


def attention_inputs(
    x: Tensor, norm: Tensor, project: Tensor, qk_norm: Tensor | None, cos: Tensor, sin: Tensor, eps: Tensor,
    gate: int, heads: int, kv_heads: int, dim: int, kind: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a full-attention layer makes of its input x [b, hidden]: rms_norm, projection, norms of queries and keys
    (where qk_norm is there), `apply_rotary_`. gate: width of the gate, 0 without.

    Returns gate [b, gate]; q [b, heads, dim]; k, v [b, kv_heads, dim].
    """
    rows = x.shape[0]
    projected = product(normed(x, norm, eps), project, kind)
    both = (heads + kv_heads) * dim
    qk = projected[:, gate : gate + both].view(rows, heads + kv_heads, dim)
    if qk_norm is not None:
        qk = normed(qk, qk_norm, eps)
    half = cos.shape[-1]
    first, second = qk[:, :, :half], qk[:, :, half : 2 * half]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    turned = (first * cos).addcmul_(second, sin, value=-1)
    second.copy_((second * cos).addcmul_(first, sin))
    first.copy_(turned)
    return projected[:, :gate], qk[:, :heads], qk[:, heads:], projected[:, gate + both :].view(rows, kv_heads, dim)


def attention_output(x: Tensor, attended: Tensor, gate: Tensor, out: Tensor, kind: int) -> Tensor:
    """x + the output projection of `attended` [b, heads, dim], gated where gate [b, heads * dim or 0] is not empty."""
    rows = attended.flatten(1)
    if gate.shape[1] > 0:
        rows = rows * torch.sigmoid(gate)
    return product(rows, out, kind).add_(x)


def head(x: Tensor, norm: Tensor, matrix: Tensor, eps: Tensor, kind: int) -> Tensor:
    """Logits, fp32: the final norm and the head."""
    return product(normed(x, norm, eps), matrix, kind).float()


@dataclass(frozen=True, slots=True)
class RowPrograms:
    """The functions above, ready to run. Their contracts stand at the functions of the same names."""

    feed_forward: Callable[..., Tensor]
    linear_mix: Callable[..., Tensor]
    attention_inputs: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    attention_output: Callable[..., Tensor]
    head: Callable[..., Tensor]


PLAIN = RowPrograms(feed_forward, linear_mix, attention_inputs, attention_output, head)
"""As Python runs them: the same operators in the same order."""


@cache
def scripted() -> RowPrograms:
    """The functions as TorchScript, compiled once a process, in well under a second."""
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # docs/decisions/0014 says why TorchScript all the same
            return torch.jit.script(function)  # type: ignore[no-any-return]  # torch.jit is not typed

    return RowPrograms(compiled(feed_forward), compiled(linear_mix), compiled(attention_inputs),
                       compiled(attention_output), compiled(head))
