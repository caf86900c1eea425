"""Loads a model directory or file: checks every tensor by name and shape before anything is served."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch

from ninfer_engine.contract.artifact import artifact_digest
from ninfer_engine.kernels.dispatch import UnsupportedDeviceError, kernels_for
from ninfer_engine.model.assembly import assemble
from ninfer_engine.model.chat import ChatTemplate
from ninfer_engine.model.checkpoint import Checkpoint, SafetensorsCheckpoint
from ninfer_engine.model.config import ModelConfig
from ninfer_engine.model.decoder import Decoder
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.parse_config import read_config
from ninfer_engine.model.tokenizer import Tokenizer

COMPUTE_DTYPES = MappingProxyType({"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16})
"""Names, as on the command line, of the dtypes that weights and activations can have on a CPU."""



@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that the engine needs of a model. artifact_sha256: see contract.artifact."""

    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    chat: ChatTemplate
    artifact_sha256: str
    model_type: str


class _Checked(Checkpoint, Protocol):
    """A checkpoint that knows what was left in it."""

    def require_all_taken(self, tied: bool) -> None:
        """Raise ModelError when there are tensors that the decoder has no place for."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A model on disk, read but for its weights. open: the weights, for a dtype and a device."""

    config: ModelConfig
    tokenizer: Tokenizer
    chat: ChatTemplate
    open: Callable[[torch.dtype, torch.device], _Checked]


def load_model(path: Path, device: str = "cpu", dtype: str = "fp32") -> LoadedModel:
    """Load a directory in Hugging Face layout, or a GGUF file. Raises ModelError, which names the file, field or
    tensor."""
    if dtype not in COMPUTE_DTYPES:
        raise ModelError(f"dtype {dtype!r} is not supported", f"choose one of {', '.join(COMPUTE_DTYPES)}")
    try:
        kernels = kernels_for(torch.device(device))
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise UnsupportedDeviceError("torch finds no GPU here: see that nvidia-smi works and that torch is a CUDA "
                                         "build, or run with --device cpu")
    except (UnsupportedDeviceError, RuntimeError) as error:
        raise ModelError(f"device {device!r} cannot be used: {error}") from None
    source = _gguf(path) if path.is_file() else _directory(path)
    config, size = source.config, source.tokenizer.size
    if size > config.vocab_size:
        raise ModelError(
            f"tokenizer.json has {size} tokens, but config.json says vocab_size {config.vocab_size}",
            "the two files belong to different models: fetch the directory again",
        )
    with torch.inference_mode():
        checkpoint = source.open(COMPUTE_DTYPES[dtype], torch.device(device))
        decoder = Decoder(config, assemble(config, checkpoint), kernels)
    checkpoint.require_all_taken(config.tied_embeddings)
    return LoadedModel(config, decoder, source.tokenizer, source.chat, artifact_digest(path), config.model_type)


def _directory(path: Path) -> _Source:
    config = read_config(path)
    tokenizer = Tokenizer.read(path, config.eos_token_ids)
    chat = ChatTemplate.read(path, tokenizer.eos_texts)
    return _Source(config, tokenizer, chat, lambda dtype, device: SafetensorsCheckpoint(path, dtype, device))


def _gguf(path: Path) -> _Source:
    try:
        # Not at the top: an engine that serves safetensors does without the package.
        from ninfer_engine.model.gguf_checkpoint import GgufCheckpoint  # noqa: PLC0415
        from ninfer_engine.model.gguf_config import gguf_config  # noqa: PLC0415
        from ninfer_engine.model.gguf_file import GgufFile  # noqa: PLC0415
        from ninfer_engine.model.gguf_tokenizer import gguf_chat, gguf_tokenizer  # noqa: PLC0415
    except ImportError:
        raise ModelError(f"{path.name} is a file, and GGUF files need the package gguf", "pip install gguf") from None
    file = GgufFile(path)
    config = gguf_config(file)
    tokenizer = gguf_tokenizer(file, config.eos_token_ids)
    return _Source(config, tokenizer, gguf_chat(file, tokenizer),
                   lambda dtype, device: GgufCheckpoint(file, config, dtype, device))
