"""Objects in the database: bytes in pieces, and beside each object an entry with digest, size and signature. Reading
them is reading.py's.

An object exists when its entry does; the entry is written with the last piece. Pieces without an entry are what a
crash left, and gc removes them.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from blake3 import blake3

from ninfer_engine.memory.store.database import Database
from ninfer_engine.memory.store.datafile import Extent
from ninfer_engine.memory.store.errors import StoreCorruptError
from ninfer_engine.memory.store.origin import OriginKey

PIECE_BYTES = 256 * 1024 - 16  # with LMDB's page header exactly 64 file pages
TRANSACTION_BYTES = 16 * PIECE_BYTES  # 4 MiB: what a save holds in memory, and writes without a rest, at once
ENTRY_BYTES = 72
_ENTRY = struct.Struct("<32sQ8s16s")
_FILE_PAGE = 4096
_INLINE_LIMIT = 2000  # smaller values lie in tree pages
_OVERHEAD = 256  # an entry, keys and tree pages, a piece

Buffer = bytes | bytearray | memoryview


class ObjectEntry(NamedTuple):
    """What is known of a stored object. checksum (BLAKE3, 32 bytes) and size are of its bytes; `tag` is signed by the
    key `key_id`."""

    checksum: bytes
    size: int
    key_id: bytes
    tag: bytes

    def pack(self, digest: bytes) -> bytes:
        """The entry of the object `digest` as ENTRY_BYTES bytes, the last eight a checksum of name and entry."""
        body = _ENTRY.pack(*self)
        return body + hashlib.sha256(digest + body).digest()[:8]

    @classmethod
    def unpack(cls, digest: bytes, data: bytes) -> "ObjectEntry":
        """The entry in `data`; raises StoreCorruptError when it is not what was written for this name."""
        if len(data) != ENTRY_BYTES or hashlib.sha256(digest + data[:-8]).digest()[:8] != data[-8:]:
            raise StoreCorruptError(f"the entry of object {digest.hex()[:16]} is damaged")
        return cls._make(_ENTRY.unpack_from(data))

    @classmethod
    def of(cls, digest: bytes, data: Buffer, key: OriginKey) -> "ObjectEntry":
        """The entry of `data` under the name `digest`, signed with `key`."""
        checksum = checksum_of(data)
        return cls(checksum, len(data), key.key_id, key.tag(_signed(digest, checksum, len(data))))

    def is_own(self, digest: bytes, key: OriginKey) -> bool:
        """Whether `key` signed this entry under this name."""
        return self.key_id == key.key_id and key.verifies(_signed(digest, self.checksum, self.size), self.tag)


def checksum_of(data: Buffer) -> bytes:
    """The checksum of an object's bytes; lets other threads run meanwhile."""
    return blake3(data).digest()


