"""A model on this machine, without the engine: its digest, and how much it weighs."""

import json
from collections.abc import Callable
from pathlib import Path

from ninfer_engine.contract.artifact import artifact_digest, identity_files
from ninfer_lifecycle.errors import HostError

_NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "float8_e4m3fn": 1}


def model_digest(model: Path, say: Callable[[str], None] = lambda _: None) -> str:
    """The digest that the engine reports of a model. Raises HostError when a file cannot be read, or there is none."""
    if not identity_files(model):
        raise HostError(f"{model} holds no model", "give a directory in HF layout, or a GGUF file")
    try:
        return artifact_digest(model, lambda name: say(f"hashing {name}"))
    except OSError as error:
        raise HostError(f"cannot read {error.filename}: {error.strerror}", "make it readable") from error


def weight_numbers(model: Path) -> int:
    """How many numbers the weights are, from the sizes of the files and the dtype that config.json names."""
    if model.is_file():
        return model.stat().st_size // 2
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    try:
        document = json.loads((model / "config.json").read_text(encoding="utf-8"))
        text = document.get("text_config") or document
        dtype = str(text.get("dtype") or text.get("torch_dtype") or document.get("torch_dtype"))
    except (OSError, ValueError, AttributeError):
        dtype = ""
    return size // _NUMBER_BYTES.get(dtype, 2)
