"""Sessions that outlive the process: save, automatic save, restore, delete. What callers use; the work is done in
saving.py and restoring.py, in one thread each, and the step loop waits for neither.
"""

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ninfer_engine.contract.checkpoints import CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.status import Restore
from ninfer_engine.memory.store.errors import StoreError
from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.ledgers import SaveLedger
from ninfer_engine.runtime.loop import EngineLoop
from ninfer_engine.runtime.opened import OpenedStore
from ninfer_engine.runtime.responses import ResponseStore, StoredResponse
from ninfer_engine.runtime.restoring import Restorer
from ninfer_engine.runtime.returning import Returner
from ninfer_engine.runtime.saving import Saver
from ninfer_engine.runtime.sequence import Sequence

logger = logging.getLogger("ninfer.sessions")

_NICE = 10  # at 19 a save of 80 MB took 12 s on a machine that others had filled, at 10 it takes its tenth
_SWITCH_S = 0.0005  # Python's own is 5 ms: a step that asks for the interpreter lock would wait that long for a save
_LIVE_S = 600.0  # a session used within so many seconds is never reclaimed
_SESSION = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Limits:
    """min_tokens: a stored turn of so many is saved by itself. most_responses: a session keeps no more in the store."""

    min_tokens: int
    most_responses: int


