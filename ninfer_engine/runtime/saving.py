"""Saving a session: name what it stands on between two steps, write it from a thread of its own.

A save holds nothing in memory. It knows pages and images by ids that are never used again, and each is pinned only
while its bytes are copied; so a slow disk delays the save and nothing else. When memory gives something up before it
was written, the save begins anew with what is there, and what the stored generation has of the rest stays in it.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ninfer_engine.context.types import Lineage
from ninfer_engine.contract.checkpoints import SaveReply
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.memory.errors import UnknownIdError
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.errors import StoreError
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.memory.store.saving import PendingObject, SaveResult
from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.loop import EngineLoop
from ninfer_engine.runtime.manifests import Describer
from ninfer_engine.runtime.merging import Room, merged, trimmed, why_not_restorable
from ninfer_engine.runtime.opened import OpenedStore
from ninfer_engine.runtime.pacing import Pacer
from ninfer_engine.runtime.responses import ResponseStore

logger = logging.getLogger("ninfer.sessions")

_ATTEMPTS = 4
_HALF_LIFE_S = 86_400.0  # of the worth of a stored session that nobody uses


@dataclass(frozen=True, slots=True)
class Saved:
    """A finished save: the reply, and the generation as it lies in the store."""

    reply: SaveReply
    manifest: SessionManifest


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a session stands on, as it was between two steps; `stall_s` is how long those waited."""

    lineage: Lineage
    stall_s: float


class Saver:
    """Writes sessions. `save` runs in one thread at a time, never in the engine's."""

    def __init__(self, opened: OpenedStore, driver: CacheDriver, responses: ResponseStore, loop: EngineLoop,
                 most_responses: int) -> None:
        self._opened = opened
        self._driver = driver
        self._responses = responses
        self._loop = loop
        self._most_responses = most_responses
        self._room = Room.of(driver.brain.capacities)

    def save(self, session: str, explicit: bool, live: Collection[str], used: Callable[[str], float | None]) -> Saved:
        """Write the next generation. An explicit save is refused when not all of it could be restored here; others are
        cut to what could. live: never reclaimed; used: seconds since a session was last used here.

        Raises EngineRefusedError nothing_to_save, checkpoint_unavailable with the reason.
        """
        stall = 0.0
        for _ in range(_ATTEMPTS):
            taken = self._loop.call(lambda: self._take(session)).result()
            stall = max(stall, taken.stall_s)
            try:
                return self._write(session, explicit, taken, stall, live, used)
            except UnknownIdError:
                logger.info("memory gave up a page of a session before it was written: the save begins anew",
                            extra={"session": session[:16]})
            except StoreError as error:
                raise EngineRefusedError(ErrorCode.CHECKPOINT_UNAVAILABLE, str(error)) from error
        raise EngineRefusedError(ErrorCode.CHECKPOINT_UNAVAILABLE,
                                 "memory gave the session up again and again before it was written: save it again when "
                                 "fewer sessions compete, or raise --kv-capacity or --host-kv-mib")

    def _write(self, session: str, explicit: bool, taken: _Taken, stall: float, live: Collection[str],
               used: Callable[[str], float | None]) -> Saved:
        store = self._opened.store
        responses = self._responses.of_session(session)
        if not responses and not taken.lineage.checkpoints:
            raise EngineRefusedError(ErrorCode.NOTHING_TO_SAVE,
                                     "the session has no stored response here: nothing to save")
        described = Describer(self._opened.names, self._driver.pages, self._driver.images,
                              Pacer(lambda: self._driver.running > 0).step).describe(
            session, taken.lineage, responses, ())
        fresh = described.manifest
        reason = why_not_restorable(fresh, self._room)
        if reason is not None and explicit:
            raise EngineRefusedError(ErrorCode.CHECKPOINT_UNAVAILABLE, reason)
        if reason is not None:
            logger.warning("session saved in part", extra={"session": session[:16], "reason": reason})
            fresh = trimmed(fresh, self._room)
        before = _stored(store, session)
        if before is not None:
            fresh = merged(fresh, before, self._room, self._most_responses)
        result = self._commit(fresh, described.objects, live, used)
        reply = SaveReply(
            session_sha256=session, mode="explicit" if explicit else "automatic", generation=result.generation,
            bytes=result.session_bytes, frontier_tokens=fresh.frontier_tokens,
            response_records=len(fresh.responses), written_bytes=result.written_bytes, engine_stall_s=stall)
        return Saved(reply, fresh)

    def _commit(self, manifest: SessionManifest, objects: Mapping[bytes, PendingObject], live: Collection[str],
                used: Callable[[str], float | None]) -> SaveResult:
        store = self._opened.store
        return store.save(manifest, objects, cheapest_first(store, self._driver, used), live)

    def _take(self, session: str) -> _Taken:
        started = time.perf_counter()
        lineage = self._driver.brain.lineage_of(session, time.monotonic())
        return _Taken(lineage, time.perf_counter() - started)


def cheapest_first(store: DurableStore, driver: CacheDriver, used: Callable[[str], float | None]) -> list[str]:
    """Stored sessions by what dropping them is expected to cost a byte: recomputing the deepest frontier, the less
    likely the longer nobody has used the session."""
    now = time.time()

    def worth(age_s: float, frontier: int, size: int) -> float:
        recompute: float = driver.brain.costs.prefill_ns(0, frontier)
        return float(recompute * 0.5 ** (age_s / _HALF_LIFE_S) / max(1, size))

    worths = []
    for header in store.headers():
        seen = used(header.session)
        age = max(0.0, now - header.saved_unix_ms / 1000) if seen is None else seen
        worths.append((worth(age, header.frontier_tokens, header.bytes), header.session))
    return [session for _, session in sorted(worths)]


def _stored(store: DurableStore, session: str) -> SessionManifest | None:
    """The generation that lies there, when it is whole; anything else is replaced as it is."""
    try:
        return store.load(session)
    except StoreError:
        return None
