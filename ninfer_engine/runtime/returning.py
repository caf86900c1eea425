"""A request whose checkpoints memory has given up waits until the store has brought them back, where that pays.

This is how two sessions that fit only one at a time take turns, each resuming where it was.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.lineages import deepest_stored
from ninfer_engine.runtime.loop import EngineLoop
from ninfer_engine.runtime.opened import OpenedStore
from ninfer_engine.runtime.restoring import Restorer
from ninfer_engine.runtime.sequence import Sequence

logger = logging.getLogger("ninfer.sessions")


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """What the store is known to hold of a session: frontiers by the names of their images, bytes of pages, images."""

    images: dict[bytes, int]
    size: int


class Returner:
    """Knows what the store holds of the sessions that were saved or restored here. reader: the thread of restores;
    restore: brings a session back, called there."""

    def __init__(self, opened: OpenedStore, driver: CacheDriver, loop: EngineLoop, restorer: Restorer,
                 reader: Executor, restore: Callable[[str], object]) -> None:
        self._opened = opened
        self._driver = driver
        self._loop = loop
        self._restorer = restorer
        self._reader = reader
        self._restore = restore
        self._lock = threading.Lock()
        self._on_disk: dict[str, _OnDisk] = {}

    def note(self, manifest: SessionManifest) -> None:
        """The store holds this generation."""
        known = _OnDisk({record.image: record.frontier_tokens for record in manifest.checkpoints},
                        self._restorer.page_bytes(manifest))
        with self._lock:
            self._on_disk[manifest.session] = known

    def forget(self, session: str) -> None:
        """The store holds nothing of it."""
        with self._lock:
            self._on_disk.pop(session, None)

    def queue(self, sequence: Sequence, add: Callable[[Sequence], None]) -> None:
        """On the engine thread: `add` a sequence; when memory has given up what it continues and the store may have
        that, only after it was looked into and, where it pays, brought back. What the client waited is restored_s."""
        request = sequence.request
        with self._lock:
            known = self._on_disk.get(request.session or "")
        here = 0 if known is None else self._resumable(sequence)
        if known is None or not any(here < frontier < len(request.tokens) for frontier in known.images.values()):
            add(sequence)
            return
        started = time.monotonic()

        def come_back() -> None:
            waited = time.monotonic() - started
            sequence.request = replace(sequence.request, restored_s=sequence.request.restored_s + waited)
            add(sequence)

        def hand_over(_: "Future[None]") -> None:
            self._loop.call(come_back).add_done_callback(refuse_if_lost)

        def refuse_if_lost(queued: "Future[None]") -> None:
            if queued.cancelled() or queued.exception() is not None:
                sequence.refuse(ErrorCode.ENGINE_UNAVAILABLE, "the engine is stopping")

        self._reader.submit(self._bring_back, sequence, known).add_done_callback(hand_over)

    def _bring_back(self, sequence: Sequence, known: _OnDisk) -> None:
        """Restore the sequence's session, if that is predicted to be quicker than computing what memory lacks."""
        request, costs = sequence.request, self._driver.brain.costs
        here = self._loop.call(lambda: self._resumable(sequence)).result()
        there = deepest_stored(TokenArray.of(request.tokens), self._opened.names(request.cache_salt), known.images)
        if here >= there or request.session is None:
            return
        count = len(request.tokens)
        recompute = costs.prefill_ns(here, count - here) - costs.prefill_ns(there, count - there)
        restore = self._restorer.restore_ns(known.size)
        logger.info("memory gave up what a request continues", extra={
            "request_id": request.request_id, "here": here, "in_store": there, "predicted_restore_ns": restore,
            "predicted_recompute_ns": recompute, "decision": "restore" if restore < recompute else "recompute"})
        if restore < recompute:
            self._restore(request.session)

    def _resumable(self, sequence: Sequence) -> int:
        return self._driver.brain.resumable(TokenArray.of(sequence.request.tokens), sequence.request.cache_salt)
