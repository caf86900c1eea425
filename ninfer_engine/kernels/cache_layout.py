"""How cached bytes are laid out: the one description that kernels, model and memory share. No policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

PAGE_TOKENS = 64
"""Tokens of one KV page."""

NO_SLOT = -1
"""A source slot that stands for the zero state: the sequence starts at root."""

KV_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}
)
"""Names, as on the command line, of the dtypes that keys and values can be stored in."""

SCALE_DTYPE = torch.float32
"""Of the scales beside int8 keys and values, one a token and head of each."""


@dataclass(frozen=True, slots=True)
class CacheShapes:
    """Sizes of one model's cache. Head counts and dimensions are per layer and equal in all layers of a kind."""

    full_layers: int
    kv_heads: int
    head_dim: int
    linear_layers: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_channels: int
    conv_width: int

    def page_bytes(self, kv_dtype: torch.dtype | str) -> int:
        """Bytes of one KV page: keys and values of every full-attention layer for 64 tokens, scales included."""
        dtype = KV_DTYPES[kv_dtype] if isinstance(kv_dtype, str) else kv_dtype
        scale = SCALE_DTYPE.itemsize if dtype is torch.int8 else 0
        return self.full_layers * 2 * self.kv_heads * PAGE_TOKENS * (self.head_dim * dtype.itemsize + scale)

    @property
    def recurrent_shape(self) -> tuple[int, int, int]:
        """Shape of one layer's recurrent state in one slot."""
        return (self.value_heads, self.key_dim, self.value_dim)

    @property
    def conv_shape(self) -> tuple[int, int]:
        """Shape of one layer's convolution tail in one slot."""
        return (self.conv_channels, self.conv_width - 1)

    @property
    def image_bytes(self) -> int:
        """Bytes of one state image: recurrent state and convolution tail of every linear layer, all fp32."""
        return self.linear_layers * 4 * (math.prod(self.recurrent_shape) + math.prod(self.conv_shape))


@dataclass(frozen=True, slots=True)
class KVTensors:
    """The KV pool: one tensor a full-attention layer, each [kv_heads, num_pages * 64, head_dim], contiguous.

    Physical page p holds the rows p * 64 up to (p + 1) * 64 of every tensor. With int8 keys and values there are
    scales, fp32 [kv_heads, num_pages * 64, 1] a layer: a number is its int8 times its token's and head's scale.
    """

    keys: list[Tensor]
    values: list[Tensor]
    key_scales: list[Tensor] = field(default_factory=list)
    value_scales: list[Tensor] = field(default_factory=list)

    @property
    def quantised(self) -> bool:
        """Whether keys and values are int8 with scales."""
        return bool(self.key_scales)

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor: for each layer keys, values, and their scales where there are any. A page's bytes lie so."""
        return [tensor for layer in zip(*self._kinds(), strict=True) for tensor in layer]

    def _kinds(self) -> list[list[Tensor]]:
        kinds = [self.keys, self.values]
        return [*kinds, self.key_scales, self.value_scales] if self.quantised else kinds


@dataclass(frozen=True, slots=True)
class StateTensors:
    """The state slots: one tensor a linear layer, all fp32 and contiguous.

    recurrent: [slots, value_heads, key_dim, value_dim]; conv: [slots, conv_channels, conv_width - 1], oldest first.
    """

    recurrent: list[Tensor]
    conv: list[Tensor]
