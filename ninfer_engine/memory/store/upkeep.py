"""Looking after a store by hand: list it, verify every byte, repair what can be repaired."""

from collections.abc import Callable
from dataclasses import dataclass

from ninfer_engine.contract.checkpoints import CheckpointStatus
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.errors import (
    ObjectMissingError,
    SessionMissingError,
    StoreCorruptError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.memory.store.opening import rebuild
from ninfer_engine.memory.store.saving import save_generation


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a full read of the store found. damaged: objects set aside; orphans: objects that no session keeps."""

    sessions: tuple[CheckpointStatus, ...]
    objects: int
    bytes_read: int
    damaged: tuple[str, ...]
    orphans: int

    @property
    def whole(self) -> bool:
        """Whether every byte is as it was written and every session can be restored or is another engine's."""
        return not self.damaged and all(status.state in ("available", "incompatible") for status in self.sessions)


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair did: whether the file could be kept, sessions cut back to the checkpoints that are whole, sessions
    that had none, bytes freed."""

    file_kept: bool
    cut_back: tuple[str, ...]
    given_up: tuple[str, ...]
    freed_bytes: int


def list_sessions(store: DurableStore) -> list[CheckpointStatus]:
    """The status of every stored session."""
    return [store.status(session) for session in store.sessions()]


def verify(store: DurableStore) -> VerifyReport:
    """Read and check every object and record. Damaged ones are set aside, unless the store is read-only; those that the
    disk cannot read are named and stay."""
    database = store.database()
    with database.read() as txn:
        digests = list(database.keys(txn, "index"))
    damaged, total = [], 0
    for digest in digests:
        try:
            total += len(store.read(digest))
        except ObjectMissingError:
            continue  # dropped by a save meanwhile
        except (StoreCorruptError, StoreUnavailableError):
            damaged.append(digest.hex())
        except StoreIncompatibleError:
            continue  # whole, but signed by another key
    names = store.sessions()
    sessions = tuple(store.status(session) for session in names)
    with database.read() as txn:
        needed = {digest for kept in store.context.sessions.references(database, txn).values()
                  for digest in kept.objects}
        orphans = sum(1 for digest in database.keys(txn, "index") if digest not in needed)
    return VerifyReport(sessions, len(digests), total, tuple(damaged), orphans)


def repair(store: DurableStore) -> RepairResult:
    """Rebuild the file, verify, cut damaged sessions back to what is whole, collect garbage. Nothing whole is lost.

    Raises StoreUnavailableError while another process has the store open.
    """
    file_kept = compact(store)
    verify(store)
    database, context = store.database(), store.context
    cut_back, given_up = [], []
    with context.place.writing():
        for session in store.sessions():
            if store.status(session).state != "corrupt":
                continue
            pruned = _whole_part(store, session)
            if pruned is None:
                with database.write() as txn:
                    context.sessions.set_aside(database, txn, session, "no checkpoint of the session was whole")
                given_up.append(session)
            else:
                save_generation(context, database, pruned, {}, ())
                cut_back.append(session)
    return RepairResult(file_kept, tuple(cut_back), tuple(given_up), store.gc().freed_bytes)


def compact(store: DurableStore) -> bool:
    """Give the disk back what deleted sessions took. False: the file was damaged beyond copying and set aside."""
    store.close()
    return rebuild(store.context.place)


def prune(manifest: SessionManifest, holds: Callable[[bytes], bool]) -> SessionManifest | None:
    """The checkpoints whose whole lineage is there, and what refers to them alone; None when there is none."""
    kept: set[int] = set()
    for checkpoint in manifest.checkpoints:
        whole = all(holds(digest) for digest in (checkpoint.tokens, checkpoint.image, *checkpoint.pages))
        if whole and (checkpoint.parent is None or checkpoint.parent in kept):
            kept.add(checkpoint.number)
    if not kept:
        return None
    continuations = tuple(
        item.model_copy(update={"endpoint": item.endpoint if item.endpoint in kept else None,
                                "anchors": tuple(anchor for anchor in item.anchors if anchor in kept)})
        for item in manifest.continuations)
    return manifest.model_copy(update={
        "checkpoints": tuple(item for item in manifest.checkpoints if item.number in kept),
        "continuations": continuations,
        "responses": tuple(item for item in manifest.responses
                           if all(holds(digest) for digest in (item.document, *item.tokens))),
    })


def _whole_part(store: DurableStore, session: str) -> SessionManifest | None:
    database, context = store.database(), store.context
    with database.read() as txn:
        record = context.sessions.record(database, txn, session)
        if record is None:
            raise SessionMissingError(session)
        manifest = context.sessions.open(record, context.require_origin).manifest
        return prune(manifest, lambda digest: context.holds(database, txn, digest))
