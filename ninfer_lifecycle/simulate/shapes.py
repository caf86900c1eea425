"""What one KV page and one state image of a model take, from its config.json or GGUF header; nothing is loaded.

Hybrid models have linear-attention layers with gated delta rule beside full-attention layers; dense ones have full
attention only, and a marker for an image. The layout is the engine's: recurrent state and convolution tail in fp32,
keys and values in --kv-dtype.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_engine.context.types import PAGE_TOKENS
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.simulate.gguf_header import gguf_document, is_gguf

KV_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "int8": 1}
"""Bytes of one number, by name of --kv-dtype."""

_SCALE_BYTES = {"int8": 4}
"""Bytes of the scale beside one token's numbers of one head, where a kind has scales."""

_STATE_BYTES = 4
_MARKER_BYTES = 64 << 10  # the image of a model without linear layers: docs/models.md says why there is one


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """Layer counts, and heads and dimensions of one layer of each kind. conv_width: tokens that it sees at once."""

    name: str
    full_layers: int
    kv_heads: int
    head_dim: int
    linear_layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    def token_bytes(self, kv_dtype: str) -> int:
        """Keys and values of one token in all full-attention layers."""
        row = self.head_dim * KV_BYTES[kv_dtype] + _SCALE_BYTES.get(kv_dtype, 0)
        return self.full_layers * 2 * self.kv_heads * row

    def page_bytes(self, kv_dtype: str) -> int:
        """One KV page."""
        return PAGE_TOKENS * self.token_bytes(kv_dtype)

    @property
    def conv_channels(self) -> int:
        """Channels of one layer's convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def image_bytes(self) -> int:
        """One state image: recurrent state and convolution tail of every linear layer; a marker without such layers."""
        if self.linear_layers == 0:
            return _MARKER_BYTES
        recurrent = self.value_heads * self.key_dim * self.value_dim
        return self.linear_layers * _STATE_BYTES * (recurrent + self.conv_channels * (self.conv_width - 1))


HYBRID_27B = ModelShapes("27b", full_layers=16, kv_heads=4, head_dim=256, linear_layers=48, key_heads=16,
                         value_heads=48, key_dim=128, value_dim=128, conv_width=4)
"""64 layers, 48 linear: 64 KiB of bf16 keys and values a token. An image is 149.6 MiB here; the 146.8 MiB of published
figures have the convolution tail in bf16."""

TINY = ModelShapes("tiny", full_layers=2, kv_heads=1, head_dim=64, linear_layers=6, key_heads=2, value_heads=4,
                   key_dim=64, value_dim=64, conv_width=4)
"""The tiny model that the engine makes."""

BUILT_IN = {"27b": HYBRID_27B, "tiny": TINY}


def shapes_of(model: str) -> ModelShapes:
    """A built-in name, a config.json, a directory that holds one, or a GGUF file. Raises UsageError."""
    if model in BUILT_IN:
        return BUILT_IN[model]
    path = Path(model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if is_gguf(path):
        return parse_config(gguf_document(path), str(path))
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"no model configuration at {path}: {error.strerror}",
                         "give a config.json, a directory with one, a GGUF file, or one of: "
                         f"{', '.join(sorted(BUILT_IN))}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", "give the config.json of a model in HF layout") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no JSON object", "give the config.json of a model in HF layout")
    return parse_config(document, str(path))


def parse_config(document: Mapping[str, Any], where: str) -> ModelShapes:
    """Shapes from a config.json document; a model with a vision part has them below text_config. Raises UsageError
    that names the field."""
    text = document.get("text_config")
    fields = _Fields(text, f"{where}: text_config.") if isinstance(text, dict) else _Fields(document, f"{where}: ")
    kinds = fields.layer_kinds()
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    linear = fields if "linear_attention" in kinds else _Fields(_WITHOUT_LINEAR, "")
    return ModelShapes(
        name=str(document.get("model_type", where)),
        full_layers=kinds.count("full_attention"),
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", max(1, hidden // heads)),
        linear_layers=kinds.count("linear_attention"),
        key_heads=linear.size("linear_num_key_heads"),
        value_heads=linear.size("linear_num_value_heads"),
        key_dim=linear.size("linear_key_head_dim"),
        value_dim=linear.size("linear_value_head_dim"),
        conv_width=linear.size("linear_conv_kernel_dim"),
    )


_WITHOUT_LINEAR = dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                                 "linear_value_head_dim", "linear_conv_kernel_dim"), 1)
"""What a model without linear layers has for their sizes."""


class _Fields:
    """Reads fields of a config.json and names the one that is wrong."""

    def __init__(self, document: Mapping[str, Any], prefix: str) -> None:
        self._document, self._prefix = document, prefix

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least one; absent or null: the default, if there is one."""
        value = self._document.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(name, "a whole number of at least 1")
        return value

    def layer_kinds(self) -> list[str]:
        """The kind of each layer: from layer_types, or every full_attention_interval-th is full attention."""
        count, kinds = self.size("num_hidden_layers"), self._document.get("layer_types")
        if kinds is None:
            if "full_attention_interval" not in self._document:
                if any(name in self._document for name in _WITHOUT_LINEAR):
                    raise self._wrong("layer_types", "a list of linear_attention and full_attention")
                return ["full_attention"] * count
            every = self.size("full_attention_interval")
            return ["linear_attention" if (n + 1) % every else "full_attention" for n in range(count)]
        known = {"linear_attention", "full_attention"}
        if not isinstance(kinds, list) or len(kinds) != count or any(kind not in known for kind in kinds):
            raise self._wrong("layer_types", f"a list of {count} entries out of {' and '.join(sorted(known))}")
        return kinds

    def _wrong(self, name: str, wanted: str) -> UsageError:
        found = repr(self._document[name])[:80] if name in self._document else "missing"
        return UsageError(f"{self._prefix}{name} must be {wanted}, and is {found}",
                          "give the config.json of a model that the engine serves: docs/models.md lists them")
