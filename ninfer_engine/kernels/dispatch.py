"""Which implementation of each operation runs on a device. The decoder asks once, when it is built."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib.util import find_spec
from typing import assert_never

import torch
from torch import Tensor

from ninfer_engine.kernels import (
    causal_conv,
    experts,
    gated_delta,
    norms,
    paged_attention,
    plain_attention,
    rotary,
    sampling,
    swiglu,
)
from ninfer_engine.kernels.cache_layout import KVTensors
from ninfer_engine.kernels.experts import Routes
from ninfer_engine.kernels.gated_delta import DeltaInputs
from ninfer_engine.kernels.norms import Added
from ninfer_engine.kernels.pages import HistoryPlan, TokenRun
from ninfer_engine.kernels.rotary import Angles
from ninfer_engine.kernels.sampling import Filters

KERNELS_VARIABLE = "NINFER_KERNELS"
"""Environment variable for finding faults: `reference` or `triton` instead of the device's own choice."""


class UnsupportedDeviceError(Exception):
    """No kernels exist for a device, or not those that were asked for."""


class Implementation(Enum):
    """Who computes."""

    REFERENCE = "reference"
    TRITON = "triton"


@dataclass(frozen=True, slots=True)
class Kernels:
    """One callable an operation; the contract of each stands at its torch reference of the same name."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Added]
    gated_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    apply_rotary_: Callable[[Tensor, Angles], Tensor]
    swiglu: Callable[[Tensor], Tensor]
    route: Callable[[Tensor, int, bool], Routes]
    expert_mlp: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]], Tensor]
    conv_prefill: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
    conv_decode: Callable[[Tensor, Tensor, Tensor, Sequence[int], Sequence[int]], Tensor]
    gated_delta_prefill: Callable[[DeltaInputs, Tensor, int, int], Tensor]
    gated_delta_decode: Callable[[DeltaInputs, Tensor, Sequence[int], Sequence[int]], Tensor]
    store_kv: Callable[[KVTensors, int, Tensor, Tensor, list[TokenRun]], None]
    prefill_attention: Callable[[Tensor, Tensor, Tensor, KVTensors, int, HistoryPlan], Tensor]
    decode_attention: Callable[[Tensor, KVTensors, int, list[HistoryPlan]], Tensor]
    sample: Callable[[Tensor, Filters, Tensor], Tensor]


TORCH_CPU = Kernels(
    rms_norm=norms.rms_norm,
    add_rms_norm=norms.add_rms_norm,
    gated_rms_norm=norms.gated_rms_norm,
    apply_rotary_=rotary.apply_rotary_,
    swiglu=swiglu.swiglu,
    route=experts.route,
    expert_mlp=experts.expert_mlp,
    conv_prefill=causal_conv.conv_prefill,
    conv_decode=causal_conv.conv_decode,
    gated_delta_prefill=gated_delta.gated_delta_prefill,
    gated_delta_decode=gated_delta.gated_delta_decode,
    store_kv=paged_attention.store_kv,
    prefill_attention=paged_attention.prefill_attention,
    decode_attention=paged_attention.decode_attention,
    sample=sampling.sample,
)

TORCH_ANY = replace(
    TORCH_CPU,
    prefill_attention=plain_attention.prefill_attention,
    decode_attention=plain_attention.decode_attention,
)
"""The reference where the CPU's attention operator does not exist."""


def kernels_for(device: torch.device, environment: Mapping[str, str] = os.environ) -> Kernels:
    """The kernels of a device: the torch reference on CPU, Triton on CUDA, or what NINFER_KERNELS says.

    Raises UnsupportedDeviceError, which says what runs instead.
    """
    match _implementation(device, environment.get(KERNELS_VARIABLE, "")):
        case Implementation.REFERENCE:
            return TORCH_CPU if device.type == "cpu" else TORCH_ANY
        case Implementation.TRITON:
            return _triton_kernels(device)
        case other:
            assert_never(other)


def _implementation(device: torch.device, asked: str) -> Implementation:
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedDeviceError(f"there are no kernels for device {device.type!r}: run with --device cpu or cuda")
    if not asked:
        return Implementation.REFERENCE if device.type == "cpu" else Implementation.TRITON
    try:
        return Implementation(asked)
    except ValueError:
        names = " or ".join(item.value for item in Implementation)
        raise UnsupportedDeviceError(f"{KERNELS_VARIABLE} is {asked!r}: set it to {names}, or not at all") from None


def _triton_kernels(device: torch.device) -> Kernels:
    if find_spec("triton") is None:
        raise UnsupportedDeviceError(
            f"device {device.type!r} needs triton: install the extra ninfer[engine] on Linux, or run with --device cpu"
        )
    import triton  # noqa: PLC0415 (only a process that computes with Triton needs it)

    if device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise UnsupportedDeviceError(
            "Triton has no CPU code: set TRITON_INTERPRET=1 before the start to interpret its kernels (slow), "
            f"or unset {KERNELS_VARIABLE}"
        )
    from ninfer_engine.kernels.triton.table import TRITON  # noqa: PLC0415

    return TRITON
