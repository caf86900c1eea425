"""Bringing a saved session back while other requests go on.

Three short visits to the engine thread frame the reading: reserve room, publish, or give the room back. In between a
thread of its own reads, verifies and fills, one object at a time; nobody can resume from what is not whole yet, since
the brain hears of it last.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ninfer_engine.context.errors import ContextError
from ninfer_engine.context.reserving import Reservation
from ninfer_engine.context.types import Released, Tier
from ninfer_engine.contract.status import Restore
from ninfer_engine.memory.errors import PoolError
from ninfer_engine.memory.images import ImageId
from ninfer_engine.memory.pages import PageId
from ninfer_engine.memory.store.errors import SessionMissingError, StoreError
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.filling import Filling
from ninfer_engine.runtime.lineages import StoredLineage, lineage_of, read_responses
from ninfer_engine.runtime.loop import EngineLoop
from ninfer_engine.runtime.manifests import PPM
from ninfer_engine.runtime.opened import OpenedStore
from ninfer_engine.runtime.responses import ResponseStore, StoredResponse

logger = logging.getLogger("ninfer.sessions")

_SAMPLE_BYTES = 2 << 20
_BACKEND = "lmdb"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the cost model said of bringing a session's pages back."""

    restore: bool
    restore_ns: int
    recompute_ns: int


@dataclass(slots=True)
class _Incoming:
    """Room in memory for one lineage: the reservation, and new pages and images by their numbers in the lineage."""

    reservation: Reservation
    pages: dict[int, int] = field(default_factory=dict)
    images: dict[int, int] = field(default_factory=dict)

    def by_name(self, saved: StoredLineage) -> tuple[dict[bytes, PageId], dict[bytes, ImageId]]:
        """New pages and images by the names of the objects that fill them."""
        return ({saved.pages[number]: PageId(page) for number, page in self.pages.items()},
                {saved.images[number]: ImageId(image) for number, image in self.images.items()})


