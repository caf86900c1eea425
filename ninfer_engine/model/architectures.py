"""The architectures that the decoder computes: one row each of what tells them apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a family differs from the others.

    hybrid: has gated-delta-rule layers beside full attention. gated: attention's output is gated, the gate interleaved
    with the query in q_proj. qk_norm: queries and keys are normalised a head. centred: norm weights are stored around
    zero (the factor is 1 + w), except the gated norm's. experts: feed-forward layers may be mixtures of experts.
    joined: the linear layers' projections are stored as in_proj_qkvz and in_proj_ba, ordered by key head. rotary:
    share of a head that is rotated when config.json does not say; rope_theta: base when it does not say, None: it must.
    """

    hybrid: bool = False
    gated: bool = False
    qk_norm: bool = False
    centred: bool = False
    experts: bool = False
    joined: bool = False
    rotary: float = 1.0
    rope_theta: float | None = None


_HYBRID = {"hybrid": True, "gated": True, "qk_norm": True, "centred": True}

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(rope_theta=10_000.0),
        "qwen3": Architecture(qk_norm=True),
        "qwen3_5_text": Architecture(**_HYBRID, rotary=0.25),
        "qwen3_5_moe_text": Architecture(**_HYBRID, rotary=0.25, experts=True),
        "qwen3_next": Architecture(**_HYBRID, rotary=0.25, experts=True, joined=True),
    }
)
"""model_type of config.json -> what the decoder builds."""

MULTIMODAL: Mapping[str, str] = MappingProxyType({"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"})
"""model_type of a multimodal checkpoint -> that of its text part, which is described below text_config."""

MULTIMODAL_PREFIX = "model.language_model."
"""Prefix of the text part's tensors in a multimodal checkpoint; elsewhere it is `model.`."""
