"""Digests of what is installed here: the engine's source tree and the tool's own."""

import hashlib
from functools import cache
from pathlib import Path

import ninfer_engine
import ninfer_lifecycle


@cache
def tree_sha256(root: Path) -> str:
    """SHA-256 over the Python sources below `root`: sorted relative names, each with its digest.

    The same definition as the engine's own `binary_sha256`, so that the two can be compared.
    """
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def engine_tree_sha256() -> str:
    """The engine that `--host process` would start."""
    return tree_sha256(Path(ninfer_engine.__file__).parent)


def tool_tree_sha256() -> str:
    """This tool."""
    return tree_sha256(Path(ninfer_lifecycle.__file__).parent)