class Restorer:
    """Restores sessions, one at a time, in the thread that calls `restore`. `filling`: on the engine thread, how many
    restores hold pages that the brain does not know yet."""

    def __init__(self, opened: OpenedStore, driver: CacheDriver, responses: ResponseStore, loop: EngineLoop,
                 report: Callable[[Restore], None]) -> None:
        self._store = opened.store
        self._driver = driver
        self._responses = responses
        self._loop = loop
        self._report = report
        self._ns_per_byte: float | None = None
        self.filling = 0

    def restore(self, session: str, always: bool) -> SessionManifest | None:
        """The stored generation, once its responses are back, and its pages with them unless recomputing is predicted
        to be quicker (always: without asking). None: there is none, or it cannot be used; the client replays."""
        try:
            with self._store.reading(session) as manifest:
                choice = self._choose(manifest)
                bring = always or choice.restore
                if bring:
                    responses = self._bring_back(manifest, choice)
                else:
                    responses = read_responses(self._store, manifest).responses()
                    self._tell("done", choice, "recompute", 0, 0)
        except SessionMissingError:
            return None
        except (StoreError, ContextError, PoolError, EngineRefusedError) as error:
            self._report(Restore(state="failed", read_backend=_BACKEND))
            logger.warning("session not restored", extra={"session": session[:16], "reason": str(error)})
            return None
        logger.info("session restored", extra={
            "session": session[:16], "pages": bring, "predicted_restore_ns": choice.restore_ns,
            "predicted_recompute_ns": choice.recompute_ns})
        for response in responses:
            self._responses.put_back(response)
        for response_id in self._responses.deleted_ids() & {response.response_id for response in responses}:
            self._loop.call(lambda gone=response_id: self._driver.forget(gone))  # type: ignore[misc]  # default binds it
        return manifest

    # --- restore or recompute -----------------------------------------------------------------------------------

    def restore_ns(self, size: int) -> int:
        """What reading `size` bytes and moving them to the device is predicted to take, as measured so far."""
        rate = self._ns_per_byte or 1.0
        return round(size * rate) + self._driver.brain.costs.transfer_ns("h2d", 1, size)

    def measure(self, manifest: SessionManifest) -> None:
        """Time reading a few of a session's objects, unless reading was measured before. Raises StoreError."""
        if self._ns_per_byte is not None:
            return
        pages, images = _objects_of(manifest)
        sample = [*pages[:max(1, _SAMPLE_BYTES // self._driver.pages.page_bytes)], *images][:max(1, len(pages))]
        started = time.perf_counter_ns()
        done = sum(map(len, self._store.read_all(sample).values()))
        if done:
            self._ns_per_byte = (time.perf_counter_ns() - started) / done

    def _choose(self, manifest: SessionManifest) -> Choice:
        self.measure(manifest)
        restore = self.restore_ns(self.page_bytes(manifest))
        recompute = round(self._driver.brain.costs.prefill_ns(0, manifest.frontier_tokens) * expected_uses(manifest))
        return Choice(restore < recompute, restore, recompute)

    def page_bytes(self, manifest: SessionManifest) -> int:
        """Bytes of all pages and images of a session."""
        pages = len({page for record in manifest.checkpoints for page in record.pages})
        return pages * self._driver.pages.page_bytes + len(manifest.checkpoints) * self._driver.images.image_bytes

    # --- pages and images ---------------------------------------------------------------------------------------

    def _bring_back(self, manifest: SessionManifest, choice: Choice) -> list[StoredResponse]:
        """Everything into memory; the session's responses."""
        with ExitStack() as held:
            reader = None
            stored = read_responses(self._store, manifest)
            if not self._responses.of_session(manifest.session):  # a new process: all of it is wanted, so begin now
                reader = held.enter_context(self._store.read_rows(self._sections(*_objects_of(manifest))))
            saved = lineage_of(manifest, stored)
            incoming = self._loop.call(lambda: self._reserve(saved)).result()
            try:
                pages, images = incoming.by_name(saved)
                if reader is None:
                    reader = held.enter_context(self._store.read_rows(self._sections(list(pages), list(images))))
                filling = Filling(self._driver, pages, images, lambda done, total: self._tell(
                    "restoring", choice, "restore", done, total))
                reader.place_in(filling.place)
                responses = stored.responses()
                reader.wait()
                self._loop.call(lambda: self._publish(incoming)).result()
            except BaseException:
                self._loop.call(lambda: self._abandon(incoming)).exception()
                raise
        self._note_rate(filling)
        self._tell("done", choice, "restore", filling.done, filling.done)
        return responses

    def _sections(self, pages: Sequence[bytes], images: Sequence[bytes]) -> list[tuple[Sequence[bytes], int]]:
        return [(pages, self._driver.pages.page_bytes), (images, self._driver.images.image_bytes)]

    def _reserve(self, saved: StoredLineage) -> _Incoming:
        """On the engine thread: make room and keep it."""
        driver = self._driver
        plan = driver.brain.plan_restore(saved.lineage, time.monotonic())
        driver.carry_out(plan.moves)
        incoming = _Incoming(driver.brain.reserve_restore(plan))
        self.filling += 1
        try:
            count = len(plan.load_pages)
            pool = driver.pages
            fresh = pool.allocate_host(count) if plan.page_tier is Tier.HOST else pool.allocate(count)
            incoming.pages.update(zip(plan.load_pages, fresh, strict=True))
            for number, tier in plan.load_images:
                images = driver.images
                incoming.images[number] = images.allocate_host() if tier is Tier.HOST else images.allocate_device()
        except PoolError:
            self._abandon(incoming)
            raise
        return incoming

    def _publish(self, incoming: _Incoming) -> None:
        """On the engine thread: the whole lineage, as one."""
        brain = self._driver.brain
        self._driver.free(brain.restore_reserved(incoming.reservation, incoming.images, incoming.pages).released)
        self.filling -= 1

    def _abandon(self, incoming: _Incoming) -> None:
        """On the engine thread: room and bytes are free again; does nothing once published."""
        if not incoming.reservation.open:
            return
        self._driver.free(self._driver.brain.abandon_restore(incoming.reservation))
        self._driver.free(Released(tuple(incoming.pages.values()), tuple(incoming.images.values())))
        self.filling -= 1

    def _note_rate(self, filling: Filling) -> None:
        if filling.done:
            self._ns_per_byte = (time.perf_counter_ns() - filling.started) / filling.done

    def _tell(self, state: str, choice: Choice, decision: str, done: int, total: int) -> None:
        self._report(Restore.model_validate({
            "state": state, "bytes_done": done, "bytes_total": total, "read_backend": _BACKEND, "decision": decision,
            "predicted_restore_ns": choice.restore_ns, "predicted_recompute_ns": choice.recompute_ns}))


def expected_uses(manifest: SessionManifest) -> float:
    """How often the session is expected to be resumed: its siblings would each compute what was not brought back."""
    return max([1.0, *(record.weight_ppm / PPM for record in manifest.checkpoints)])


def _objects_of(manifest: SessionManifest) -> tuple[list[bytes], list[bytes]]:
    """Names of all pages and of all images, each once, in the order in which they were saved."""
    pages = dict.fromkeys(page for record in manifest.checkpoints for page in record.pages)
    return list(pages), list(dict.fromkeys(record.image for record in manifest.checkpoints))
