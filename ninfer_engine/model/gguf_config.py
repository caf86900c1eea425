"""From a GGUF file's metadata to a `ModelConfig`, by way of the config.json that the same model would have."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ninfer_engine.model.config import ModelConfig
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.gguf_file import GgufFile
from ninfer_engine.model.parse_config import parse_config

MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {"llama": "llama", "qwen3": "qwen3", "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text"}
)
"""general.architecture -> model_type of config.json."""

_END_KEYS = ("eos_token_id", "eot_token_id")


def gguf_config(file: GgufFile) -> ModelConfig:
    """The configuration of the file's model. Raises ModelError that names what is missing or not supported."""
    if file.architecture not in MODEL_TYPES:
        raise ModelError(f"GGUF architecture {file.architecture!r} is not supported",
                         f"supported: {', '.join(MODEL_TYPES)}")
    if file.architecture == "llama" and file.own("expert_count", 0):
        raise ModelError("GGUF architecture 'llama' with experts is not supported", "use a dense model")
    try:
        config = parse_config(_document(file), _ends(file))
    except ModelError as error:
        raise ModelError(f"{file.path.name}, as config.json: {error.message}", error.advice) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"{file.path.name}: metadata of {file.architecture} is of the wrong kind: {error}",
                         "the file is damaged: fetch it again") from None
    if "rope_freqs.weight" in file.tensors:
        divisors = tuple(file.numbers("rope_freqs.weight").tolist())
        if len(divisors) * 2 != config.rope.dim:
            raise ModelError(f"tensor rope_freqs.weight holds {len(divisors)} numbers, but {config.rope.dim // 2} are "
                             "needed", "the file is damaged: convert it again")
        config = replace(config, rope=replace(config.rope, divisors=divisors))
    return config


def _ends(file: GgufFile) -> frozenset[int]:
    found = (file.get(f"tokenizer.ggml.{key}") for key in _END_KEYS)
    return frozenset(value for value in found if isinstance(value, int))


def _document(file: GgufFile) -> dict[str, Any]:
    """The model as a config.json document; what the file does not say is left out, so that the parser names it."""
    heads = file.own("attention.head_count")
    hidden = file.own("embedding_length")
    head_dim = file.own("attention.key_length", hidden // heads if hidden and heads else None)
    embed = file.tensors.get("token_embd.weight")
    document: dict[str, Any] = {
        "model_type": MODEL_TYPES[file.architecture],
        "vocab_size": None if embed is None else int(embed.shape[-1]),
        "hidden_size": hidden,
        "intermediate_size": file.own("feed_forward_length"),
        "num_hidden_layers": file.own("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _one_number(file, "attention.head_count_kv"),
        "head_dim": head_dim,
        "rms_norm_eps": file.own("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": file.own("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file, head_dim),
    }
    return document | _linear(file) | _experts(file)


def _one_number(file: GgufFile, name: str) -> Any:
    """A value that some converters write once a layer: the number that all full-attention layers have."""
    value = file.own(name)
    if isinstance(value, list):
        different = {number for number in value if number}
        if len(different) != 1:
            raise ModelError(f"{file.architecture}.{name} differs from layer to layer", "such models are not supported")
        return different.pop()
    return value


def _rope(file: GgufFile, head_dim: int | None) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": file.own("rope.freq_base", 10_000.0)}
    rotated = file.own("rope.dimension_count")
    if rotated and head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    scaling = file.own("rope.scaling.type", "none")
    if scaling != "none":
        rope |= {"rope_type": scaling, "factor": file.own("rope.scaling.factor")}
    return rope


def _linear(file: GgufFile) -> dict[str, Any]:
    inner, heads = file.own("ssm.inner_size"), file.own("ssm.time_step_rank")
    if inner is None or not heads:
        return {}
    return {
        "linear_num_key_heads": file.own("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": file.own("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": file.own("ssm.conv_kernel"),
        "full_attention_interval": file.own("full_attention_interval"),
    }


def _experts(file: GgufFile) -> dict[str, Any]:
    count = file.own("expert_count")
    if not count:
        return {}
    return {
        "num_experts": count,
        "num_experts_per_tok": file.own("expert_used_count"),
        "moe_intermediate_size": file.own("expert_feed_forward_length"),
        "shared_expert_intermediate_size": file.own("expert_shared_feed_forward_length"),
    }
