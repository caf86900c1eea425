"""The tiny model: a random hybrid decoder of a few million parameters that behaves like one worth caching for.

Byte-deterministic: weights come from seeded integers and exact scaling, JSON has sorted keys, and the safetensors
header is written in a fixed order, so one seed gives one sha256 on every machine.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from ninfer_engine.contract.artifact import artifact_digest
from ninfer_engine.model.tiny_tokenizer import END_OF_TURN, chat_template, tokenizer_document, unspoken_tokens

LAYERS = 8
FULL_ATTENTION_INTERVAL = 4
HEADS, HEAD_DIM = 4, 64
KEY_HEADS, VALUE_HEADS, LINEAR_DIM = 2, 4, 64
CONV_WIDTH = 4
VOCAB = 512


@dataclass(frozen=True, slots=True)
class Width:
    """The sizes in which tiny models differ."""

    hidden: int = 192
    intermediate: int = 448
    kv_heads: int = 1


TINY = Width()
PEERS = Width(hidden=256, intermediate=768, kv_heads=2)
"""With four layers, 3.7 million parameters: what other engines were measured on."""

# Channel 0 of the residual stream carries one constant that no layer writes to. Projections without a bias find one
# there, which sets how fast each head forgets: head 0 holds some tens of tokens, head 3 some thousands.
_CONSTANT = 4.0
_RATE_BIASES = (-1.0, -2.0, -3.0, -4.0)
_LOG_DECAY_SCALES = (-4.0, -5.5, -7.0, -8.5)
_ATTENTION_SHARPNESS = 0.7  # zero-centred norm weight of queries and keys: a few positions stand out at any length


@dataclass(frozen=True, slots=True)
class _Source:
    """Seeded tensors with values uniform on a symmetric range; every value is exact in fp32 before scaling."""

    generator: torch.Generator

    def tensor(self, *shape: int, std: float) -> Tensor:
        raw = torch.randint(-(1 << 20), (1 << 20) + 1, shape, generator=self.generator, dtype=torch.int64)
        return raw.to(torch.float32) * (std * 1.7320508 / (1 << 20))


def layer_kinds(layers: int) -> list[str]:
    """Three linear-attention layers, one full-attention layer, and again."""
    return ["linear_attention" if (index + 1) % FULL_ATTENTION_INTERVAL else "full_attention"
            for index in range(layers)]


def make_model(directory: Path, seed: int = 0, layers: int = LAYERS, width: Width = TINY) -> str:
    """Write the tiny model to `directory` (made if missing) and return its artifact sha256.

    With eight layers one of the two full-attention layers stands in the middle, as in the models that it stands for, so
    that a cold prefill pays for attention over the whole prompt. With four the only one is last, where nothing but the
    last token's output is wanted.

    Side effects: config.json, generation_config.json, model.safetensors, tokenizer.json, chat_template.jinja; files of
    these names are replaced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_document(VOCAB)
    end = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == END_OF_TURN)
    _write_json(directory / "config.json", config_document(end, layers, width))
    _write_json(directory / "generation_config.json", {"do_sample": False, "eos_token_id": [end]})
    _write_json(directory / "tokenizer.json", tokenizer)
    (directory / "chat_template.jinja").write_text(chat_template(), encoding="utf-8")
    data = safetensors.torch.save(_tensors(seed, tokenizer, layers, width), metadata={"format": "pt"})
    (directory / "model.safetensors").write_bytes(data)
    return artifact_digest(directory)


