"""What a decoder is built from, as values, and the JSON files of a model directory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ninfer_engine.kernels.cache_layout import CacheShapes
from ninfer_engine.model.architectures import Architecture
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.rope import Rope


class LayerKind(StrEnum):
    """How a layer mixes tokens; the names are those of `layer_types` in config.json."""

    LINEAR = "linear_attention"
    FULL = "full_attention"


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A gated-delta-rule layer: heads, their dimensions, and the convolution's width in tokens."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def keys(self) -> int:
        """Channels of all key heads (and of all query heads)."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Channels of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """Channels that pass through the convolution: queries, keys, values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts. top: experts a token goes to. width, shared_width: inner sizes of a routed expert and of
    the shared one. normalised: the chosen experts' weights are made to add up to one."""

    count: int
    top: int
    width: int
    shared_width: int
    normalised: bool


_MARKER = {"linear_layers": 1, "value_heads": 1, "key_dim": 64, "value_dim": 128, "conv_channels": 4096,
           "conv_width": 3}
"""What a model without linear layers has for a state image: 64 KiB that no layer reads or writes.

Frontiers, slots and checkpoints stay what they are for hybrid models, and pools of images have tensors to lie in. Not
smaller, because the engine measures what moving a byte costs by moving an image.
"""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the decoder is built from.

    intermediate_size: inner size of a dense feed-forward; used by layers that are not in `expert_layers`. linear: None
    for a model with full attention only. tensor_prefix: of the tensors of the text decoder in the checkpoint.
    """

    model_type: str
    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerKind, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    linear: LinearShape | None
    experts: ExpertShape | None
    expert_layers: frozenset[int]
    rms_eps: float
    tied_embeddings: bool
    max_positions: int
    eos_token_ids: frozenset[int]
    tensor_prefix: str = "model."

    @property
    def full_layers(self) -> int:
        """Number of full-attention layers."""
        return self.layers.count(LayerKind.FULL)

    @property
    def linear_layers(self) -> int:
        """Number of linear-attention layers."""
        return self.layers.count(LayerKind.LINEAR)

    @property
    def cache_shapes(self) -> CacheShapes:
        """What one KV page and one state image of this model hold."""
        full = {"full_layers": self.full_layers, "kv_heads": self.kv_heads, "head_dim": self.head_dim}
        shape = self.linear
        if shape is None:
            return CacheShapes(**full, **_MARKER)
        return CacheShapes(
            **full,
            linear_layers=self.linear_layers,
            value_heads=shape.value_heads,
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
            conv_channels=shape.conv_channels,
            conv_width=shape.conv_width,
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of the model directory. Raises ModelError when it is missing or not an object."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path.name} is missing in {path.parent}", "point --model at a directory in Hugging Face layout"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", "fetch the file again") from None
    if not isinstance(document, dict):
        raise ModelError(f"{path} holds no JSON object", "fetch the file again")
    return document


def read_eos(directory: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """End-of-text token ids: those of generation_config.json, or else of config.json, or of its text part."""
    generation = directory / "generation_config.json"
    value = read_json(generation).get("eos_token_id") if generation.exists() else None
    if value is None:
        value = config.get("eos_token_id")
    if value is None and isinstance(text := config.get("text_config"), dict):
        value = text.get("eos_token_id")
    match value:
        case None:
            return frozenset()
        case int():
            return frozenset({value})
        case list() if all(isinstance(item, int) for item in value):
            return frozenset(value)
        case _:
            raise ModelError(f"eos_token_id must be a token id or a list of token ids, not {value!r}")
