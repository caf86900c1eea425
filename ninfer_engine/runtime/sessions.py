"""Sessions that outlive the process: save, automatic save, restore, delete.

A save takes references on the engine thread and writes in a thread of its own; the step loop never waits for a disk. A
restore reads and verifies in that thread too and comes back to the engine thread once, to make room and publish.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ninfer_engine.context.errors import ContextError
from ninfer_engine.context.types import Lineage, RestorePlan, Tier
from ninfer_engine.contract.checkpoints import CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.contract.status import Identity, Restore
from ninfer_engine.memory.images import ImageId
from ninfer_engine.memory.pages import PageId
from ninfer_engine.memory.store.digests import ObjectNames
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.errors import QuotaError, SessionMissingError, StoreError
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.runtime.capacity import Placement
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.loop import EngineLoop
from ninfer_engine.runtime.manifests import Describer, StoredLineage, read_lineage, read_responses
from ninfer_engine.runtime.responses import ResponseStore, StoredResponse

logger = logging.getLogger("ninfer.sessions")

STORE_FORMAT = "1"


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A durable store and what its object names are keyed by."""

    store: DurableStore
    fingerprint: dict[str, str]

    def names(self, salt: str) -> ObjectNames:
        """The names of objects under a cache salt."""
        return ObjectNames(self.fingerprint, salt)


def open_store(flags: EngineFlags, identity: Identity, placement: Placement, api_key: str | None) -> OpenedStore | None:
    """The store of --session-checkpoint-dir, bound to whatever a saved session's numbers depend on; None without."""
    if flags.session_checkpoint_dir is None:
        return None
    fingerprint = {
        "model": identity.model_artifact_sha256, "dtype": placement.dtype, "kv_dtype": placement.kv_dtype,
        "device": placement.device.type, "format": STORE_FORMAT,
    }
    store = DurableStore.open(
        Path(flags.session_checkpoint_dir), fingerprint, flags.session_checkpoint_quota_mib << 20,
        OriginKey.from_api_key(api_key))
    return OpenedStore(store, fingerprint)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """References to everything that one session stands on, taken on the engine thread in `stall_s`."""

    lineage: Lineage
    responses: list[StoredResponse]
    pages: list[PageId]
    images: list[ImageId]
    stall_s: float


