"""Reading objects: where they lie, their bytes by descriptor, the checksum over the copy that is handed out.

For a restore a few threads each read, verify and place a megabyte of rows after another, in memory that stays in the
processor's cache, while the system reads ahead from the disk.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ninfer_engine.memory.store.database import Database, translated
from ninfer_engine.memory.store.datafile import DataFile, Extent
from ninfer_engine.memory.store.errors import (
    ObjectDamagedError,
    ObjectMissingError,
    StoreCorruptError,
    StoreIncompatibleError,
)
from ninfer_engine.memory.store.objects import PIECE_BYTES, ObjectEntry, checksum_of, piece_key
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.memory.store.treeview import TreeView

_THREADS = min(8, max(2, os.cpu_count() or 2))
_GROUP_BYTES = 1 << 20  # rows that one thread reads at once
_LOCATED = 128  # objects that are looked up at once
_ADVISE_BYTES = 128 << 20  # how far before its turn the system is told to begin

Bytes = NDArray[np.uint8]


class Verifier(NamedTuple):
    """Whose signatures count: `key`'s; require_origin: nothing else is read."""

    key: OriginKey
    require_origin: bool

    def check(self, digest: bytes, entry: ObjectEntry, data: memoryview | bytearray) -> None:
        """Raises ObjectDamagedError, StoreIncompatibleError unless these are the bytes that were written."""
        if checksum_of(data) != entry.checksum:
            raise ObjectDamagedError(digest, "does not match its checksum")
        if self.key.signs and entry.key_id == self.key.key_id and not entry.is_own(digest, self.key):
            raise ObjectDamagedError(digest, "has a signature that does not verify")
        if self.require_origin and not entry.is_own(digest, self.key):
            raise StoreIncompatibleError(f"object {digest.hex()[:16]} was saved under another API key", ("origin",))


class Located(NamedTuple):
    """An object's entry and its pieces: small ones as bytes, others as where they lie."""

    digest: bytes
    entry: ObjectEntry
    pieces: Sequence[bytes | Extent]


Sink = Callable[[Sequence[bytes], Bytes], None]
"""Takes verified rows: data[i] is the object names[i]; valid during the call only. Called from several threads."""


def entries_of(view: TreeView, digests: Sequence[bytes]) -> dict[bytes, ObjectEntry]:
    """The entry of each object. Raises ObjectMissingError, ObjectDamagedError."""
    found, entries = view.find_many("index", digests), {}
    for digest in digests:
        data = found.get(digest)
        if data is None:
            raise ObjectMissingError(digest)
        try:
            entries[digest] = ObjectEntry.unpack(digest, data if isinstance(data, bytes) else b"")
        except StoreCorruptError as error:
            raise ObjectDamagedError(digest, "has a damaged entry") from error
    return entries


def locate(view: TreeView, digests: Sequence[bytes]) -> list[Located]:
    """Where objects lie. Raises ObjectMissingError, ObjectDamagedError."""
    entries = entries_of(view, digests)
    keys = {digest: [piece_key(digest, start) for start in range(0, entries[digest].size, PIECE_BYTES)]
            for digest in digests}
    found = view.find_many("chunks", [key for listed in keys.values() for key in listed])
    return [Located(digest, entries[digest], _pieces(digest, entries[digest].size, keys[digest], found))
            for digest in digests]


def read_objects(database: Database, digests: Sequence[bytes], verifier: Verifier) -> dict[bytes, bytearray]:
    """Objects' bytes, copied out first and verified after: what is verified is what is returned.

    Raises ObjectMissingError, ObjectDamagedError (the caller sets the object aside), StoreIncompatibleError,
    StoreUnavailableError.
    """
    with database.read() as view:
        located = locate(view, list(dict.fromkeys(digests)))
        data = {item.digest: bytearray(item.entry.size) for item in located}
        _load(view.file, located, [memoryview(data[item.digest]) for item in located], verifier)
    return data


@contextmanager
def reading_rows(database: Database, sections: Sequence[tuple[Sequence[bytes], int]], verifier: Verifier
                 ) -> Iterator["RowReader"]:
    """Lists of objects, those of a list all of one size. Reading begins at once; it stops when the context is left.
    Raises as `read_objects`."""
    with database.read() as view:
        reader = RowReader(view, (group for digests, size in sections for group in _groups(view, digests, size)),
                           verifier)
        with ThreadPoolExecutor(_THREADS, "store-read") as threads:
            try:
                reader.start(threads)
                yield reader
            finally:
                reader.stop()


