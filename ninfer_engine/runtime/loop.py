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
from ninfer_engine.runtime.collector import Collector
from ninfer_engine.runtime.scheduler import Scheduler

logger = logging.getLogger("ninfer.engine")
T = TypeVar("T")

STEP_LIMIT_S = 120.0  # one step is one prefill chunk and one decode step: seconds at the worst, never minutes


class EngineLoop:
    """Runs the scheduler until stopped. `failed` holds what killed it, if anything did."""

    def __init__(
        self, scheduler: Scheduler, after_step: Callable[[], None], step_limit_s: float | None = None
    ) -> None:
        self._scheduler = scheduler
        self._after_step = after_step
        self._step_limit_s = STEP_LIMIT_S if step_limit_s is None else step_limit_s
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = False
        self._beat = time.monotonic()
        self._busy = False
        self._collector = Collector()
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
        return self._thread.is_alive() and self.failed is None and not self.wedged

    @property
    def wedged(self) -> bool:
        """The thread has been busy with one piece of work for longer than any takes."""
        return self._busy and time.monotonic() - self._beat > self._step_limit_s

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
        self._collector.take_over()
        try:
            while not self._stopping:
                if self._scheduler.idle:
                    self._collector.idle()
                self._take(block=self._scheduler.idle)
                self._beat = time.monotonic()
                if not self._scheduler.idle:
                    self._scheduler.step()
                    self._collector.step()
                self._after_step()
        except BaseException as error:  # /health must tell, and clients must hear
            self.failed = error
            logger.exception("the engine thread failed")
        finally:
            self._busy = False
            reason = "the engine failed: see its log" if self.failed else "the engine is stopping"
            self._scheduler.abort_all(ErrorCode.ENGINE_UNAVAILABLE, reason)
            self._drain()
            self._collector.hand_back()

    def _take(self, *, block: bool) -> None:
        """Run what others handed over; with nothing else to do, wait for it."""
        if block:
            self._busy = False
            work = self._inbox.get()
            # The beat comes first: a reader between the two must not see a busy thread with an old beat.
            self._beat = time.monotonic()
            self._busy = True
            work()
        while True:
            try:
                work = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._beat = time.monotonic()
            work()

    def _drain(self) -> None:
        """After the end: answer callers that came too late, and do not leave them waiting."""
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return
