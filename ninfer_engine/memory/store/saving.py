"""Writing a generation: make room, write what is missing, publish the manifest. The caller is the one writer."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ninfer_engine.memory.store.collect import collect_garbage, drop_objects, sessions_to_reclaim
from ninfer_engine.memory.store.context import StoreContext
from ninfer_engine.memory.store.database import Database
from ninfer_engine.memory.store.envelope import Header, seal
from ninfer_engine.memory.store.errors import ObjectMissingError, StoreCorruptError, StoreUnavailableError
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.memory.store.objects import (
    TRANSACTION_BYTES,
    Buffer,
    ObjectEntry,
    entry_of,
    stored_bytes,
    write_objects,
)
from ninfer_engine.memory.store.sessions import exclusive

_DISK_MARGIN = 8 << 20
_RECORD_MARGIN = 4096
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class PendingObject:
    """An object that a save may have to write: its exact size, and how to get its bytes if the store lacks it."""

    size: int
    read: Callable[[], Buffer]


@dataclass(frozen=True, slots=True)
class SaveResult:
    """A finished save. session_bytes: what the session takes in the store; written_bytes: what this save added."""

    generation: int
    session_bytes: int
    written_bytes: int
    written_objects: int
    reclaimed_sessions: tuple[str, ...]


def save_generation(
    context: StoreContext, database: Database, manifest: SessionManifest, objects: Mapping[bytes, PendingObject],
    reclaim: Sequence[str],
) -> SaveResult:
    """Write the next generation of a session; raises as `DurableStore.save`."""
    reclaimed: list[str] = []
    written = count = 0
    for _ in range(_ATTEMPTS):  # a reader may find damage and drop an object that was counted on
        ready = _next_generation(context, database, manifest)
        lacking = _lacking(context, database, ready, objects)
        sizes = [pending.size for _, pending in lacking]
        reclaimed += make_room(context, database, ready, sizes, reclaim)
        written += _write_pending(context, database, lacking)
        count += len(lacking)
        size = _publish(context, database, ready)
        if size is not None:
            record = len(ready.to_bytes())
            return SaveResult(ready.generation, size + record, written + record, count, tuple(reclaimed))
    raise StoreCorruptError("objects were damaged again and again while saving: check the disk")


def make_room(context: StoreContext, database: Database, manifest: SessionManifest, sizes: Sequence[int],
              reclaim: Sequence[str]) -> list[str]:
    """Make the quota hold objects of these sizes and the manifest, dropping sessions of `reclaim` in order if it must.

    Raises QuotaError or, for the disk, StoreUnavailableError, in both cases with every session still there.
    """
    incoming = sum(map(stored_bytes, sizes)) + len(manifest.to_bytes()) + _RECORD_MARGIN
    _need_disk(context, database, incoming)
    with database.read() as txn:
        if context.sessions.used(database, txn) + incoming <= context.quota_bytes:
            return []
    collect_garbage(database, context.sessions, spare=set(manifest.objects()))
    order = [name for name in reclaim if name != manifest.session and not context.readers.reads(name)]
    needed = frozenset(manifest.objects())
    with database.read() as txn:
        chosen = sessions_to_reclaim(database, txn, context.sessions.references(database, txn), needed_bytes=incoming,
                                     needed_objects=needed, order=order, quota=context.quota_bytes)
    for session in chosen:
        drop_session(context, database, session, needed)
    return chosen


def drop_session(context: StoreContext, database: Database, session: str, keep: frozenset[bytes]) -> bool:
    """Remove a session's record, then the objects that only it kept and that are not in `keep`."""
    with database.read() as txn:
        references = context.sessions.references(database, txn)
        mine = exclusive(references, session) if session in references else frozenset[bytes]()
    with database.write() as txn:
        found = context.sessions.remove(database, txn, session)
    drop_objects(database, mine - keep)
    return found


def publish_record(context: StoreContext, database: Database, manifest: SessionManifest, record: bytes) -> bool:
    """Make `record` the session's generation in one transaction; False when an object that it needs is not there."""
    with database.read() as txn:
        references = context.sessions.references(database, txn)
        mine = exclusive(references, manifest.session) if manifest.session in references else frozenset[bytes]()
    needed = set(manifest.objects())
    with database.write() as txn:
        if not all(entry_of(database, txn, digest) for digest in needed):
            return False
        context.sessions.put(database, txn, manifest.session, record)
    drop_objects(database, mine - needed)
    return True


def _next_generation(context: StoreContext, database: Database, manifest: SessionManifest) -> SessionManifest:
    with database.read() as txn:
        generation = context.sessions.generation(database, txn, manifest.session) + 1
        deleted = context.sessions.deleted(database, txn, manifest.session)
    return manifest.without_responses(deleted).model_copy(
        update={"generation": generation, "saved_unix_ms": time.time_ns() // 1_000_000})


def _lacking(context: StoreContext, database: Database, manifest: SessionManifest,
             objects: Mapping[bytes, PendingObject]) -> list[tuple[bytes, PendingObject]]:
    with database.read() as txn:
        lacking = [digest for digest in manifest.objects() if not context.holds(database, txn, digest)]
    unknown = next((digest for digest in lacking if digest not in objects), None)
    if unknown is not None:
        raise ObjectMissingError(unknown)
    return [(digest, objects[digest]) for digest in lacking]


def _need_disk(context: StoreContext, database: Database, incoming: int) -> None:
    free = context.place.free_on_disk() + database.free_inside()
    if incoming + _DISK_MARGIN > free:
        raise StoreUnavailableError(f"the save needs {incoming} bytes and the disk has {free} free: make room there")


def _write_pending(context: StoreContext, database: Database, lacking: list[tuple[bytes, PendingObject]]) -> int:
    """Write objects in transactions of about TRANSACTION_BYTES; no more than that is held in memory at once."""
    written, held = 0, 0
    batch: list[tuple[bytes, Buffer, ObjectEntry]] = []
    for digest, pending in lacking:
        data = pending.read()
        if len(data) != pending.size:
            raise ValueError(f"object {digest.hex()[:16]} was announced with {pending.size} bytes, has {len(data)}")
        batch.append((digest, data, ObjectEntry.of(digest, data, context.key)))
        held += pending.size
        if held >= TRANSACTION_BYTES:
            written += write_objects(database, batch)
            batch, held = [], 0
    return written + write_objects(database, batch)


def _publish(context: StoreContext, database: Database, manifest: SessionManifest) -> int | None:
    with database.read() as txn:
        entries = [entry_of(database, txn, digest) for digest in manifest.objects()]
    size = sum(stored_bytes(entry.size) for entry in entries if entry is not None)
    header = Header(session=manifest.session, generation=manifest.generation, fingerprint=context.fingerprint,
                    saved_unix_ms=manifest.saved_unix_ms, frontier_tokens=manifest.frontier_tokens,
                    response_records=len(manifest.responses), bytes=size + len(manifest.to_bytes()))
    published = publish_record(context, database, manifest, seal(header, manifest, context.key))
    return size if published else None
