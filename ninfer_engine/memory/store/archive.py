"""A session as one file, to move between hosts: a tar of the sealed manifest, the objects' entries, the objects.

    ninfer-session   "1"                                    record    the sealed manifest, as stored
    entries          digest and entry of each object         objects/<digest>   bytes, in the order of `entries`

The archive is staged beside its target and renamed when it is whole. An import verifies every byte against its entry
and the entry's signature where it can, writes objects first and publishes the record last.
"""

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ninfer_engine.memory.store.database import Database
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.envelope import Sealed, differing_parts, seal, unseal
from ninfer_engine.memory.store.errors import (
    ArchiveError,
    GenerationError,
    ObjectMissingError,
    SessionMissingError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.memory.store.objects import (
    ENTRY_BYTES,
    TRANSACTION_BYTES,
    Buffer,
    ObjectEntry,
    entry_of,
    write_objects,
)
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.memory.store.saving import make_room, publish_record

_ITEM = 32 + ENTRY_BYTES
_LARGEST_SMALL_MEMBER = 256 << 20


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """An exported or imported session. written_bytes: what the archive takes, or what the import added."""

    session: str
    generation: int
    objects: int
    written_bytes: int


def export_session(store: DurableStore, session: str, target: Path) -> ArchiveResult:
    """Write a session to `target`, whole or not at all. Raises as `DurableStore.load` and `read`."""
    staged = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with store.reading(session) as manifest, staged.open("wb") as raw:
            digests = list(manifest.objects())
            with tarfile.open(fileobj=raw, mode="w") as tar:
                _add(tar, "ninfer-session", b"1")
                _add(tar, "record", _record_to_export(store, manifest))
                _add(tar, "entries", _entries_of(store.database(), digests))
                for digest, data in store.read_many(digests):
                    _add(tar, f"objects/{digest.hex()}", data)
            raw.flush()
            os.fsync(raw.fileno())
        size = staged.stat().st_size
        staged.replace(target)
        _sync_directory(target.parent)
    except OSError as error:
        raise StoreUnavailableError(f"the archive cannot be written to {target}: {error.strerror}") from error
    finally:
        staged.unlink(missing_ok=True)
    return ArchiveResult(session, manifest.generation, len(digests), size)


def import_session(store: DurableStore, source: Path, force: bool = False) -> ArchiveResult:
    """Bring an archived session into the store, whole or not at all.

    force: also over a stored generation that is as new or newer. Raises ArchiveError (damaged or not ours),
    GenerationError, StoreIncompatibleError (fingerprint, origin, format), QuotaError, StoreUnavailableError.
    """
    database, context = store.database(), store.context
    database.prepare_write()
    try:
        with source.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:") as tar, context.place.writing():
            members = iter(tar)
            if _member(tar, members, "ninfer-session") != b"1":
                raise ArchiveError("the archive is of a newer form: use the engine that wrote it")
            record = _member(tar, members, "record")
            sealed = context.sessions.open(record, context.require_origin)
            parts = differing_parts(sealed.header.fingerprint, context.fingerprint)
            if parts:
                raise StoreIncompatibleError(f"the archive was saved with another {', '.join(parts)}", parts)
            entries = _entries(_member(tar, members, "entries"), sealed)
            if _refuse_older(store, database, sealed, record, force):
                return ArchiveResult(sealed.header.session, sealed.header.generation, len(entries), 0)
            written = _import_objects(store, database, tar, members, entries, sealed)
            if not publish_record(context, database, sealed.manifest, record):
                raise ArchiveError("the archive lacks objects that its session needs")
    except tarfile.TarError as error:
        raise ArchiveError(f"{source.name} is not a session archive, or is cut short: {error}") from error
    except OSError as error:
        raise StoreUnavailableError(f"the archive cannot be read: {error.strerror}") from error
    return ArchiveResult(sealed.header.session, sealed.header.generation, len(entries), written + len(record))


def archive_fingerprint(source: Path, key: OriginKey) -> dict[str, str]:
    """The configuration that an archive's session was saved under. Raises as `import_session`."""
    try:
        with source.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
            members = iter(tar)
            if _member(tar, members, "ninfer-session") != b"1":
                raise ArchiveError("the archive is of a newer form: use the engine that wrote it")
            return unseal(_member(tar, members, "record"), key, require_origin=False).header.fingerprint
    except tarfile.TarError as error:
        raise ArchiveError(f"{source.name} is not a session archive, or is cut short: {error}") from error
    except OSError as error:
        raise StoreUnavailableError(f"the archive cannot be read: {error.strerror}") from error


def _import_objects(store: DurableStore, database: Database, tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo],
                    entries: dict[bytes, ObjectEntry], sealed: Sealed) -> int:
    context = store.context
    with database.read() as txn:
        lacking = {digest for digest in entries if not context.holds(database, txn, digest)}
    make_room(context, database, sealed.manifest, [entries[digest].size for digest in lacking], ())
    written, held = 0, 0
    batch: list[tuple[bytes, Buffer, ObjectEntry]] = []
    for digest, entry in entries.items():
        data = _member(tar, members, f"objects/{digest.hex()}", entry.size)
        found = ObjectEntry.of(digest, data, context.key)
        if (found.checksum, found.size) != (entry.checksum, entry.size):
            raise ArchiveError(f"object {digest.hex()[:16]} of the archive does not match its checksum")
        if context.require_origin and not entry.is_own(digest, context.key):
            raise StoreIncompatibleError("the archive holds objects saved under another API key", ("origin",))
        if entry.key_id == context.key.key_id and not entry.is_own(digest, context.key):
            raise ArchiveError(f"the signature of object {digest.hex()[:16]} does not verify")
        if digest in lacking:
            batch.append((digest, data, entry))
            held += entry.size
        if held >= TRANSACTION_BYTES:
            written += write_objects(database, batch)
            batch, held = [], 0
    return written + write_objects(database, batch)


