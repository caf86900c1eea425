"""The engine thread: the only thread that touches the model, the pools and the catalog.

Others hand it work with `call` (answered by a future) or `post`; it runs them between steps. Work that it must not wait
for (writing a save, reading a restore) is other threads' work; they come back through `call`.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.runtime.scheduler import Scheduler

logger = logging.getLogger("ninfer.engine")
T = TypeVar("T")

_STEP_LIMIT_S = 120.0  # one step is one prefill chunk and one decode step: seconds at the worst, never minutes


class EngineLoop:
    """Runs the scheduler until stopped. `failed` holds what killed it, if anything did."""

    def __init__(self, scheduler: Scheduler, after_step: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._after_step = after_step
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = False
        self._beat = time.monotonic()
        self._busy = False
        self.failed: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End every sequence with engine_unavailable and the thread with it; returns when it has ended."""
        self.post(self._mark_stopping)
        self._thread.join()

    @property
    def healthy(self) -> bool:
        """The thread lives, and its step has not hung."""
        hung = self._busy and time.monotonic() - self._beat > _STEP_LIMIT_S
        return self._thread.is_alive() and self.failed is None and not hung

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` on the engine thread between two steps; its errors are the loop's."""
        self._inbox.put(work)

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Run `work` on the engine thread between two steps; the future carries its result or error."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # whatever it is, it belongs to the caller
                future.set_exception(error)

        if not self._thread.is_alive():
            future.set_exception(EngineRefusedError(ErrorCode.ENGINE_UNAVAILABLE, "the engine has stopped"))
            return future
        self._inbox.put(run)
        return future

    def _mark_stopping(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._busy = False
                self._take(block=self._scheduler.idle)
                self._busy, self._beat = True, time.monotonic()
                if not self._scheduler.idle:
                    self._scheduler.step()
                self._after_step()
        except BaseException as error:  # /health must tell, and clients must hear
            self.failed = error
            logger.exception("the engine thread failed")
        finally:
            reason = "the engine failed: see its log" if self.failed else "the engine is stopping"
            self._scheduler.abort_all(ErrorCode.ENGINE_UNAVAILABLE, reason)
            self._drain()

    def _take(self, *, block: bool) -> None:
        """Run what others handed over; with nothing else to do, wait for it."""
        if block:
            self._inbox.get()()
        while True:
            try:
                work = self._inbox.get_nowait()
            except queue.Empty:
                return
            work()

    def _drain(self) -> None:
        """After the end: answer callers that came too late, and do not leave them waiting."""
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return