class Sessions:
    """Saves and restores. Public methods may be called from any thread; without a store each says so."""

    def __init__(self, opened: OpenedStore | None, driver: CacheDriver, responses: ResponseStore, loop: EngineLoop,
                 report: Callable[[Restore], None], min_tokens: int) -> None:
        self._opened = opened
        self._driver = driver
        self._responses = responses
        self._loop = loop
        self._report = report
        self._min_tokens = min_tokens
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="session-save")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="session-restore")
        self._lock = threading.Lock()
        self._queued: set[str] = set()
        self._restoring: dict[str, Future[bool]] = {}
        self._live: dict[str, float] = {}
        self.holding = 0

    # --- save ---------------------------------------------------------------------------------------------------

    def save(self, session: str) -> "Future[SaveReply]":
        """Save now. The future raises EngineRefusedError: nothing_to_save, checkpoint_unavailable."""
        return self._writer.submit(self._save, session, "explicit")

    def stored(self, response: StoredResponse) -> None:
        """A response was stored: its session is live, and saved by itself when the turn is long enough."""
        session = response.session
        if session is None:
            return
        with self._lock:
            self._live[session] = time.monotonic()
        if self._opened is None or len(response.tokens) < self._min_tokens:
            return
        with self._lock:
            if session in self._queued:
                return
            self._queued.add(session)
        self._writer.submit(self._save_quietly, session)

    def save_all(self) -> None:
        """Save every live session; returns when they are on disk. What cannot be saved is logged."""
        if self._opened is None:
            return
        with self._lock:
            sessions = sorted(self._live, key=self._live.__getitem__)
        for done in [self._writer.submit(self._save_quietly, session) for session in sessions]:
            done.result()

    def close(self) -> None:
        """Wait for what is being written and stop."""
        self._writer.shutdown()
        self._reader.shutdown()
        if self._opened is not None:
            self._opened.store.close()

    def _save_quietly(self, session: str) -> None:
        with self._lock:
            self._queued.discard(session)
        try:
            self._save(session, "automatic")
        except EngineRefusedError as error:
            logger.warning("session not saved", extra={"session": session[:16], "reason": error.message})

    def _save(self, session: str, mode: str) -> SaveReply:
        opened = self._need_store(ErrorCode.CHECKPOINT_UNAVAILABLE)
        snapshot = self._loop.call(lambda: self._take(session)).result()
        try:
            if not snapshot.responses and not snapshot.lineage.checkpoints:
                raise EngineRefusedError(ErrorCode.NOTHING_TO_SAVE,
                                         "the session has no stored response here: nothing to save")
            described = Describer(opened.names, self._driver.pages, self._driver.images).describe(
                session, snapshot.lineage, snapshot.responses, ())
            result = opened.store.save(described.manifest, described.objects, self._oldest_first(), set(self._live))
        except (QuotaError, StoreError) as error:
            raise EngineRefusedError(ErrorCode.CHECKPOINT_UNAVAILABLE, str(error)) from error
        finally:
            self._loop.call(lambda: self._let_go(snapshot))
        return SaveReply(
            session_sha256=session, mode="explicit" if mode == "explicit" else "automatic",
            generation=result.generation, bytes=result.session_bytes,
            frontier_tokens=described.manifest.frontier_tokens, response_records=len(described.manifest.responses),
            written_bytes=result.written_bytes, engine_stall_s=snapshot.stall_s,
        )

    def _take(self, session: str) -> _Snapshot:
        started = time.perf_counter()
        lineage = self._driver.brain.lineage_of(session, time.monotonic())
        pages = [PageId(page) for page in {page for record in lineage.checkpoints for page in record.pages}]
        images = [ImageId(record.image) for record in lineage.checkpoints]
        self._driver.pages.retain(pages)
        self._driver.images.retain(images)
        self.holding += 1
        responses = self._responses.of_session(session)
        return _Snapshot(lineage, responses, pages, images, time.perf_counter() - started)

    def _let_go(self, snapshot: _Snapshot) -> None:
        self._driver.pages.release(snapshot.pages)
        self._driver.images.release(snapshot.images)
        self.holding -= 1

    def _oldest_first(self) -> list[str]:
        """Sessions of the store that may go for room, least valuable first: those that this process never saw, then
        by when it last saw them."""
        assert self._opened is not None, "only asked while saving"  # noqa: S101
        return sorted(self._opened.store.sessions(), key=lambda session: self._live.get(session, 0.0))

    # --- restore ------------------------------------------------------------------------------------------------

    def restore(self, session: str) -> "Future[bool]":
        """Bring a session back; callers that come while it is being read share one restore."""
        with self._lock:
            running = self._restoring.get(session)
            if running is None or running.done():
                running = self._restoring[session] = self._reader.submit(self._restore, session)
            return running

    def _restore(self, session: str) -> bool:
        """True when the session is back. Trouble is logged and answered as a miss: the client replays."""
        if self._opened is None:
            return False
        store = self._opened.store
        try:
            with store.reading(session) as manifest:
                responses = read_responses(store, manifest)
                saved = read_lineage(store, manifest, responses)
                data = self._read_bytes(store, session, saved)
            self._loop.call(lambda: self._bring_back(saved, data)).result()
        except SessionMissingError:
            return False
        except (StoreError, ContextError, EngineRefusedError) as error:
            self._report(Restore(state="failed", read_backend="lmdb"))
            logger.warning("session not restored", extra={"session": session[:16], "reason": str(error)})
            return False
        for response in responses:
            self._responses.put_back(response)
        with self._lock:
            self._live[session] = time.monotonic()
        return True

    def _read_bytes(self, store: DurableStore, session: str, saved: StoredLineage) -> dict[bytes, bytearray]:
        """Every page and image of the session, verified, with the status document told of the progress."""
        total = store.status(session).bytes
        done = 0
        found: dict[bytes, bytearray] = {}
        for digest, data in store.read_many(list(dict.fromkeys((*saved.pages, *saved.images)))):
            found[digest] = data
            done += len(data)
            self._report(Restore(state="restoring", bytes_done=done, bytes_total=max(total, done),
                                 read_backend="lmdb"))
        self._report(Restore(state="done", bytes_done=done, bytes_total=done, read_backend="lmdb"))
        return found

    def _bring_back(self, saved: StoredLineage, data: dict[bytes, bytearray]) -> None:
        """On the engine thread: make room, fill pages and images, publish them as one."""
        driver = self._driver
        plan = driver.brain.plan_restore(saved.lineage, time.monotonic())
        driver.carry_out(plan.moves)
        pages = self._load_pages(plan, saved, data)
        images = self._load_images(plan, saved, data)
        driver.free(driver.brain.restore_lineage(plan, images, pages).released)

    def _load_pages(self, plan: RestorePlan, saved: StoredLineage, data: dict[bytes, bytearray]) -> dict[int, int]:
        """New pages by the numbers that the lineage's records use."""
        pool, count = self._driver.pages, len(plan.load_pages)
        fresh = pool.allocate_host(count) if plan.page_tier is Tier.HOST else pool.allocate(count)
        for number, page in zip(plan.load_pages, fresh, strict=True):
            pool.import_(page, data[saved.pages[number]])
        return dict(zip(plan.load_pages, fresh, strict=True))

    def _load_images(self, plan: RestorePlan, saved: StoredLineage, data: dict[bytes, bytearray]) -> dict[int, int]:
        """New images by the numbers that the lineage's records use."""
        pool = self._driver.images
        loaded: dict[int, int] = {}
        for number, tier in plan.load_images:
            image = pool.allocate_host() if tier is Tier.HOST else pool.allocate_device()
            pool.import_(image, data[saved.images[number]])
            loaded[number] = image
        return loaded

    # --- the rest -----------------------------------------------------------------------------------------------

    def status(self, session: str) -> CheckpointStatus:
        """What the store holds of a session; reads the store, so not for the event loop."""
        if self._opened is None:
            return CheckpointStatus(session_sha256=session, state="unavailable",
                                    reason="the engine runs without --session-checkpoint-dir")
        return self._opened.store.status(session)

    def delete(self, session: str) -> "Future[DeleteReply]":
        """Forget a session in the store."""
        return self._writer.submit(self._delete, session)

    def _delete(self, session: str) -> DeleteReply:
        opened = self._need_store(ErrorCode.CHECKPOINT_UNAVAILABLE)
        self._live.pop(session, None)
        try:
            return DeleteReply(session_sha256=session, deleted=opened.store.delete(session))
        except StoreError as error:
            raise EngineRefusedError(ErrorCode.CHECKPOINT_UNAVAILABLE, str(error)) from error

    def forget_response(self, session: str | None, response_id: str) -> None:
        """A response was deleted: durable at once, so that no restore brings it back."""
        if self._opened is not None and session is not None:
            store = self._opened.store
            self._writer.submit(store.forget_response, session, response_id)

    def _need_store(self, code: ErrorCode) -> OpenedStore:
        if self._opened is None:
            raise EngineRefusedError(code, "the engine runs without --session-checkpoint-dir: nothing can be saved")
        return self._opened
