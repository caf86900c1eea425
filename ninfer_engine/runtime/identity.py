"""What runs, by digest: the installed engine tree, and the name of the device."""

import hashlib
from functools import cache
from pathlib import Path

import ninfer_engine


@cache
def engine_tree_sha256() -> str:
    """SHA-256 over the installed engine's source files: sorted relative names, each with its own digest."""
    root = Path(ninfer_engine.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
