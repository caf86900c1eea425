"""Which implementation of each operation runs on a device. The decoder asks once, when it is built."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_engine.kernels import causal_conv, experts, gated_delta, norms, paged_attention, rotary, swiglu
from ninfer_engine.kernels.cache_layout import KVTensors
from ninfer_engine.kernels.gated_delta import DeltaInputs
from ninfer_engine.kernels.pages import HistoryPlan, TokenRun
from ninfer_engine.kernels.rotary import Angles


class UnsupportedDeviceError(Exception):
    """No kernels exist for a device."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """One callable an operation; the contract of each stands at its torch reference of the same name."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    gated_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    apply_rotary_: Callable[[Tensor, Angles], Tensor]
    swiglu: Callable[[Tensor], Tensor]
    expert_mlp: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]], Tensor]
    conv_prefill: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
    conv_decode: Callable[[Tensor, Tensor, Tensor, Sequence[int], Sequence[int]], Tensor]
    gated_delta_prefill: Callable[[DeltaInputs, Tensor, int, int], Tensor]
    gated_delta_decode: Callable[[DeltaInputs, Tensor, Sequence[int], Sequence[int]], Tensor]
    store_kv: Callable[[KVTensors, int, Tensor, Tensor, list[TokenRun]], None]
    prefill_attention: Callable[[Tensor, Tensor, Tensor, KVTensors, int, HistoryPlan], Tensor]
    decode_attention: Callable[[Tensor, KVTensors, int, list[HistoryPlan]], Tensor]


TORCH_CPU = Kernels(
    rms_norm=norms.rms_norm,
    gated_rms_norm=norms.gated_rms_norm,
    apply_rotary_=rotary.apply_rotary_,
    swiglu=swiglu.swiglu,
    expert_mlp=experts.expert_mlp,
    conv_prefill=causal_conv.conv_prefill,
    conv_decode=causal_conv.conv_decode,
    gated_delta_prefill=gated_delta.gated_delta_prefill,
    gated_delta_decode=gated_delta.gated_delta_decode,
    store_kv=paged_attention.store_kv,
    prefill_attention=paged_attention.prefill_attention,
    decode_attention=paged_attention.decode_attention,
)


def kernels_for(device: torch.device) -> Kernels:
    """The kernels of a device. Raises UnsupportedDeviceError, which says what runs instead."""
    if device.type == "cpu":
        return TORCH_CPU
    raise UnsupportedDeviceError(f"there are no kernels for device {device.type!r}: run with --device cpu")
