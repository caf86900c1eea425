"""Damage to a store, without knowing how it is laid out: one byte in the middle of what a save has just written."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

BLOCK = 4096


class Block(NamedTuple):
    """Part of a file. dense: few of its bytes are zero, as in keys, values and states; lists of free places, headers
    and indexes hold small numbers in wide fields."""

    digest: bytes
    dense: bool


Fingerprint = Mapping[Path, tuple[Block, ...]]
"""The blocks of every file, by path."""


def fingerprint(store: Path) -> Fingerprint:
    """What the store holds now. Reads all of it."""
    return {path: tuple(_blocks(path)) for path in sorted(store.rglob("*")) if path.is_file()}


def flip_a_byte(store: Path, before: Fingerprint) -> bool:
    """Change one byte in the middle of the longest run of dense blocks that are not as they were, of any blocks where
    none is dense. False: none has changed.

    Not simply of the longest run: in a store that has freed much, the list of free places may be longer than any piece
    of data that went into one of them, and nobody reads it to answer a request.
    """
    runs = [(dense, length, path, start) for path, blocks in fingerprint(store).items()
            for start, length, dense in _changed_runs(before.get(path, ()), blocks)]
    if not runs:
        return False
    _, length, path, start = max(runs)
    size = path.stat().st_size
    position = (start * BLOCK + min(size, (start + length) * BLOCK)) // 2
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
    return True


def _blocks(path: Path) -> Iterator[Block]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield Block(hashlib.blake2b(block, digest_size=16).digest(), 4 * block.count(0) < len(block))


def _changed_runs(old: tuple[Block, ...], new: tuple[Block, ...]) -> Iterator[tuple[int, int, bool]]:
    """(start, length, dense) of each run of blocks that differ or are new and are equally dense."""
    start, kind = 0, None
    for index, block in enumerate((*new, None)):
        same = block is None or (index < len(old) and old[index] == block)
        found = None if same or block is None else block.dense
        if found != kind:
            if kind is not None:
                yield start, index - start, kind
            start, kind = index, found
