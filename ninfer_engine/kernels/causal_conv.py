"""Depthwise causal convolution along tokens with silu, its last inputs kept as a tail in a state slot.

Source and destination slot are apart: a fork reads its anchor's tail and writes its own; the source is left unchanged.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ninfer_engine.kernels.cache_layout import NO_SLOT


def conv_prefill(x: Tensor, weight: Tensor, conv: Tensor, src_slot: int, dst_slot: int) -> Tensor:
    """Convolve a chunk. x: [n, channels]; weight: [channels, width]; conv: [slots, channels, width - 1], fp32.

    Returns silu(conv) as [n, channels]. Side effect: writes the last width - 1 inputs to conv[dst_slot].
    """
    n, channels = x.shape
    width = weight.shape[1]
    padded = x.new_empty(n + width - 1, channels)
    if src_slot == NO_SLOT:
        padded[: width - 1].zero_()
    else:
        padded[: width - 1].copy_(conv[src_slot].t())
    padded[width - 1 :].copy_(x)
    # Shifted multiply-adds on token-major rows: no transpose, and each pass streams.
    out = padded[:n] * weight[:, 0]
    for tap in range(1, width):
        out.addcmul_(padded[tap : tap + n], weight[:, tap])
    conv[dst_slot].copy_(padded[n:].t())
    return F.silu(out, inplace=True)


def conv_decode(x: Tensor, weight: Tensor, conv: Tensor, src_slots: Sequence[int], dst_slots: Sequence[int]) -> Tensor:
    """One token a sequence. x: [b, channels]; returns silu(conv) [b, channels]. Side effect: writes each dst tail."""
    if len(src_slots) == 1:
        src, dst = src_slots[0], dst_slots[0]
        if src == NO_SLOT:
            conv[dst].zero_()
            src = dst
        window = torch.cat((conv[src : src + 1].to(x.dtype), x.unsqueeze(-1)), -1)
        conv[dst : dst + 1].copy_(window[..., 1:])
    else:
        tails = gather_slots(conv, src_slots).to(x.dtype)
        window = torch.cat((tails, x.unsqueeze(-1)), -1)
        conv[list(dst_slots)] = window[..., 1:].to(conv.dtype)
    return F.silu((window * weight).sum(-1), inplace=True)


def gather_slots(states: Tensor, src_slots: Sequence[int]) -> Tensor:
    """A copy of the states of several slots, [b, ...]; the zero state where the slot is NO_SLOT."""
    gathered = states[[max(slot, 0) for slot in src_slots]]
    for row, slot in enumerate(src_slots):
        if slot == NO_SLOT:
            gathered[row].zero_()
    return gathered