def _refuse_older(store: DurableStore, database: Database, sealed: Sealed, record: bytes, force: bool) -> bool:
    """Whether the very same generation is stored and whole; raises GenerationError for one as new or newer."""
    session = sealed.header.session
    with database.read() as txn:
        same = store.context.sessions.record(database, txn, session) == record
        stored = store.context.sessions.generation(database, txn, session)
    whole = store.status(session).state == "available"
    if same and whole:
        return True
    if whole and stored >= sealed.header.generation and not force:
        raise GenerationError(session, stored, sealed.header.generation)
    return False


def _record_to_export(store: DurableStore, manifest: SessionManifest) -> bytes:
    """The stored record; sealed anew when responses were deleted since, so that they do not travel."""
    database, context = store.database(), store.context
    with database.read() as txn:
        record = context.sessions.record(database, txn, manifest.session)
    if record is None:
        raise SessionMissingError(manifest.session)
    sealed = context.sessions.open(record, context.require_origin)
    if sealed.manifest == manifest:
        return record
    header = sealed.header.model_copy(update={"response_records": len(manifest.responses),
                                              "generation": manifest.generation})
    return seal(header, manifest, context.key)


def _entries_of(database: Database, digests: list[bytes]) -> bytes:
    packed = []
    with database.read() as txn:
        for digest in digests:
            entry = entry_of(database, txn, digest)
            if entry is None:
                raise ObjectMissingError(digest)
            packed.append(digest + entry.pack(digest))
    return b"".join(packed)


def _entries(data: bytes, sealed: Sealed) -> dict[bytes, ObjectEntry]:
    if len(data) % _ITEM:
        raise ArchiveError("the archive's list of objects is damaged")
    entries = {data[at:at + 32]: ObjectEntry.unpack(data[at:at + 32], data[at + 32:at + _ITEM])
               for at in range(0, len(data), _ITEM)}
    if set(entries) != set(sealed.manifest.objects()):
        raise ArchiveError("the archive's list of objects is not what its session needs")
    return entries


def _add(tar: tarfile.TarFile, name: str, data: Buffer) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o600
    tar.addfile(info, io.BytesIO(data))


def _member(tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], name: str, size: int | None = None) -> bytes:
    """The bytes of the next member, which has to be the plain file `name` (of `size` bytes)."""
    info = next(members, None)
    if info is None or info.name != name or not info.isreg():
        raise ArchiveError(f"the archive has no {name} where it belongs")
    if info.size != size and (size is not None or info.size > _LARGEST_SMALL_MEMBER):
        raise ArchiveError(f"{name} of the archive has {info.size} bytes, not {size}")
    handle = tar.extractfile(info)
    data = handle.read() if handle is not None else b""
    if len(data) != info.size:
        raise ArchiveError("the archive is cut short")
    return data


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
