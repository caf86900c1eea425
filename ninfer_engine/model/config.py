"""A Hugging Face config.json as a typed, checked description of a decoder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ninfer_engine.kernels.cache_layout import CacheShapes
from ninfer_engine.model.errors import ModelError

ARCHITECTURES = {"qwen3_5_text": "Qwen3_5ForCausalLM"}
"""model_type -> the architecture whose tensors the loader knows."""


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
class ModelConfig:
    """What the decoder is built from. rotary_dim: entries of a head that are rotated, an even number."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerKind, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    linear: LinearShape
    rms_eps: float
    tied_embeddings: bool
    max_positions: int
    eos_token_ids: frozenset[int]

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
        return CacheShapes(
            full_layers=self.full_layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            linear_layers=self.linear_layers,
            value_heads=self.linear.value_heads,
            key_dim=self.linear.key_dim,
            value_dim=self.linear.value_dim,
            conv_channels=self.linear.conv_channels,
            conv_width=self.linear.conv_width,
        )


def read_config(directory: Path) -> ModelConfig:
    """Read and check `directory`/config.json. Raises ModelError that names the field."""
    document = read_json(directory / "config.json")
    return parse_config(document, read_eos(directory, document))


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
    """End-of-text token ids: those of generation_config.json, or else of config.json."""
    generation = directory / "generation_config.json"
    value = read_json(generation).get("eos_token_id") if generation.exists() else None
    if value is None:
        value = config.get("eos_token_id")
    match value:
        case None:
            return frozenset()
        case int():
            return frozenset({value})
        case list() if all(isinstance(item, int) for item in value):
            return frozenset(value)
        case _:
            raise ModelError(f"eos_token_id must be a token id or a list of token ids, not {value!r}")


def parse_config(document: Mapping[str, Any], eos: frozenset[int] = frozenset()) -> ModelConfig:
    """A typed configuration from a config.json document. Raises ModelError that names the field."""
    model_type = document.get("model_type")
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"model_type {model_type!r} is not supported", f"supported: {known}")
    field = _Fields(document)
    _require_plain_features(document)
    heads, kv_heads = field.size("num_attention_heads"), field.size("num_key_value_heads")
    head_dim = field.size("head_dim")
    linear = LinearShape(
        key_heads=field.size("linear_num_key_heads"),
        value_heads=field.size("linear_num_value_heads"),
        key_dim=field.size("linear_key_head_dim"),
        value_dim=field.size("linear_value_head_dim"),
        conv_width=field.size("linear_conv_kernel_dim", least=2),
    )
    _require_multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    _require_multiple("linear_num_value_heads", linear.value_heads, "linear_num_key_heads", linear.key_heads)
    rope = field.rope()
    return ModelConfig(
        model_type=model_type,
        vocab_size=field.size("vocab_size"),
        hidden_size=field.size("hidden_size"),
        intermediate_size=field.size("intermediate_size"),
        layers=field.layers(),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=_rotary_dim(rope, head_dim),
        rope_theta=rope.number("rope_theta"),
        linear=linear,
        rms_eps=field.number("rms_norm_eps"),
        tied_embeddings=bool(document.get("tie_word_embeddings", False)),
        max_positions=field.size("max_position_embeddings"),
        eos_token_ids=eos,
    )


class _Fields:
    """Reads fields of config.json and names the one that is wrong."""

    def __init__(self, document: Mapping[str, Any], prefix: str = "") -> None:
        self._document = document
        self._prefix = prefix

    def size(self, name: str, least: int = 1) -> int:
        value = self._document.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(name, f"an integer of at least {least}")
        return value

    def number(self, name: str) -> float:
        value = self._document.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self._wrong(name, "a positive number")
        return float(value)

    def rope(self) -> "_Fields":
        rope = self._document.get("rope_parameters")
        if not isinstance(rope, dict):
            raise self._wrong("rope_parameters", "an object with rope_theta and partial_rotary_factor")
        if rope.get("rope_type", "default") != "default":
            raise self._wrong("rope_parameters.rope_type", "'default'")
        return _Fields(rope, "rope_parameters.")

    def layers(self) -> tuple[LayerKind, ...]:
        count = self.size("num_hidden_layers")
        kinds = self._document.get("layer_types")
        known = [kind.value for kind in LayerKind]
        if not isinstance(kinds, list) or len(kinds) != count or any(kind not in known for kind in kinds):
            raise self._wrong("layer_types", f"a list of {count} entries out of {', '.join(known)}")
        return tuple(LayerKind(kind) for kind in kinds)

    def _wrong(self, name: str, wanted: str) -> ModelError:
        found = repr(self._document[name]) if name in self._document else "missing"
        return ModelError(f"config.json: {self._prefix}{name} must be {wanted}, but is {found}")


def _rotary_dim(rope: _Fields, head_dim: int) -> int:
    factor = rope.number("partial_rotary_factor")
    dim = int(head_dim * factor)
    if factor > 1 or dim < 2 or dim % 2:
        raise ModelError(
            f"config.json: rope_parameters.partial_rotary_factor {factor} of head_dim {head_dim} gives {dim} rotated "
            "entries; the number must be even and between 2 and head_dim"
        )
    return dim


def _require_plain_features(document: Mapping[str, Any]) -> None:
    """Refuse options that would change the result and that the decoder does not implement."""
    for name, wanted in (("hidden_act", "silu"), ("attention_bias", False)):
        found = document.get(name, wanted)
        if found != wanted:
            raise ModelError(f"config.json: {name} must be {wanted!r}, but is {found!r}")


def _require_multiple(name: str, value: int, of_name: str, of: int) -> None:
    if value % of:
        raise ModelError(f"config.json: {name} ({value}) must be a multiple of {of_name} ({of})")
