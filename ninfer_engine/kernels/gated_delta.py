"""The gated delta rule: chunked for prefill, recurrent for decode.

Per value head, with state S [key_dim, value_dim], decay a = exp(g) and rate b:

    S <- a S;  S <- S + k (b (v - k^T S))^T;  o = q^T S / sqrt(key_dim)

Chunked form as in "Gated Delta Networks" (arXiv 2412.06464): within a chunk the updates are the solution of one unit
lower-triangular system, so all chunks are solved as one batch and only a short loop over chunks carries the state.
Source and destination slot are apart: the source's state is left unchanged.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ninfer_engine.kernels.cache_layout import NO_SLOT
from ninfer_engine.kernels.causal_conv import gather_slots
from ninfer_engine.kernels.norms import l2_norm

CHUNK = 64


class DeltaInputs(NamedTuple):
    """One layer's inputs for n tokens. Each query/key head serves value_heads / key_heads neighbouring value heads.

    qk: [n, 2, key_heads, key_dim], queries then keys, not yet normalised; v: [n, value_heads, value_dim]; log_decay
    (g <= 0) and rate (0..1): [n, value_heads], fp32.
    """

    qk: Tensor
    v: Tensor
    log_decay: Tensor
    rate: Tensor


def gated_delta_prefill(inputs: DeltaInputs, recurrent: Tensor, src_slot: int, dst_slot: int) -> Tensor:
    """Run n tokens of one sequence. recurrent: [slots, value_heads, key_dim, value_dim], fp32.

    Returns fp32 [n, value_heads, value_dim]. Side effect: writes the state after the last token to recurrent[dst_slot].
    """
    n, value_heads, value_dim = inputs.v.shape
    repeat = value_heads // inputs.qk.shape[2]
    q, k = (_chunked(x) for x in _normalised(inputs.qk).unbind(1))
    v = _chunked(inputs.v.float())
    rate = _chunked(inputs.rate.unsqueeze(-1))
    # Padding has decay 0 in log space and rate 0: it leaves the state as it is.
    decay = _chunked(inputs.log_decay.unsqueeze(-1)).cumsum_(2)
    pairwise = (decay - decay.transpose(2, 3)).tril_().exp_().tril_()

    def per_value_head(x: Tensor) -> Tensor:
        return x.repeat_interleave(repeat, 0) if repeat > 1 else x

    scores = per_value_head(torch.matmul(k, k.transpose(2, 3)))
    system = scores.mul_(pairwise).mul_(rate)
    within = per_value_head(torch.matmul(q, k.transpose(2, 3))).mul_(pairwise)
    grown = decay.exp()
    keys = per_value_head(k)
    right = torch.cat((v * rate, keys * (rate * grown)), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh, reads_state = solved[..., :value_dim], solved[..., value_dim:]

    readers = torch.cat((reads_state, per_value_head(q) * grown), 2).transpose(0, 1).contiguous()
    last = decay[:, :, -1:]
    writers = (keys * (last - decay).exp_()).permute(1, 0, 3, 2).contiguous()
    updates = fresh.transpose(0, 1).contiguous()
    reads = torch.empty_like(updates)
    chunk_decay = last.exp().transpose(0, 1).contiguous()

    state = recurrent[dst_slot]
    if src_slot == NO_SLOT:
        state.zero_()
    elif src_slot != dst_slot:
        state.copy_(recurrent[src_slot])
    for chunk in range(updates.shape[0]):
        read = torch.bmm(readers[chunk], state)
        updates[chunk].sub_(read[:, :CHUNK])
        reads[chunk].copy_(read[:, CHUNK:])
        state.mul_(chunk_decay[chunk]).baddbmm_(writers[chunk], updates[chunk])
    out = reads.add_(torch.matmul(within.transpose(0, 1), updates))
    return out.permute(0, 2, 1, 3).reshape(-1, value_heads, value_dim)[:n]


def gated_delta_decode(
    inputs: DeltaInputs, recurrent: Tensor, src_slots: Sequence[int], dst_slots: Sequence[int]
) -> Tensor:
    """One token for each of n sequences: row i reads recurrent[src_slots[i]] and writes recurrent[dst_slots[i]].

    Returns fp32 [n, value_heads, value_dim]. Destination slots must differ from one another.
    """
    n, value_heads, value_dim = inputs.v.shape
    key_heads, key_dim = inputs.qk.shape[2:]
    grouped = _normalised(inputs.qk).transpose(0, 1).unsqueeze(3)
    heads = grouped.expand(2, n, key_heads, value_heads // key_heads, key_dim).reshape(2, n * value_heads, 1, key_dim)
    q, k = heads.unbind(0)
    decay = inputs.log_decay.exp().view(n, value_heads, 1, 1)
    if n == 1:
        src, dst = src_slots[0], dst_slots[0]
        new = recurrent[dst : dst + 1]
        if src == NO_SLOT:
            new.zero_()
        else:
            torch.mul(recurrent[src : src + 1], decay, out=new)
    else:
        new = gather_slots(recurrent, src_slots).mul_(decay)
    flat = new.view(n * value_heads, key_dim, value_dim)
    values = inputs.v.float().reshape(n * value_heads, 1, value_dim)
    delta = (values - torch.bmm(k, flat)).mul_(inputs.rate.reshape(n * value_heads, 1, 1))
    flat.addcmul_(k.transpose(1, 2), delta)  # an outer product by broadcast: cheaper than a matrix product here
    out = torch.bmm(q, flat).view(n, value_heads, value_dim)
    if n > 1:
        recurrent[list(dst_slots)] = new
    return out


def _normalised(qk: Tensor) -> Tensor:
    """Unit queries and keys in fp32, queries scaled by key_dim ** -0.5. qk: [n, 2, key_heads, key_dim]."""
    return l2_norm(qk).mul_(_query_scale(qk.shape[-1], qk.device))


@cache
def _query_scale(key_dim: int, device: torch.device) -> Tensor:
    return torch.tensor([key_dim**-0.5, 1.0], device=device).view(2, 1, 1)


def _chunked(x: Tensor) -> Tensor:
    """[n, heads, dim] -> contiguous [heads, chunks, CHUNK, dim], zero-padded at the end."""
    n, heads, dim = x.shape
    chunks = -(-n // CHUNK)
    if n != chunks * CHUNK:
        x = F.pad(x, (0, 0, 0, 0, 0, chunks * CHUNK - n))
    return x.view(chunks, CHUNK, heads, dim).permute(2, 0, 1, 3).contiguous()
