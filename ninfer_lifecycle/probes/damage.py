"""Damage to a store, without knowing how it is laid out: one byte in the middle of what a save has just written."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

BLOCK = 4096

Fingerprint = Mapping[Path, tuple[bytes, ...]]
"""Digests of the blocks of every file, by path."""


def fingerprint(store: Path) -> Fingerprint:
    """What the store holds now. Reads all of it."""
    return {path: tuple(_digests(path)) for path in sorted(store.rglob("*")) if path.is_file()}


def flip_a_byte(store: Path, before: Fingerprint) -> bool:
    """Change one byte in the middle of the longest run of blocks that are not as they were. False: none is.

    The longest run is data; indexes and headers are short.
    """
    longest: tuple[int, Path, int] | None = None
    for path, blocks in fingerprint(store).items():
        for start, length in _changed_runs(before.get(path, ()), blocks):
            if longest is None or length > longest[0]:
                longest = (length, path, start)
    if longest is None:
        return False
    length, path, start = longest
    size = path.stat().st_size
    position = (start * BLOCK + min(size, (start + length) * BLOCK)) // 2
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
    return True


def _digests(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield hashlib.blake2b(block, digest_size=16).digest()


def _changed_runs(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """(start, length) of each run of blocks that differ or are new."""
    start: int | None = None
    for index, block in enumerate(new):
        same = index < len(old) and old[index] == block
        if not same and start is None:
            start = index
        elif same and start is not None:
            yield start, index - start
            start = None
    if start is not None:
        yield start, len(new) - start
