"""The durable store: sessions saved while the engine goes on, and brought back whole or not at all.

A save writes the objects that the store lacks, each transaction bounded and durable, then the manifest in a
transaction of its own: until that one returns the last generation is what there is, whatever happens. Sessions that
share pages share them here too. Objects that no manifest refers to are dropped after a save and by `gc`.

Threads: everything may be called from any thread. One save, delete or collection runs at a time; reads never wait.
"""

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from ninfer_engine.contract.checkpoints import CheckpointStatus
from ninfer_engine.memory.store.collect import GcResult, collect_garbage
from ninfer_engine.memory.store.context import StoreContext
from ninfer_engine.memory.store.database import Database
from ninfer_engine.memory.store.envelope import Header, Sealed, differing_parts
from ninfer_engine.memory.store.errors import (
    ObjectDamagedError,
    SessionMissingError,
    StoreCorruptError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.memory.store.objects import raw_object, remove_object
from ninfer_engine.memory.store.opening import open_database
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.memory.store.readahead import read_ahead
from ninfer_engine.memory.store.reading import RowReader, Verifier, entries_of, read_objects, reading_rows
from ninfer_engine.memory.store.saving import PendingObject, SaveResult, drop_session, save_generation


class DurableStore:
    """One store directory, bound to a fingerprint. Use `open`."""

    def __init__(self, context: StoreContext) -> None:
        self.context = context
        self._opened: Database | None = None
        self._open_lock = threading.Lock()
        self._failed: dict[str, str] = {}

    @classmethod
    def open(cls, directory: Path, fingerprint: Mapping[str, str], quota_bytes: int,
             origin_key: OriginKey | None = None, require_origin_auth: bool = False) -> Self:
        """The store in `directory`, made if it is not there. Never raises for what it finds: a store that cannot be
        used says so in `status`, and each call tries anew.

        fingerprint: named parts of whatever a saved session depends on (model digest, dtypes, layout, format).
        origin_key: `OriginKey.from_api_key(...)`. require_origin_auth: refuse what that key did not sign; raises
        StoreIncompatibleError without a key.
        """
        key = origin_key or OriginKey.from_secret(None)
        if require_origin_auth and not key.signs:
            raise StoreIncompatibleError("--session-checkpoint-require-origin-auth needs an API key to check against: "
                                         "set --api-key-file", ("origin",))
        store = cls(StoreContext.of(directory, dict(fingerprint), quota_bytes, key, require_origin_auth))
        try:
            store.database()
        except StoreError:
            return store
        return store

    def bound_to(self, fingerprint: Mapping[str, str]) -> Self:
        """The same open files, seen by another configuration. Only this one is to be closed."""
        other = type(self)(replace(self.context, fingerprint=dict(fingerprint)))
        other._opened = self.database()
        return other

    def close(self) -> None:
        """Close the files; a later call opens them again."""
        with self._open_lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def database(self) -> Database:
        """The open database; raises StoreError when there is none to be had."""
        with self._open_lock:
            if self._opened is not None and self._opened.lost:
                lost, self._opened = self._opened, None
                lost.close()
            if self._opened is None:
                self._opened = open_database(self.context.place)
            return self._opened

    # --- save ---------------------------------------------------------------------------------------------------

    def missing(self, digests: Iterable[bytes]) -> set[bytes]:
        """Which of these objects the store lacks (or holds under a signature that does not count here)."""
        database = self.database()
        with database.read() as txn:
            return {digest for digest in digests if not self.context.holds(database, txn, digest)}

    def save(self, manifest: SessionManifest, objects: Mapping[bytes, PendingObject],
             reclaim: Sequence[str] = (), live: Collection[str] = ()) -> SaveResult:
        """Write one generation of a session. Blocks on the disk: call it outside every engine lock.

        objects: every object that the manifest refers to and that may be missing; only missing ones are read, one
        after another, at most 4 MiB of them held at once. reclaim: sessions that may be dropped for room, least
        valuable first; `live` ones, those being read and this one are left alone. Responses deleted meanwhile are
        left out. Raises QuotaError or StoreUnavailableError before anything is written when it cannot fit,
        StoreUnavailableError when the disk fails on the way, ObjectMissingError when `objects` lacks one that the
        store lacks too, StoreIncompatibleError when a newer engine wrote the stored generation.
        """
        database = self.database()
        database.prepare_write()
        with self.context.place.writing():
            order = [name for name in reclaim if name not in live]
            return save_generation(self.context, database, manifest, objects, order)

    # --- read ---------------------------------------------------------------------------------------------------

    def status(self, session: str) -> CheckpointStatus:
        """What the store holds of a session. Never raises: trouble is a state with its reason."""
        try:
            sealed = self._unsealed(session)
        except SessionMissingError:
            return CheckpointStatus(session_sha256=session, state="missing", reason="never saved, or deleted")
        except StoreIncompatibleError as error:
            return CheckpointStatus(session_sha256=session, state="incompatible", reason=str(error))
        except StoreCorruptError as error:
            return CheckpointStatus(session_sha256=session, state="corrupt", reason=str(error))
        except StoreError as error:
            return CheckpointStatus(session_sha256=session, state="unavailable", reason=str(error))
        if session in self._failed:
            return CheckpointStatus(session_sha256=session, state="unavailable",
                                    reason=f"{self._failed[session]}; the next restore tries again")
        return CheckpointStatus(
            session_sha256=session, state="available", generation=sealed.header.generation,
            bytes=sealed.header.bytes, response_records=len(sealed.manifest.responses),
            frontier_tokens=sealed.header.frontier_tokens)

    def load(self, session: str) -> SessionManifest:
        """The stored generation, without responses deleted since. Raises SessionMissingError, StoreIncompatibleError,
        StoreCorruptError (damage is set aside), StoreUnavailableError."""
        return self._unsealed(session).manifest

    def read(self, digest: bytes) -> bytearray:
        """An object's bytes, verified: exactly those that are returned. Raises ObjectMissingError, StoreCorruptError
        (the damaged object is set aside), StoreIncompatibleError (origin), StoreUnavailableError."""
        return self.read_all([digest])[digest]

    def read_all(self, digests: Sequence[bytes]) -> dict[bytes, bytearray]:
        """Small objects at once; raises as `read`."""
        database = self.database()
        with self._setting_aside(database):
            return read_objects(database, digests, self._verifier)

    @contextmanager
    def read_rows(self, sections: Sequence[tuple[Sequence[bytes], int]]) -> Iterator[RowReader]:
        """Lists of objects, each list's of one size, to be placed as verified rows of bytes. Reading begins at once,
        in threads. Raises as `read`."""
        database = self.database()
        with self._setting_aside(database), reading_rows(database, sections, self._verifier) as reader:
            yield reader

    def read_many(self, digests: Sequence[bytes], ahead_bytes: int = 64 << 20) -> Iterator[tuple[bytes, bytearray]]:
        """Objects in order, read and verified ahead by two threads, about `ahead_bytes` ahead at most.

        Raises as `read`, when the object's turn comes. Closing the iterator stops the threads.
        """
        return read_ahead(self.read, digests, ahead_bytes)

    @contextmanager
    def reading(self, session: str) -> Iterator[SessionManifest]:
        """A session's stored generation, kept from being reclaimed while inside; raises as `load`, but for objects that
        are not there. That the disk failed inside is remembered
        for `status` until a later reading goes well."""
        with self.context.readers.hold(session):
            try:
                yield self._unsealed(session, need_objects=False).manifest  # reading them tells
            except StoreUnavailableError as error:
                self._failed[session] = str(error)
                raise
        self._failed.pop(session, None)

    def sessions(self) -> list[str]:
        """Every stored session, sorted."""
        database = self.database()
        with database.read() as txn:
            return self.context.sessions.names(database, txn)

    def headers(self) -> list[Header]:
        """What the stored sessions say of themselves, unverified; those that cannot be read are left out."""
        database, found = self.database(), []
        with database.read() as txn:
            for name in self.context.sessions.names(database, txn):
                record = self.context.sessions.record(database, txn, name) or b""
                with contextlib.suppress(ValidationError):
                    found.append(Header.model_validate_json(record.split(b"\n", 1)[0]))
        return found

    def used_bytes(self) -> int:
        """Bytes of the quota in use; kept across restarts."""
        database = self.database()
        with database.read() as txn:
            return self.context.sessions.used(database, txn)

    # --- change -------------------------------------------------------------------------------------------------

    def delete(self, session: str) -> bool:
        """Forget a session, and what only it kept; whether there was one."""
        database = self.database()
        database.prepare_write()
        with self.context.place.writing():
            return drop_session(self.context, database, session, frozenset())

    def forget_response(self, session: str, response_id: str) -> None:
        """A response was deleted: durable at once, so that no restore or import brings it back."""
        database = self.database()
        database.prepare_write()
        with database.write() as txn:
            self.context.sessions.note_deleted(database, txn, session, response_id)

    def gc(self) -> GcResult:
        """Drop what no session keeps (a crash during a save leaves such things) and count the bytes anew."""
        database = self.database()
        database.prepare_write()
        with self.context.place.writing():
            for session in self.sessions():
                self.status(session)  # sets damaged records aside
            return collect_garbage(database, self.context.sessions)

    # --- inside -------------------------------------------------------------------------------------------------

    def _unsealed(self, session: str, need_objects: bool = True) -> Sealed:
        database, context = self.database(), self.context
        with database.read() as txn:
            record = context.sessions.record(database, txn, session)
            damage = context.sessions.damage(database, txn, session)
            deleted = context.sessions.deleted(database, txn, session)
        if record is None:
            raise StoreCorruptError(damage) if damage else SessionMissingError(session)
        try:
            sealed = context.sessions.open(record, context.require_origin)
        except StoreCorruptError as error:
            self._set_record_aside(database, session, record, str(error))
            raise
        if sealed.header.session != session:
            raise StoreCorruptError("the record under this session's name is another session's")
        parts = differing_parts(sealed.header.fingerprint, context.fingerprint)
        if parts:
            raise StoreIncompatibleError(f"the session was saved with another {', '.join(parts)}: "
                                         "start the engine that saved it, or replay", parts)
        if need_objects:
            self._need_objects(database, sealed.manifest)
        return Sealed(header=sealed.header, manifest=sealed.manifest.without_responses(deleted))

    def _need_objects(self, database: Database, manifest: SessionManifest) -> None:
        with self._setting_aside(database), database.read() as view:
            entries_of(view, list(manifest.objects()))

    @property
    def _verifier(self) -> Verifier:
        return Verifier(self.context.key, self.context.require_origin)

    @contextmanager
    def _setting_aside(self, database: Database) -> Iterator[None]:
        """A damaged object that is found inside is kept for inspection and is no object any more."""
        try:
            yield
        except ObjectDamagedError as error:
            self._set_object_aside(database, error.digest)
            raise

    def _set_object_aside(self, database: Database, digest: bytes) -> None:
        if database.readonly:
            return
        self.context.place.set_aside(f"object-{digest.hex()}", raw_object(database, digest))
        with database.write() as txn:
            remove_object(database, txn, digest)

    def _set_record_aside(self, database: Database, session: str, record: bytes, reason: str) -> None:
        if database.readonly:
            return
        self.context.place.set_aside(f"session-{session}", record)
        with database.write() as txn:
            if self.context.sessions.record(database, txn, session) == record:  # no newer save came between
                self.context.sessions.set_aside(database, txn, session, reason)
