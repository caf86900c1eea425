"""The decoder's weights, fused: one matrix for everything that a layer projects from the same input."""

from dataclasses import dataclass

from torch import Tensor


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
    """A full-attention layer. project: rows in the order gate (where there is one), q, k, v.

    qk_norm: fp32 [heads + kv_heads, head_dim], one row a head, so that queries and keys are normalised by one call;
    None where they are not normalised.
    """

    project: Tensor
    qk_norm: Tensor | None
    out: Tensor


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """A feed-forward. gate_up: rows gate, then up, [2 * width, hidden]; down: [hidden, width]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A mixture of experts. router: [experts, hidden]; gate_up: [experts, 2 * width, hidden]; down: [experts, hidden,
    width]; shared: the expert that every token goes to; shared_gate: [1, hidden]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared: DenseWeights
    shared_gate: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer: norms (fp32, ready to multiply), mixer, feed-forward."""

    mixer_norm: Tensor
    mixer: LinearWeights | FullWeights
    mlp_norm: Tensor
    feed_forward: DenseWeights | ExpertWeights


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything. embed and head: [vocab, hidden]; the same tensor when tied. final_norm: fp32, ready to multiply."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
