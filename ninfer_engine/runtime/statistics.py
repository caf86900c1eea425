"""The status document, kept ready: the engine thread refreshes the pools, readers take what is there.

Counters are plain integers written by the engine thread alone; a reader on another thread sees some recent value of
each and never waits.
"""

from collections import Counter

from ninfer_engine.contract.status import (
    Cache,
    Identity,
    LastSelection,
    Restore,
    Runtime,
    StatusDocument,
)
from ninfer_engine.contract.status import Scheduler as SchedulerStatus
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.ledgers import RestoreLedger
from ninfer_engine.runtime.records import finished_event
from ninfer_engine.runtime.scheduler import Scheduler
from ninfer_engine.runtime.sequence import Phase, Sequence


class StatusBoard:
    """Holds the newest snapshot. `refresh` and `count` belong to the engine thread, `document` to anyone."""

    def __init__(self, identity: Identity, runtime: Runtime, scheduler: Scheduler, driver: CacheDriver,
                 max_pending: int) -> None:
        self._identity = identity
        self._runtime = runtime
        self._scheduler = scheduler
        self._driver = driver
        self._base = SchedulerStatus(max_concurrency=driver.concurrency, max_pending_requests=max_pending)
        self._cache = Cache()
        self._reused = 0
        self._last: LastSelection | None = None
        self._misses: Counter[str] = Counter()
        self._last_predicted = 0
        self._restore = Restore()
        self.restores = RestoreLedger()
        self._seen = -1
        self.refresh()

    def count(self, sequence: Sequence) -> None:
        """Take a finished sequence into the counters."""
        record = finished_event(sequence, "cancelled").record
        if sequence.plan is None:
            return
        self._reused += record.reused_tokens
        self._last = LastSelection(path=record.path, frontier_tokens=record.frontier_tokens)
        self._last_predicted = record.plan.predicted_total_ns
        if record.miss_reason is not None:
            self._misses[record.miss_reason.value] += 1

    def refresh(self) -> None:
        """Read the pools anew."""
        self._seen = self._driver.brain.version
        self._cache = self._driver.occupancy().model_copy(update={
            "reused_prompt_tokens": self._reused,
            "last_selection": self._last,
            "last_materialization_predicted_nanoseconds": self._last_predicted,
            "misses": dict(self._misses),
        })

    def refresh_if_changed(self) -> None:
        """As `refresh`, when the catalog has changed since: most steps decode and change nothing there."""
        if self._driver.brain.version != self._seen:
            self.refresh()

    def tell_restore(self, restore: Restore) -> None:
        """How far a restore is; from any thread."""
        self.restores.note(restore)
        self._restore = restore

    def document(self, *, healthy: bool) -> StatusDocument:
        """The status document now: the newest cache snapshot and the live queue."""
        running = list(self._scheduler.running)
        phases = Counter(sequence.phase for sequence in running)
        return StatusDocument(
            status="ok" if healthy else "failed",
            identity=self._identity,
            runtime=self._runtime,
            scheduler=self._base.model_copy(update={
                "running": len(running),
                "prefilling": phases[Phase.PREFILLING],
                "decode_ready": phases[Phase.DECODING],
                "waiting": len(self._scheduler.waiting),
                "materializing": 1 if self._restore.state == "restoring" else 0,
                "computed_prefill_tokens": self._scheduler.computed_prefill_tokens,
                "committed_decode_tokens": self._scheduler.committed_decode_tokens,
            }),
            cache=self._cache,
            restore=self._restore,
        )
