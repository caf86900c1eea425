"""The decoder's weights, fused: one matrix for everything that a layer projects from the same input."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_engine.model.config import LayerKind, ModelConfig

Take = Callable[..., Tensor]
"""take(name, *shape) -> the checkpoint's tensor of that name, checked, in the compute dtype."""


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A gated-delta-rule layer. project: rows in the order q, k, v (convolved), z (gate), b (rate), a (decay)."""

    project: Tensor
    conv: Tensor
    neg_decay_scale: Tensor
    dt_bias: Tensor
    norm: Tensor
    out: Tensor


@dataclass(frozen=True, slots=True)
class FullWeights:
    """A gated full-attention layer. project: rows in the order gate, q, k, v.

    qk_norm: fp32 [heads + kv_heads, head_dim], one row a head, so that queries and keys are normalised by one call.
    """

    project: Tensor
    qk_norm: Tensor
    out: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer: norms (fp32, already 1 + w), mixer, feed-forward. gate_up: rows gate, then up."""

    mixer_norm: Tensor
    mixer: LinearWeights | FullWeights
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything. embed and head: [vocab, hidden]; the same tensor when tied. final_norm: fp32, already 1 + w."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor


def assemble(config: ModelConfig, take: Take) -> DecoderWeights:
    """Fuse a checkpoint's tensors (names of transformers' Qwen3_5ForCausalLM). Errors are those of `take`."""
    hidden, width, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    embed = take("model.embed_tokens.weight", vocab, hidden)
    layers = []
    for index, kind in enumerate(config.layers):
        name = f"model.layers.{index}"
        mixer = _linear(config, take, name) if kind is LayerKind.LINEAR else _full(config, take, name)
        gate_up = [take(f"{name}.mlp.{part}_proj.weight", width, hidden) for part in ("gate", "up")]
        layers.append(
            LayerWeights(
                mixer_norm=_centred(take(f"{name}.input_layernorm.weight", hidden)),
                mixer=mixer,
                mlp_norm=_centred(take(f"{name}.post_attention_layernorm.weight", hidden)),
                gate_up=torch.cat(gate_up),
                down=take(f"{name}.mlp.down_proj.weight", hidden, width),
            )
        )
    final_norm = _centred(take("model.norm.weight", hidden))
    head = embed if config.tied_embeddings else take("lm_head.weight", vocab, hidden)
    return DecoderWeights(embed, tuple(layers), final_norm, head)


def _linear(config: ModelConfig, take: Take, layer: str) -> LinearWeights:
    shape, hidden, name = config.linear, config.hidden_size, f"{layer}.linear_attn"
    parts = [
        take(f"{name}.in_proj_qkv.weight", shape.conv_channels, hidden),
        take(f"{name}.in_proj_z.weight", shape.values, hidden),
        take(f"{name}.in_proj_b.weight", shape.value_heads, hidden),
        take(f"{name}.in_proj_a.weight", shape.value_heads, hidden),
    ]
    return LinearWeights(
        project=torch.cat(parts),
        conv=take(f"{name}.conv1d.weight", shape.conv_channels, 1, shape.conv_width).squeeze(1).contiguous(),
        neg_decay_scale=-take(f"{name}.A_log", shape.value_heads).float().exp(),
        dt_bias=take(f"{name}.dt_bias", shape.value_heads).float(),
        norm=take(f"{name}.norm.weight", shape.value_dim).float(),
        out=take(f"{name}.out_proj.weight", hidden, shape.values),
    )


def _full(config: ModelConfig, take: Take, layer: str) -> FullWeights:
    hidden, dim, name = config.hidden_size, config.head_dim, f"{layer}.self_attn"
    heads, kv_heads = config.heads, config.kv_heads
    # The checkpoint interleaves query and gate head by head; apart, each is one contiguous slice of the projection.
    query_gate = take(f"{name}.q_proj.weight", heads * 2 * dim, hidden).view(heads, 2, dim, hidden)
    keys = take(f"{name}.k_proj.weight", kv_heads * dim, hidden)
    values = take(f"{name}.v_proj.weight", kv_heads * dim, hidden)
    query, gate = (query_gate[:, part].reshape(heads * dim, hidden) for part in (0, 1))
    q_norm = _centred(take(f"{name}.q_norm.weight", dim)).expand(heads, dim)
    k_norm = _centred(take(f"{name}.k_norm.weight", dim)).expand(kv_heads, dim)
    return FullWeights(
        project=torch.cat((gate, query, keys, values)),
        qk_norm=torch.cat((q_norm, k_norm)),
        out=take(f"{name}.o_proj.weight", hidden, heads * dim),
    )


def _centred(weight: Tensor) -> Tensor:
    """A zero-centred norm's weight as the factor that it stands for."""
    return 1.0 + weight.float()
