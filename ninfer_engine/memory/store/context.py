"""What every operation of one store shares: its place, its limits, its key, and who is reading."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninfer_engine.memory.store.database import Database
from ninfer_engine.memory.store.errors import StoreCorruptError
from ninfer_engine.memory.store.objects import entry_of
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.memory.store.place import StorePlace
from ninfer_engine.memory.store.sessions import SessionTable


class Readers:
    """Sessions that are being read, which nobody reclaims."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, session: str) -> Iterator[None]:
        """While inside, `session` counts as being read."""
        with self._lock:
            self._count[session] += 1
        try:
            yield
        finally:
            with self._lock:
                self._count[session] -= 1

    def reads(self, session: str) -> bool:
        """Whether anybody reads `session` now."""
        with self._lock:
            return self._count[session] > 0


@dataclass(frozen=True, slots=True)
class StoreContext:
    """One store. fingerprint: what its sessions depend on. require_origin: refuse what `key` did not sign."""

    place: StorePlace
    fingerprint: dict[str, str]
    quota_bytes: int
    key: OriginKey
    require_origin: bool
    sessions: SessionTable
    readers: Readers = field(default_factory=Readers)

    @classmethod
    def of(cls, directory: Path, fingerprint: dict[str, str], quota_bytes: int, key: OriginKey,
           require_origin: bool) -> "StoreContext":
        """The context of the store in `directory`."""
        return cls(StorePlace(directory), fingerprint, quota_bytes, key, require_origin, SessionTable(key))

    def holds(self, database: Database, txn: Any, digest: bytes) -> bool:
        """Whether the store has this object under a signature that counts here."""
        try:
            entry = entry_of(database, txn, digest)
        except StoreCorruptError:
            return False
        return entry is not None and (not self.require_origin or entry.is_own(digest, self.key))