class Sessions:
    """Saves and restores. Public methods may be called from any thread; without a store each says so."""

    def __init__(self, opened: OpenedStore | None, driver: CacheDriver, responses: ResponseStore, loop: EngineLoop,
                 report: Callable[[Restore], None], limits: Limits) -> None:
        self._opened = opened
        self._driver = driver
        self._responses = responses
        self._loop = loop
        self._min_tokens = limits.min_tokens
        self.ledger = SaveLedger()
        self._saver = Saver(opened, driver, responses, loop, limits.most_responses) if opened else None
        self._restorer = Restorer(opened, driver, responses, loop, report) if opened else None
        self._writer = ThreadPoolExecutor(1, "session-save", _give_way)
        self._reader = ThreadPoolExecutor(1, "session-restore")
        self._keeper = ThreadPoolExecutor(1, "session-upkeep", _give_way)
        self._forgetter = ThreadPoolExecutor(1, "session-forget")  # a client waits for it
        self._returner = (Returner(opened, driver, loop, self._restorer, self._reader,
                                   lambda session: self._restore(session, True))
                          if opened and self._restorer else None)
        self._lock = threading.Lock()
        self._queued: set[str] = set()
        self._restoring: dict[str, Future[bool]] = {}
        self._used: dict[str, float] = {}
        self._dirty: dict[str, None] = {}

    @property
    def holding(self) -> int:
        """On the engine thread: restores under way, whose pages nobody but they account for."""
        return self._restorer.filling if self._restorer else 0

    def start(self, restore: Iterable[str] = ()) -> None:
        """Once the engine thread runs: drop what a killed save left, in the background, and bring sessions back."""
        if self._opened is None:
            return
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        self._keeper.submit(self._driver.pages.populate)
        self._keeper.submit(self._driver.images.populate)
        self._keeper.submit(self._collect)
        for session in restore:
            self._restoring[session] = self._reader.submit(self._restore, session, True)

    # --- save ---------------------------------------------------------------------------------------------------

    def save(self, session: str) -> "Future[SaveReply]":
        """Save now. The future raises EngineRefusedError: nothing_to_save, checkpoint_unavailable."""
        return self._writer.submit(self._save, session, True)

    def stored(self, response: StoredResponse) -> None:
        """A response was stored: its session is live, and saved by itself when the turn is long enough."""
        session = response.session
        if session is None:
            return
        with self._lock:
            self._used[session] = time.monotonic()
            self._dirty[session] = None
            if self._opened is None or len(response.tokens) < self._min_tokens or session in self._queued:
                return
            self._queued.add(session)
        self._writer.submit(self._save_quietly, session)

    def save_all(self) -> None:
        """Save every session that changed since its last save, longest unused first; returns when they are on disk.
        What cannot be saved is logged."""
        if self._opened is None:
            return
        with self._lock:
            sessions = sorted(self._dirty, key=lambda session: self._used.get(session, 0.0))
        for done in [self._writer.submit(self._save_quietly, session) for session in sessions]:
            done.result()

    def close(self) -> None:
        """Wait for what is being written and stop."""
        for threads in (self._writer, self._reader, self._keeper, self._forgetter):
            threads.shutdown()
        if self._opened is not None:
            self._opened.store.close()

    def _save_quietly(self, session: str) -> None:
        with self._lock:
            self._queued.discard(session)
        try:
            self._save(session, False)
        except EngineRefusedError as error:
            logger.warning("session not saved", extra={"session": session[:16], "reason": error.message})
        except Exception:
            logger.exception("session not saved", extra={"session": session[:16]})

    def _save(self, session: str, explicit: bool) -> SaveReply:
        with self.ledger.save(explicit) as counted:
            counted.reply = reply = self._write(session, explicit)
        return reply

    def _write(self, session: str, explicit: bool) -> SaveReply:
        if self._saver is None or self._restorer is None or self._returner is None:
            raise _no_store()
        with self._lock:
            self._dirty.pop(session, None)
        try:
            saved = self._saver.save(session, explicit, self._live(), self._unused_s)
        except EngineRefusedError as error:
            if error.code is not ErrorCode.NOTHING_TO_SAVE:
                with self._lock:
                    self._dirty[session] = None
            raise
        self._returner.note(saved.manifest)
        try:
            self._restorer.measure(saved.manifest)
        except StoreError as error:
            logger.warning("the store cannot be read", extra={"reason": str(error)})
        return saved.reply

    def _live(self) -> set[str]:
        with self._lock:
            return {session for session in self._used if (self._seconds_since(session) or 0.0) < _LIVE_S}

    def _unused_s(self, session: str) -> float | None:
        with self._lock:
            return self._seconds_since(session)

    def _seconds_since(self, session: str) -> float | None:
        used = self._used.get(session)
        return None if used is None else time.monotonic() - used

    # --- restore ------------------------------------------------------------------------------------------------

    def restore(self, session: str) -> "Future[bool]":
        """Bring a session back; callers that come while it is being read share one restore."""
        with self._lock:
            running = self._restoring.get(session)
            if running is None or running.done():
                running = self._restoring[session] = self._reader.submit(self._restore, session, False)
            return running

    def _restore(self, session: str, always: bool) -> bool:
        if self._restorer is None or self._returner is None:
            return False
        self._writer.submit(lambda: None).result()  # what a restore pushes out of memory is on disk before it does
        manifest = self._restorer.restore(session, always)
        if manifest is None:
            return False
        self._returner.note(manifest)
        with self._lock:
            self._used[session] = time.monotonic()
        return True

    def queue(self, sequence: Sequence, add: Callable[[Sequence], None]) -> None:
        """On the engine thread: queue a sequence, once what it continues is back if the store has it."""
        if self._returner is None:
            add(sequence)
        else:
            self._returner.queue(sequence, add)

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
        if self._opened is None or self._returner is None:
            raise _no_store()
        self._returner.forget(session)
        with self._lock:
            for table in (self._used, self._dirty):
                table.pop(session, None)
        try:
            return DeleteReply(session_sha256=session, deleted=self._opened.store.delete(session))
        except StoreError as error:
            raise EngineRefusedError(ErrorCode.CHECKPOINT_UNAVAILABLE, str(error)) from error

    def forget_response(self, session: str | None, response_id: str) -> "Future[None]":
        """A response was deleted: done when that is durable, whatever is being saved, so that no restore brings it
        back. Where the store cannot be written this is said in the log."""
        return self._forgetter.submit(self._forget, session, response_id)

    def _forget(self, session: str | None, response_id: str) -> None:
        if self._opened is None or session is None:
            return
        try:
            self._opened.store.forget_response(session, response_id)
        except StoreError as error:
            logger.error("a deleted response may come back after a restart",
                         extra={"response_id": response_id, "reason": str(error)})

    def _collect(self) -> None:
        assert self._opened is not None, "asked for only with a store"  # noqa: S101
        try:
            done = self._opened.store.gc()
            logger.info("store collected", extra={"objects": done.removed_objects, "freed_bytes": done.freed_bytes})
        except StoreError as error:
            logger.warning("store not collected", extra={"reason": str(error)})
        self._measure()

    def _measure(self) -> None:
        """How fast the store reads, before the first restore has to know."""
        assert self._opened is not None, "asked for only with a store"  # noqa: S101
        assert self._restorer is not None, "there is a store"  # noqa: S101
        for session in self._opened.store.sessions():
            try:
                self._restorer.measure(self._opened.store.load(session))
            except StoreError:
                continue
            return


def _give_way() -> None:
    """Nobody waits for this thread's next millisecond: the processor is the step loop's first (Linux: per thread)."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def sessions_named(text: str | None) -> list[str]:
    """The sessions of --restore-on-start: a comma list, or a file with one a line. Raises ValueError, OSError."""
    if text is None:
        return []
    listed = text.split(",") if _SESSION.match(text.strip()) else Path(text).read_text(encoding="utf-8").splitlines()
    names = [name for name in map(str.strip, listed) if name and not name.startswith("#")]
    wrong = next((name for name in names if not _SESSION.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"--restore-on-start: {wrong[:80]!r} is not a session: 64 lowercase hex digits")
    return names


def _no_store() -> EngineRefusedError:
    return EngineRefusedError(ErrorCode.CHECKPOINT_UNAVAILABLE,
                              "the engine runs without --session-checkpoint-dir: nothing can be saved")
