"""Loads a model directory: checks every tensor by name and shape before anything is served."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ninfer_engine.kernels.dispatch import UnsupportedDeviceError, kernels_for
from ninfer_engine.model.chat import ChatTemplate
from ninfer_engine.model.config import ModelConfig, read_config
from ninfer_engine.model.decoder import Decoder
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.tokenizer import Tokenizer
from ninfer_engine.model.weights import assemble

COMPUTE_DTYPES = MappingProxyType({"fp32": torch.float32, "bf16": torch.bfloat16})
"""Names, as on the command line, of the dtypes that weights and activations can have on a CPU."""

_IDENTITY_FILES = ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json")
_SKIPPED_PREFIXES = ("mtp.",)  # multi-token-prediction heads: not part of the decoder


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that the engine needs of a model. artifact_sha256: see `artifact_digest`."""

    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    chat: ChatTemplate
    artifact_sha256: str
    model_type: str


def load_model(path: Path, device: str = "cpu", dtype: str = "fp32") -> LoadedModel:
    """Load a directory in Hugging Face layout. Raises ModelError, which names the file, field or tensor."""
    if dtype not in COMPUTE_DTYPES:
        raise ModelError(f"dtype {dtype!r} is not supported", f"choose one of {', '.join(COMPUTE_DTYPES)}")
    try:
        kernels = kernels_for(torch.device(device))
    except (UnsupportedDeviceError, RuntimeError) as error:
        raise ModelError(f"device {device!r} cannot be used: {error}") from None
    config = read_config(path)
    tokenizer = Tokenizer.read(path, config.eos_token_ids)
    if tokenizer.size > config.vocab_size:
        raise ModelError(
            f"tokenizer.json has {tokenizer.size} tokens, but config.json says vocab_size {config.vocab_size}",
            "the two files belong to different models: fetch the directory again",
        )
    with torch.inference_mode():
        checkpoint = _Checkpoint(path, COMPUTE_DTYPES[dtype], torch.device(device))
        decoder = Decoder(config, assemble(config, checkpoint.take), kernels)
    checkpoint.require_all_taken(config)
    chat = ChatTemplate.read(path, tokenizer.eos_texts)
    return LoadedModel(config, decoder, tokenizer, chat, artifact_digest(path), config.model_type)


def artifact_digest(path: Path) -> str:
    """One sha256 over the model's identity: sorted lines "<sha256>  <name>" of the files that decide its output."""
    names = [name for name in _IDENTITY_FILES if (path / name).is_file()]
    names += [file.name for file in path.glob("*.safetensors")]
    lines = [f"{_file_sha256(path / name)}  {name}\n" for name in sorted(names)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Checkpoint:
    """The safetensors files of a directory, memory-mapped; remembers which tensors were taken."""

    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._file_of: dict[str, Any] = {}
        self._taken: set[str] = set()
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ModelError(f"no *.safetensors file in {path}", "point --model at a directory in Hugging Face layout")
        for file in files:
            try:
                # Kept open: safe_open maps the file, and tensors are read from the map when they are taken.
                opened: Any = safe_open(file, framework="pt")
                names = list(opened.keys())
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{file.name} cannot be read: {error}", "fetch the file again") from None
            for name in names:
                if name in self._file_of:
                    raise ModelError(f"tensor {name} is in more than one file", "remove the file that does not belong")
                self._file_of[name] = opened

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name` in the compute dtype. Raises ModelError when it is missing or has another shape."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelError(f"tensor {name} is missing from the safetensors files", "the checkpoint is incomplete")
        try:
            tensor: Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"tensor {name} cannot be read: {error}", "fetch the file again") from None
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"tensor {name} has shape {list(tensor.shape)}, but config.json asks for {list(shape)}",
                "the weights and config.json belong to different models",
            )
        self._taken.add(name)
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)

    def require_all_taken(self, config: ModelConfig) -> None:
        """Raise ModelError when the files hold a tensor that the decoder has no place for."""
        surplus = {name for name in self._file_of.keys() - self._taken if not name.startswith(_SKIPPED_PREFIXES)}
        if config.tied_embeddings:
            surplus.discard("lm_head.weight")
        if surplus:
            named = ", ".join(sorted(surplus)[:5]) + (f" and {len(surplus) - 5} more" if len(surplus) > 5 else "")
            raise ModelError(
                f"the safetensors files hold tensors that this architecture has no place for: {named}",
                "config.json describes another model, or a file does not belong here",
            )
