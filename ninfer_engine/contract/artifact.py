"""A model's identity: the files that decide its answers, and one digest over them."""

import hashlib
from collections.abc import Callable
from pathlib import Path

_SETTINGS = ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json")


def identity_files(model: Path) -> tuple[Path, ...]:
    """The files that the digest is taken of, sorted by name. A GGUF file is its own only one."""
    if model.is_file():
        return (model,)
    settings = (model / name for name in _SETTINGS if (model / name).is_file())
    return tuple(sorted((*settings, *model.glob("*.safetensors")), key=lambda file: file.name))


def artifact_digest(model: Path, say: Callable[[str], None] = lambda name: None) -> str:
    """SHA-256 over sorted lines `<sha256>  <name>`; of a single file its own. Reads all of it: seconds a gigabyte.

    say: told the name of each file before it is read. Raises OSError.
    """
    lines = []
    for file in identity_files(model):
        say(file.name)
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if model.is_file():
            return digest
        lines.append(f"{digest}  {file.name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()