def stored_bytes(size: int) -> int:
    """What an object of `size` bytes takes in the file, pieces rounded up to file pages."""
    total = 0
    for start in range(0, max(size, 1), PIECE_BYTES):
        piece = min(PIECE_BYTES, size - start)
        total += _OVERHEAD + (piece if piece < _INLINE_LIMIT else -(-(piece + 16) // _FILE_PAGE) * _FILE_PAGE)
    return total


def entry_of(database: Database, txn: Any, digest: bytes) -> ObjectEntry | None:
    """The entry of an object, or None when there is no such object."""
    data = database.get(txn, "index", digest)
    return None if data is None else ObjectEntry.unpack(digest, data)


def write_objects(database: Database, batch: Sequence[tuple[bytes, Buffer, ObjectEntry]]) -> int:
    """Store objects, in one transaction unless one of them is large; returns what they take in the file."""
    small = [item for item in batch if len(item[1]) <= TRANSACTION_BYTES]
    if small:
        with database.write() as txn:
            for digest, data, entry in small:
                _put_pieces(database, txn, digest, memoryview(data).cast("B"), 0, len(data))
                _set_entry(database, txn, digest, entry)
    for digest, data, entry in batch:
        if len(data) > TRANSACTION_BYTES:
            _write_large(database, digest, memoryview(data).cast("B"), entry)
    return sum(stored_bytes(len(data)) for _, data, _ in batch)


def raw_object(database: Database, digest: bytes) -> bytes:
    """Whatever is there of an object, unverified: entry, then pieces. For inspection only."""
    with database.read() as view:
        parts = [view.get("index", digest)]
        parts += [view.get("chunks", piece) for piece in pieces_of(database, view, digest)]
    return b"".join(part for part in parts if part is not None)


def remove_object(database: Database, txn: Any, digest: bytes) -> int:
    """Drop an object and its pieces; returns the bytes that its entry accounted for."""
    accounted = _accounted(database, txn, digest)
    for piece in list(pieces_of(database, txn, digest)):
        database.remove(txn, "chunks", piece)
    database.remove(txn, "index", digest)
    account(database, txn, -accounted)
    return accounted


def readable_objects(database: Database, digests: Sequence[bytes]) -> list[bytes]:
    """Those of `digests` whose pieces can be dropped: LMDB looks at the first page of each through its memory map, so
    that page is read by descriptor before."""
    found = []
    with database.read() as view:
        for digest in digests:
            pieces = (view.find("chunks", piece) for piece in pieces_of(database, view, digest))
            with suppress(OSError):
                view.touch_values([piece for piece in pieces if isinstance(piece, Extent)])
                found.append(digest)
    return found


def pieces_of(database: Database, txn: Any, digest: bytes) -> Iterator[bytes]:
    """Keys of an object's pieces."""
    for piece in database.keys(txn, "chunks", digest):
        if piece[:32] != digest:
            return
        yield piece


def piece_key(digest: bytes, start: int) -> bytes:
    """The key of the piece that starts at byte `start`."""
    return digest + struct.pack(">I", start // PIECE_BYTES)


def used_bytes(database: Database, txn: Any) -> int:
    """Bytes that objects and manifests take; kept in every transaction that changes them."""
    data = database.get(txn, "meta", b"used_bytes")
    return int.from_bytes(data, "little") if data is not None else 0


def account(database: Database, txn: Any, change: int) -> None:
    """Add to `used_bytes`."""
    set_used_bytes(database, txn, used_bytes(database, txn) + change)


def set_used_bytes(database: Database, txn: Any, total: int) -> None:
    """Set `used_bytes`."""
    database.put(txn, "meta", b"used_bytes", max(0, total).to_bytes(8, "little"))


def _write_large(database: Database, digest: bytes, view: memoryview, entry: ObjectEntry) -> None:
    for first in range(0, len(view), TRANSACTION_BYTES):
        end = min(first + TRANSACTION_BYTES, len(view))
        with database.write() as txn:
            _put_pieces(database, txn, digest, view, first, end)
            if end == len(view):
                _set_entry(database, txn, digest, entry)


def _put_pieces(database: Database, txn: Any, digest: bytes, view: memoryview, first: int, end: int) -> None:
    for start in range(first, end, PIECE_BYTES):
        database.put(txn, "chunks", piece_key(digest, start), view[start:min(start + PIECE_BYTES, end)])


def _set_entry(database: Database, txn: Any, digest: bytes, entry: ObjectEntry) -> None:
    before = _accounted(database, txn, digest)
    database.put(txn, "index", digest, entry.pack(digest))
    account(database, txn, stored_bytes(entry.size) - before)


def _accounted(database: Database, txn: Any, digest: bytes) -> int:
    """What the account holds for an object; 0 for a damaged entry, which the next collection makes good."""
    try:
        entry = entry_of(database, txn, digest)
    except StoreCorruptError:
        return 0
    return 0 if entry is None else stored_bytes(entry.size)


def _signed(digest: bytes, checksum: bytes, size: int) -> bytes:
    return b"object" + digest + checksum + struct.pack("<Q", size)