class RowReader:
    """Rows on their way from the file to where they belong."""

    def __init__(self, view: TreeView, groups: "Iterable[_Group]", verifier: Verifier) -> None:
        self._file = view.file
        self._groups: list[_Group] = []
        self._announced = ahead = 0
        for group in groups:  # the disk begins with the first while the last are still looked up
            self._groups.append(group)
            if ahead < _ADVISE_BYTES:
                self._announce(group)
                ahead += group.nbytes
                self._announced = len(self._groups)
        self._verifier = verifier
        self._next = itertools.count()
        self._stopped = False
        self._ready = threading.Event()
        self._sink: Sink | None = None
        self._running: list[Future[None]] = []

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Begin to read; what was read waits for `place_in`."""
        self._running = [threads.submit(self._work) for _ in range(_THREADS)]

    def place_in(self, sink: Sink) -> None:
        """From now on rows go to `sink`."""
        self._sink = sink
        self._ready.set()

    def wait(self) -> None:
        """Until every row is in its place. Raises the first error, of reading or of the sink."""
        for future in self._running:
            future.result()

    def stop(self) -> None:
        """No further rows."""
        self._stopped = True
        self._ready.set()

    def _work(self) -> None:
        memory = np.zeros(max((group.nbytes for group in self._groups), default=0), np.uint8)
        try:
            with translated():
                for index in self._next:
                    if index >= len(self._groups) or self._stopped:
                        return
                    if index + self._announced < len(self._groups):
                        self._announce(self._groups[index + self._announced])
                    self._move(self._groups[index], memory)
        except BaseException:
            self.stop()
            raise

    def _move(self, group: "_Group", memory: Bytes) -> None:
        rows = memory[:group.nbytes].reshape(len(group.objects), group.size)
        _load(self._file, group.objects, [row.data for row in rows], self._verifier)
        self._ready.wait()
        if self._sink is not None and not self._stopped:
            self._sink([item.digest for item in group.objects], rows)

    def _announce(self, group: "_Group") -> None:
        """Have the system begin to read a group in the background."""
        self._file.will_read([piece for item in group.objects for piece in item.pieces if isinstance(piece, Extent)])


class _Group(NamedTuple):
    """Objects of one size that a thread reads at once."""

    objects: Sequence[Located]
    size: int

    @property
    def nbytes(self) -> int:
        return len(self.objects) * self.size


def _groups(view: TreeView, digests: Sequence[bytes], size: int) -> Iterator[_Group]:
    step = max(1, _GROUP_BYTES // max(1, size))
    some = step * max(1, _LOCATED // step)
    for first in range(0, len(digests), some):
        located = locate(view, digests[first:first + some])
        wrong = next((item for item in located if item.entry.size != size), None)
        if wrong is not None:
            raise ObjectDamagedError(wrong.digest, f"has {wrong.entry.size} bytes, not {size}")
        for at in range(0, len(located), step):
            yield _Group(located[at:at + step], size)


def _load(file: DataFile, located: Sequence[Located], targets: Sequence[memoryview], verifier: Verifier) -> None:
    """Fill each target with its object and verify it there."""
    wanted: list[tuple[Extent, memoryview]] = []
    for item, target in zip(located, targets, strict=True):
        start = 0
        for piece in item.pieces:
            if isinstance(piece, Extent):
                wanted.append((piece, target[start:start + piece.size]))
                start += piece.size
            else:
                target[start:start + len(piece)] = piece
                start += len(piece)
    file.read(wanted)
    for item, target in zip(located, targets, strict=True):
        verifier.check(item.digest, item.entry, target)


def _pieces(digest: bytes, size: int, keys: Sequence[bytes], found: Mapping[bytes, bytes | Extent]
            ) -> list[bytes | Extent]:
    pieces: list[bytes | Extent] = []
    for index, key in enumerate(keys):
        piece = found.get(key)
        length = piece.size if isinstance(piece, Extent) else len(piece or b"")
        if piece is None or length != min(PIECE_BYTES, size - index * PIECE_BYTES):
            raise ObjectDamagedError(digest, "lacks a piece, or has a damaged one")
        pieces.append(piece)
    return pieces
