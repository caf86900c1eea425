"""A small random checkpoint of every architecture, as transformers writes it, and the logits that it gives."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from model_cases import tiny_directory, tokens_of
from torch import Tensor

from ninfer_engine.model.loader import LoadedModel, load_model

LENGTH = 333

_SIZES = {"vocab_size": 512, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32,
          "max_position_embeddings": 4096, "eos_token_id": 503}
_LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
           "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "num_hidden_layers": 4,
           "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
           "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}
_EVEN = _LINEAR | {"linear_key_head_dim": 32}  # llama.cpp computes these only with keys as wide as values
_EXPERTS = {"num_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 256}
_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 96,
           "patch_size": 4, "num_position_embeddings": 16}


@dataclass(frozen=True)
class Case:
    """model: class in transformers; config: its configuration's class and fields. shard: size of a file at most."""

    model: str
    config: str
    fields: Mapping[str, Any]
    dtype: torch.dtype = torch.float32
    shard: str = "50GB"


CASES: Mapping[str, Case] = {
    "llama": Case("LlamaForCausalLM", "LlamaConfig", _SIZES | {"num_hidden_layers": 3, "intermediate_size": 160}),
    "llama3": Case("LlamaForCausalLM", "LlamaConfig", _SIZES | {
        "num_hidden_layers": 2, "intermediate_size": 160, "rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "qwen3": Case("Qwen3ForCausalLM", "Qwen3Config", _SIZES | {
        "num_hidden_layers": 3, "intermediate_size": 160, "rope_parameters": {
            "rope_type": "linear", "rope_theta": 1e6, "factor": 4.0}}, shard="300KB"),
    "qwen3_5": Case("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _SIZES | _EVEN | {
        "intermediate_size": 160, "tie_word_embeddings": True}),
    "multimodal": Case("Qwen3_5ForConditionalGeneration", "Qwen3_5Config", {
        "text_config": _SIZES | _LINEAR | {"intermediate_size": 160}, "vision_config": _VISION}, shard="300KB"),
    "qwen3_next": Case("Qwen3NextForCausalLM", "Qwen3NextConfig", _SIZES | _LINEAR | _EXPERTS | {
        "intermediate_size": 160, "mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen3_next_plain": Case("Qwen3NextForCausalLM", "Qwen3NextConfig", _SIZES | _LINEAR | _EXPERTS | {
        "intermediate_size": 160, "decoder_sparse_step": 2, "norm_topk_prob": False}, shard="300KB"),
    "qwen3_5_moe": Case("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", _SIZES | _EVEN | _EXPERTS),
    "multimodal_moe": Case("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeConfig", {
        "text_config": _SIZES | _LINEAR | _EXPERTS, "vision_config": _VISION}),
    "qwen3_bf16": Case("Qwen3ForCausalLM", "Qwen3Config", _SIZES | {
        "num_hidden_layers": 2, "intermediate_size": 160}, torch.bfloat16),
    "llama_fp16": Case("LlamaForCausalLM", "LlamaConfig", _SIZES | {
        "num_hidden_layers": 2, "intermediate_size": 160}, torch.float16),
}
"""Every architecture, with files in one piece and in several, tied and untied, in three dtypes."""


def _randomise(model: Any) -> None:
    """Weights whose effect shows: matrices that keep the size of what they project, norms that are not all equal."""
    generator = torch.Generator().manual_seed(11)
    for name, tensor in model.named_parameters():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("A_log"):
            tensor.data.copy_(noise - 3)  # heads that remember tens of tokens: what the state holds shows
        elif name.endswith("dt_bias") or "visual" in name:
            continue
        elif tensor.dim() == 1:
            tensor.data.add_(0.2 * noise)
        elif "embed_tokens" in name:
            tensor.data.copy_(noise)
        else:
            tensor.data.copy_(noise * tensor.shape[-1] ** -0.5)
    if model.config.get_text_config().tie_word_embeddings:  # the head is as large as the embeddings: logits of size one
        norm = model.model.norm
        norm.weight.data.sub_(0.9 if "Qwen3_5" in type(norm).__name__ else 0.9 * norm.weight.data)


@cache
def directory_of(name: str) -> Path:
    """The checkpoint in HF layout, with the tiny model's tokenizer and template."""
    case = CASES[name]
    torch.manual_seed(5)
    config = getattr(transformers, case.config)(**case.fields)
    model = getattr(transformers, case.model)(config).eval()
    _randomise(model)
    directory = Path(mkdtemp(prefix=f"ninfer-{name}-"))
    model.to(case.dtype).save_pretrained(directory, max_shard_size=case.shard)
    for file in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(tiny_directory() / file, directory / file)
    return directory


@cache
def loaded(name: str, dtype: str = "fp32") -> LoadedModel:
    return load_model(directory_of(name), dtype=dtype)


@cache
def peer_logits(name: str) -> Tensor:
    """Logits of every position, by transformers in fp32 from the same files."""
    peer = getattr(transformers, CASES[name].model).from_pretrained(directory_of(name), dtype=torch.float32).eval()
    with torch.no_grad():
        logits: Tensor = peer(tokens_of(LENGTH)[None]).logits[0]
    return logits