def config_document(end_of_turn: int, layers: int = LAYERS, width: Width = TINY) -> dict[str, Any]:
    """config.json in the form that transformers' Qwen3_5ForCausalLM reads."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "float32",
        "vocab_size": VOCAB,
        "hidden_size": width.hidden,
        "intermediate_size": width.intermediate,
        "num_hidden_layers": layers,
        "layer_types": layer_kinds(layers),
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "num_attention_heads": HEADS,
        "num_key_value_heads": width.kv_heads,
        "head_dim": HEAD_DIM,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_conv_kernel_dim": CONV_WIDTH,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "max_position_embeddings": 262144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
        "eos_token_id": end_of_turn,
    }


def _tensors(seed: int, tokenizer: dict[str, Any], layers: int, width: Width) -> dict[str, Tensor]:
    source = _Source(torch.Generator().manual_seed(seed))
    embed = source.tensor(VOCAB, width.hidden, std=1.0)
    embed[:, 0] = _CONSTANT
    head = source.tensor(VOCAB, width.hidden, std=3.0 / width.hidden**0.5)
    # Replies are printable ASCII of the length asked for: nothing else can win against the spoken tokens' logits.
    head[unspoken_tokens(tokenizer)] = 0.0
    tensors = {
        "model.embed_tokens.weight": embed,
        "lm_head.weight": head,
        "model.norm.weight": torch.zeros(width.hidden),
    }
    for index, kind in enumerate(layer_kinds(layers)):
        name = f"model.layers.{index}"
        mixer = _linear(source, name, width) if kind == "linear_attention" else _full(source, name, width)
        tensors |= mixer | _common(source, name, width)
    return tensors


def _common(source: _Source, name: str, width: Width) -> dict[str, Tensor]:
    return {
        f"{name}.input_layernorm.weight": source.tensor(width.hidden, std=0.1),
        f"{name}.post_attention_layernorm.weight": source.tensor(width.hidden, std=0.1),
        f"{name}.mlp.gate_proj.weight": source.tensor(width.intermediate, width.hidden, std=1.0 / width.hidden**0.5),
        f"{name}.mlp.up_proj.weight": source.tensor(width.intermediate, width.hidden, std=1.0 / width.hidden**0.5),
        f"{name}.mlp.down_proj.weight": _silent_constant(
            source.tensor(width.hidden, width.intermediate, std=1.5 / width.intermediate**0.5)
        ),
    }


def _linear(source: _Source, layer: str, width: Width) -> dict[str, Tensor]:
    name = f"{layer}.linear_attn"
    keys, values = KEY_HEADS * LINEAR_DIM, VALUE_HEADS * LINEAR_DIM
    scale = 1.0 / width.hidden**0.5
    rate = source.tensor(VALUE_HEADS, width.hidden, std=0.5 * scale)
    # The first norm sees channel 0 at about its own value: the rest of an embedding has variance one.
    rate[:, 0] = torch.tensor(_RATE_BIASES) / _CONSTANT
    return {
        f"{name}.in_proj_qkv.weight": source.tensor(2 * keys + values, width.hidden, std=scale),
        f"{name}.in_proj_z.weight": source.tensor(values, width.hidden, std=scale),
        f"{name}.in_proj_b.weight": rate,
        f"{name}.in_proj_a.weight": source.tensor(VALUE_HEADS, width.hidden, std=0.5 * scale),
        f"{name}.conv1d.weight": source.tensor(2 * keys + values, 1, CONV_WIDTH, std=0.6),
        f"{name}.A_log": torch.tensor(_LOG_DECAY_SCALES),
        f"{name}.dt_bias": torch.ones(VALUE_HEADS),
        f"{name}.norm.weight": 1.0 + source.tensor(LINEAR_DIM, std=0.1),
        f"{name}.out_proj.weight": _silent_constant(source.tensor(width.hidden, values, std=2.0 / values**0.5)),
    }


def _full(source: _Source, layer: str, width: Width) -> dict[str, Tensor]:
    name = f"{layer}.self_attn"
    queries, kv_width = HEADS * HEAD_DIM, width.kv_heads * HEAD_DIM
    scale = 1.0 / width.hidden**0.5
    return {
        f"{name}.q_proj.weight": source.tensor(2 * queries, width.hidden, std=scale),
        f"{name}.k_proj.weight": source.tensor(kv_width, width.hidden, std=scale),
        f"{name}.v_proj.weight": source.tensor(kv_width, width.hidden, std=scale),
        f"{name}.o_proj.weight": _silent_constant(source.tensor(width.hidden, queries, std=3.0 / queries**0.5)),
        f"{name}.q_norm.weight": torch.full((HEAD_DIM,), _ATTENTION_SHARPNESS),
        f"{name}.k_norm.weight": torch.full((HEAD_DIM,), _ATTENTION_SHARPNESS),
    }


def _silent_constant(weight: Tensor) -> Tensor:
    """A matrix that writes to the residual stream, made to leave its constant channel alone."""
    weight[0] = 0.0
    return weight


def _write_json(path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
