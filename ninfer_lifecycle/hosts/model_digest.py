"""A model's digest as the engine computes it at its start, without the engine: the files that decide its answers."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from ninfer_lifecycle.errors import HostError

IDENTITY_FILES = ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json")
_NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "float8_e4m3fn": 1}


def identity_files(model: Path) -> tuple[Path, ...]:
    """The files that the digest is taken of, sorted by name. A GGUF file is its own only one."""
    if model.is_file():
        return (model,)
    return tuple(sorted((*(model / name for name in IDENTITY_FILES if (model / name).is_file()),
                         *model.glob("*.safetensors")), key=lambda file: file.name))


def model_digest(model: Path, say: Callable[[str], None] = lambda _: None) -> str:
    """SHA-256 over sorted lines `<sha256>  <name>`; of a single file its own. Reads all of it: seconds a gigabyte.

    Raises HostError when a file cannot be read, or when there is none.
    """
    lines = []
    for file in identity_files(model):
        say(f"hashing {file.name}")
        try:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise HostError(f"cannot read {file}: {error.strerror}", "make it readable") from error
        if model.is_file():
            return digest
        lines.append(f"{digest}  {file.name}\n")
    if not lines:
        raise HostError(f"{model} holds no model", "give a directory in HF layout, or a GGUF file")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


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
