"""Making room: dropping objects that no session keeps, and choosing which sessions must go for a save."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_engine.memory.store.database import Database
from ninfer_engine.memory.store.errors import QuotaError, StoreCorruptError
from ninfer_engine.memory.store.objects import (
    entry_of,
    pieces_of,
    readable_objects,
    remove_object,
    set_used_bytes,
    stored_bytes,
    used_bytes,
)
from ninfer_engine.memory.store.sessions import SessionReferences, SessionTable, kept, share_counts

_BATCH = 256  # objects dropped in one transaction


@dataclass(frozen=True, slots=True)
class GcResult:
    """What a collection removed, and what the store takes now."""

    removed_objects: int
    removed_pieces: int
    freed_bytes: int
    used_bytes: int


def collect_garbage(
    database: Database, sessions: SessionTable, spare: Collection[bytes] = frozenset()
) -> GcResult:
    """Drop every object and piece that no session keeps, and count the bytes anew. The caller is the one writer.

    spare: objects to leave alone although nobody keeps them yet.
    """
    with database.read() as txn:
        needed = kept(references := sessions.references(database, txn), references)
        orphans = [digest for digest in database.keys(txn, "index") if digest not in needed and digest not in spare]
        owners = {key[:32] for key in database.keys(txn, "chunks")}
        before = used_bytes(database, txn)
        lost = [owner for owner in owners if database.get(txn, "index", owner) is None]
        pieces = sum(1 for owner in lost for _ in pieces_of(database, txn, owner))
    drop_objects(database, [*orphans, *lost])
    with database.write() as txn:
        total = _count_bytes(database, txn, references.values())
        set_used_bytes(database, txn, total)
    return GcResult(len(orphans), pieces, max(0, before - total), total)


def drop_objects(database: Database, digests: Iterable[bytes]) -> int:
    """Remove objects in bounded transactions; returns the bytes freed. Their manifests are gone already. What the disk
    cannot read stays."""
    listed, freed = list(digests), 0
    for first in range(0, len(listed), _BATCH):
        some = readable_objects(database, listed[first:first + _BATCH])
        with database.write() as txn:
            for digest in some:
                freed += remove_object(database, txn, digest)
    return freed


def sessions_to_reclaim(
    database: Database, txn: Any, references: dict[str, SessionReferences],
    *, needed_bytes: int, needed_objects: Collection[bytes], order: Sequence[str], quota: int,
) -> list[str]:
    """Which sessions to drop, in `order`, so that `needed_bytes` more fit the quota; none when they fit as it is.

    needed_objects: what the save shares with what is stored; it stays whoever goes. Raises QuotaError before
    anything is dropped when not even all of `order` would do.
    """
    used = used_bytes(database, txn)
    counts = share_counts(references, list(references))
    for digest in needed_objects:
        counts[digest] += 1
    chosen: list[str] = []
    for session in order:
        if used + needed_bytes <= quota:
            break
        if session not in references:
            continue
        chosen.append(session)
        used -= references[session].record_bytes
        for digest in references[session].objects:
            counts[digest] -= 1
            if not counts[digest]:
                used -= _size(database, txn, digest)
    if used + needed_bytes > quota:
        raise QuotaError(needed_bytes, max(0, quota - used), quota)
    return chosen


def _size(database: Database, txn: Any, digest: bytes) -> int:
    try:
        entry = entry_of(database, txn, digest)
    except StoreCorruptError:
        return 0
    return 0 if entry is None else stored_bytes(entry.size)


def _count_bytes(database: Database, txn: Any, records: Iterable[SessionReferences]) -> int:
    objects = sum(_size(database, txn, digest) for digest in database.keys(txn, "index"))
    return objects + sum(record.record_bytes for record in records)
