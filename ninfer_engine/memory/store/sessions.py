"""Manifests in the database, and which objects they refer to: reference counts are derived, never stored."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from ninfer_engine.memory.store.database import Database
from ninfer_engine.memory.store.envelope import Sealed, unseal
from ninfer_engine.memory.store.errors import StoreCorruptError, StoreError, StoreIncompatibleError
from ninfer_engine.memory.store.objects import account, used_bytes
from ninfer_engine.memory.store.origin import OriginKey


@dataclass(frozen=True, slots=True)
class SessionReferences:
    """What one stored session keeps: its objects, and the size of its record."""

    objects: frozenset[bytes]
    record_bytes: int


class SessionTable:
    """The `manifests`, `damaged` and `deleted` tables. Not locked: the store serialises its writers."""

    def __init__(self, key: OriginKey) -> None:
        self._key = key
        self._cache: dict[str, tuple[bytes, SessionReferences]] = {}

    def record(self, database: Database, txn: Any, session: str) -> bytes | None:
        """The sealed bytes of a session, or None."""
        return database.get(txn, "manifests", session.encode())

    def names(self, database: Database, txn: Any) -> list[str]:
        """Every stored session, sorted."""
        return [name.decode(errors="replace") for name in database.keys(txn, "manifests")]

    def put(self, database: Database, txn: Any, session: str, record: bytes) -> None:
        """Replace a session's record; whatever damage was noted of it is history."""
        self._account(database, txn, session, len(record))
        database.put(txn, "manifests", session.encode(), record)
        database.remove(txn, "damaged", session.encode())

    def remove(self, database: Database, txn: Any, session: str) -> bool:
        """Drop a session's record and its notes; whether there was a record."""
        self._account(database, txn, session, 0)
        database.remove(txn, "damaged", session.encode())
        for key in list(_deleted_keys(database, txn, session)):
            database.remove(txn, "deleted", key)
        return database.remove(txn, "manifests", session.encode())

    def set_aside(self, database: Database, txn: Any, session: str, reason: str) -> None:
        """Drop a damaged record and note why; the deleted ids stay."""
        self._account(database, txn, session, 0)
        database.remove(txn, "manifests", session.encode())
        database.put(txn, "damaged", session.encode(), reason.encode())

    def damage(self, database: Database, txn: Any, session: str) -> str | None:
        """Why a session's record was set aside, if it was and no save came after."""
        data = database.get(txn, "damaged", session.encode())
        return None if data is None else data.decode(errors="replace")

    def used(self, database: Database, txn: Any) -> int:
        """Bytes that objects and records take, by the running account."""
        return used_bytes(database, txn)

    def note_deleted(self, database: Database, txn: Any, session: str, response_id: str) -> None:
        """A response was deleted: no restore brings it back, whichever manifest still has it."""
        name = hashlib.sha256(response_id.encode()).hexdigest()
        database.put(txn, "deleted", f"{session}/{name}".encode(), response_id.encode())

    def deleted(self, database: Database, txn: Any, session: str) -> frozenset[str]:
        """Responses of a session that were deleted."""
        return frozenset((database.get(txn, "deleted", key) or b"").decode(errors="replace")
                         for key in _deleted_keys(database, txn, session))

    def references(self, database: Database, txn: Any) -> dict[str, SessionReferences]:
        """What every stored session keeps. Raises StoreIncompatibleError for a record of a newer format: nobody here
        can say what it needs, so nothing may be collected. A damaged record keeps nothing."""
        found: dict[str, SessionReferences] = {}
        for session in self.names(database, txn):
            record = self.record(database, txn, session) or b""
            stamp = record[:record.find(b"\n", record.find(b"\n") + 1)]  # header and digest
            cached = self._cache.get(session)
            if cached is None or cached[0] != stamp:
                try:
                    objects = frozenset(self.open(record, require_origin=False).manifest.objects())
                except StoreCorruptError:
                    objects = frozenset()
                cached = (stamp, SessionReferences(objects, len(record)))
            found[session] = cached[1]
            self._cache[session] = cached
        self._cache = {session: self._cache[session] for session in found}
        return found

    def open(self, record: bytes, require_origin: bool) -> Sealed:
        """A record's content once its digest and signature hold; raises as `unseal`."""
        return unseal(record, self._key, require_origin)

    def generation(self, database: Database, txn: Any, session: str) -> int:
        """The stored generation; 0 when there is none that can be read."""
        record = self.record(database, txn, session)
        if record is None:
            return 0
        try:
            return self.open(record, require_origin=False).header.generation
        except StoreIncompatibleError:
            raise
        except StoreError:
            return 0

    def _account(self, database: Database, txn: Any, session: str, size: int) -> None:
        before = database.get(txn, "manifests", session.encode())
        account(database, txn, size - (0 if before is None else len(before)))


def exclusive(references: dict[str, SessionReferences], session: str) -> frozenset[bytes]:
    """Objects that only this session keeps."""
    others = kept(references, [name for name in references if name != session])
    return references[session].objects - others


def kept(references: dict[str, SessionReferences], sessions: Iterable[str]) -> set[bytes]:
    """Objects that at least one of `sessions` keeps."""
    result: set[bytes] = set()
    for session in sessions:
        result |= references[session].objects
    return result


def share_counts(references: dict[str, SessionReferences], sessions: Collection[str]) -> Counter[bytes]:
    """How many of `sessions` keep each object."""
    counts: Counter[bytes] = Counter()
    for session in sessions:
        counts.update(references[session].objects)
    return counts


def _deleted_keys(database: Database, txn: Any, session: str) -> Iterable[bytes]:
    prefix = f"{session}/".encode()
    for key in database.keys(txn, "deleted", prefix):
        if not key.startswith(prefix):
            return
        yield key
