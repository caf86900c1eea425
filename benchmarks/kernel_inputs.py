"""What cases of kernels are made of: a model's dimensions, lengths, random tensors, and copies of all of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ninfer_engine.kernels.cache_layout import KVTensors
from ninfer_engine.kernels.gated_delta import DeltaInputs
from ninfer_engine.kernels.rotary import Angles
from ninfer_engine.kernels.sampling import Filters


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's dimensions."""

    hidden: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    key_heads: int
    value_heads: int
    linear_dim: int
    vocab: int
    experts: int
    top: int
    expert_hidden: int
    expert_width: int
    conv_width: int = 4

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values of a linear layer."""
        return (2 * self.key_heads + self.value_heads) * self.linear_dim


HYBRID_27B = Shape(5120, 17408, 24, 4, 256, 64, 16, 48, 128, 248_320, 512, 10, 2048, 512)
"""A dense hybrid of 27B parameters, and the experts of a sparse one of 80B."""

SMALL = Shape(48, 40, 6, 2, 24, 12, 2, 4, 24, 700, 6, 3, 24, 24)
"""Dimensions that are no powers of two: every mask has something to hide."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of a chunk, of the history before it, of a fork's suffix, and sequences of a decode batch."""

    chunk: int
    context: int
    suffix: int
    batch: int


@dataclass(frozen=True, slots=True)
class Maker:
    """Random tensors of one dtype on one device; on `meta` they have no storage."""

    device: torch.device
    dtype: torch.dtype
    seed: int = 0

    def _generator(self, salt: int) -> torch.Generator | None:
        if self.device.type == "meta":
            return None
        return torch.Generator(self.device).manual_seed(self.seed * 1000 + salt)

    def normal(self, *shape: int, dtype: torch.dtype | None = None, salt: int = 0) -> Tensor:
        """Normal numbers; `salt` tells tensors of one case apart."""
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype, generator=self._generator(salt))

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> Tensor:
        """Numbers in [0, 1), fp32 or fp64."""
        return torch.rand(*shape, device=self.device, dtype=dtype, generator=self._generator(salt))


def copied(value: Any, dtype: torch.dtype | None = None) -> Any:
    """A deep copy of inputs that keeps strides; 16-bit tensors in `dtype` where one is given."""
    match value:
        case Tensor():
            wide = dtype is not None and value.dtype in (torch.bfloat16, torch.float16)
            return value.to(dtype) if wide else value.clone()
        case KVTensors():
            kinds = (value.keys, value.values, value.key_scales, value.value_scales)
            return KVTensors(*(copied(kind, dtype) for kind in kinds))
        case DeltaInputs() | Filters():
            return type(value)(*(copied(item, dtype) for item in value))
        case Angles():
            return Angles(copied(value.cos), copied(value.sin))
        case list() if value and isinstance(value[0], Tensor):
            return [copied(item, dtype) for item in value]
        case _:
            return value


def with_experts(shape: Shape, experts: int) -> Shape:
    """The shape with fewer experts, where memory or time are short."""
    return replace(shape, experts=experts)
