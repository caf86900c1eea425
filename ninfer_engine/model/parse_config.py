"""From a Hugging Face config.json to a checked `ModelConfig`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ninfer_engine.model.architectures import ARCHITECTURES, MULTIMODAL, MULTIMODAL_PREFIX, Architecture
from ninfer_engine.model.config import ExpertShape, LayerKind, LinearShape, ModelConfig, read_eos, read_json
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.fields import Fields
from ninfer_engine.model.rope import Llama3Scaling, Rope

MOST_LAYERS = 4096


def read_config(directory: Path) -> ModelConfig:
    """Read and check `directory`/config.json. Raises ModelError that names the field."""
    document = read_json(directory / "config.json")
    return parse_config(document, read_eos(directory, document))


def parse_config(document: Mapping[str, Any], eos: frozenset[int] = frozenset()) -> ModelConfig:
    """A typed configuration from a config.json document. Raises ModelError that names the field."""
    model_type, field, prefix = _text_part(document)
    architecture = ARCHITECTURES[model_type]
    for name, wanted in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        field.require(name, wanted)
    hidden, heads = field.size("hidden_size"), field.size("num_attention_heads")
    kv_heads = field.size("num_key_value_heads", default=heads)
    head_dim = field.size("head_dim", default=None if architecture.qk_norm else max(1, hidden // heads))
    _require_multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    layers = _layers(field, architecture)
    expert_layers = _expert_layers(field, architecture, len(layers))
    return ModelConfig(
        model_type=model_type,
        architecture=architecture,
        vocab_size=field.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=field.size("intermediate_size") if len(expert_layers) < len(layers) else 0,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=_rope(field, architecture, head_dim),
        linear=_linear(field) if architecture.hybrid else None,
        experts=_experts(field) if expert_layers else None,
        expert_layers=expert_layers,
        rms_eps=field.number("rms_norm_eps"),
        tied_embeddings=_tied(document, field),
        max_positions=field.size("max_position_embeddings"),
        eos_token_ids=eos,
        tensor_prefix=prefix,
    )


def _text_part(document: Mapping[str, Any]) -> tuple[str, Fields, str]:
    """The text decoder's model_type, its fields, and the prefix of its tensors."""
    model_type = document.get("model_type")
    if isinstance(model_type, str) and model_type in MULTIMODAL:
        return MULTIMODAL[model_type], Fields(document).child("text_config"), MULTIMODAL_PREFIX
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted([*ARCHITECTURES, *MULTIMODAL]))
        raise ModelError(f"model_type {model_type!r} is not supported", f"supported: {known}")
    return str(model_type), Fields(document), "model."


def _tied(document: Mapping[str, Any], text: Fields) -> bool:
    """As transformers decides it: the outer document's word counts where it says one."""
    outer = Fields(document)
    return outer.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False))


def _layers(field: Fields, architecture: Architecture) -> tuple[LayerKind, ...]:
    count, kinds = field.size("num_hidden_layers", most=MOST_LAYERS), field.document.get("layer_types")
    known = [kind.value for kind in LayerKind] if architecture.hybrid else [LayerKind.FULL.value]
    if kinds is None and architecture.hybrid:
        interval = field.size("full_attention_interval", default=4)
        return tuple(LayerKind.LINEAR if (index + 1) % interval else LayerKind.FULL for index in range(count))
    if kinds is None:
        field.require("use_sliding_window", False)
        return (LayerKind.FULL,) * count
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in known for kind in kinds):
        raise field.wrong("layer_types", f"a list of {count} entries out of {', '.join(known)}")
    return tuple(LayerKind(kind) for kind in kinds)


def _linear(field: Fields) -> LinearShape:
    shape = LinearShape(
        key_heads=field.size("linear_num_key_heads"),
        value_heads=field.size("linear_num_value_heads"),
        key_dim=field.size("linear_key_head_dim"),
        value_dim=field.size("linear_value_head_dim"),
        conv_width=field.size("linear_conv_kernel_dim", least=2),
    )
    _require_multiple("linear_num_value_heads", shape.value_heads, "linear_num_key_heads", shape.key_heads)
    return shape


def _expert_layers(field: Fields, architecture: Architecture, count: int) -> frozenset[int]:
    """Layers whose feed-forward is a mixture of experts."""
    if not architecture.experts:
        return frozenset()
    step = field.size("decoder_sparse_step", default=1)
    dense = field.document.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise field.wrong("mlp_only_layers", "a list of layer numbers")
    return frozenset(index for index in range(count) if index not in dense and (index + 1) % step == 0)


def _experts(field: Fields) -> ExpertShape:
    shape = ExpertShape(
        count=field.size("num_experts"),
        top=field.size("num_experts_per_tok"),
        width=field.size("moe_intermediate_size"),
        shared_width=field.size("shared_expert_intermediate_size"),
        normalised=field.flag("norm_topk_prob", True),
    )
    if shape.top > shape.count:
        raise field.wrong("num_experts_per_tok", f"at most num_experts ({shape.count})")
    return shape


def _rope(field: Fields, architecture: Architecture, head_dim: int) -> Rope:
    """From rope_parameters, or from the older fields rope_theta, partial_rotary_factor and rope_scaling."""
    rope = _rope_fields(field)
    kind = rope.document.get("rope_type", rope.document.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise rope.wrong("rope_type", "'default', 'linear' or 'llama3'")
    factor = rope.number("partial_rotary_factor", architecture.rotary)
    dim = int(head_dim * factor)
    if factor > 1 or dim < 2 or dim % 2:
        raise ModelError(
            f"config.json: {rope.prefix}partial_rotary_factor {factor} of head_dim {head_dim} gives {dim} rotated "
            "entries; the number must be even and between 2 and head_dim"
        )
    theta = rope.number("rope_theta", architecture.rope_theta)
    if kind == "linear":
        return Rope(theta, dim, slowed=rope.number("factor"))
    return Rope(theta, dim, llama3=_llama3(rope, field) if kind == "llama3" else None)


def _llama3(rope: Fields, field: Fields) -> Llama3Scaling:
    original = rope.number("original_max_position_embeddings", field.size("max_position_embeddings"))
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not high > low:
        raise rope.wrong("high_freq_factor", f"more than low_freq_factor ({low})")
    return Llama3Scaling(rope.number("factor"), low, high, original)


def _rope_fields(field: Fields) -> Fields:
    if field.document.get("rope_parameters") is not None:
        return field.child("rope_parameters")
    scaling = field.document.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise field.wrong("rope_scaling", "an object")
    older = ("rope_theta", "partial_rotary_factor")
    return Fields({name: field.document[name] for name in older if name in field.document} | scaling, field.prefix)


def _require_multiple(name: str, value: int, of_name: str, of: int) -> None:
    if value % of:
        raise ModelError(f"config.json: {name} ({value}) must be a multiple of {of_name} ({of})")
