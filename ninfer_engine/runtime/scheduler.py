"""Who runs next: first come, first served; one prefill chunk, then one decode step of everyone, and again.

A prefill chunk and a decode step alternate, and a decode step that is due comes between two layers of a chunk. So a
long prompt delays a token of a running reply by one layer of a chunk, or by a few steps where these take longer. A
request is admitted when the driver can reserve its whole life. Another choice of the same prompt waits at the head
until the first choice's prompt is in memory, and then resumes there. While the head waits for pages, a request behind
it starts only with a proof that nobody ahead of it starts later for that (`context.backfill`); chunks go to the earlier
in the queue, whoever was admitted first.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable

from ninfer_engine.context.splits import with_marks
from ninfer_engine.context.types import CheckpointKind
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.runtime.api import ConstraintError, FinishReason, Token
from ninfer_engine.runtime.backfilling import Backfill
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.durations import Stopwatch
from ninfer_engine.runtime.executor import Executor
from ninfer_engine.runtime.pacing import DecodeTurns
from ninfer_engine.runtime.sequence import Phase, Sequence

logger = logging.getLogger("ninfer.engine")


class Scheduler:
    """The queue and the running sequences. Every method is called by the engine thread alone."""

    def __init__(
        self,
        executor: Executor,
        driver: CacheDriver,
        concurrency: int,
        prefill_chunk: int,
        pending_timeout_s: float,
        on_done: Callable[[Sequence, FinishReason], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._driver = driver
        self._concurrency = concurrency
        self._prefill_chunk = prefill_chunk
        self._pending_timeout_s = pending_timeout_s
        self._on_done = on_done
        self._clock = clock
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.computed_prefill_tokens = 0
        self.committed_decode_tokens = 0
        self.backfilled = 0
        self.gaps = Stopwatch()
        self._turns = DecodeTurns(clock)
        self._backfill = Backfill(driver, concurrency)
        self._places = itertools.count()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        sequence.place = next(self._places)
        self.waiting.append(sequence)

    @property
    def idle(self) -> bool:
        """Nothing to do until something is added."""
        return not self.waiting and not self.running

    def step(self) -> None:
        """Reap, admit, one prefill chunk, one decode step."""
        self._reap()
        self._admit()
        self._prefill()
        self._decode()

    def abort_all(self, code: ErrorCode, message: str) -> None:
        """End every sequence with an error: the engine stops or has failed."""
        for sequence in [*self.running, *self.waiting]:
            if sequence.phase is not Phase.WAITING:
                self._driver.release(sequence)
            sequence.refuse(code, message)
        self.running.clear()
        self.waiting.clear()

    def _reap(self) -> None:
        """Drop what its client left, and what waited too long."""
        now = self._clock()
        for sequence in [sequence for sequence in self.running if sequence.cancelled]:
            self.running.remove(sequence)
            self._finish(sequence, "cancelled")
        for sequence in [sequence for sequence in self.running if sequence.ended and sequence.output]:
            self._end(sequence, "stop")
        kept: deque[Sequence] = deque()
        for sequence in self.waiting:
            waited = now - sequence.clock.arrived - sequence.request.restored_s
            if sequence.cancelled:
                sequence.phase = Phase.DONE
            elif waited > self._pending_timeout_s and not self._follows_a_prefill(sequence):
                sequence.refuse(ErrorCode.REQUEST_QUEUE_TIMEOUT,
                                f"waited {waited:.1f} s for a place, the limit is "
                                f"{self._pending_timeout_s:.1f} s: try again, or raise --pending-timeout-ms")
            else:
                kept.append(sequence)
        self.waiting = kept

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._concurrency:
            head = self.waiting[0]
            if self._follows_a_prefill(head) or not self._start(head):
                break
        while (ahead := self._backfill.choose(self.running, self.waiting)) is not None and self._start(ahead):
            self.backfilled += 1

    def _start(self, sequence: Sequence) -> bool:
        """Admit one of the queue, if the driver has room for it."""
        self._backfill.note(sequence)
        if not self._driver.admit(sequence):
            return False
        self.waiting.remove(sequence)
        if sequence.splits:
            last = sequence.prompt_tokens - 1
            sequence.splits = list(with_marks(sequence.splits, sequence.request.marks, sequence.computed, last))
        sequence.clock.admitted = self._clock() - sequence.clock.plan_s - sequence.clock.restore_s
        sequence.phase = Phase.PREFILLING
        self.running.append(sequence)
        self._settle_prefill(sequence)
        return True

    def _follows_a_prefill(self, sequence: Sequence) -> bool:
        """Its prompt is being computed by another choice of the same request."""
        leader = sequence.request.follows
        return leader is not None and any(
            one.phase is Phase.PREFILLING and one.request.request_id == leader for one in self.running)

    def _prefill(self) -> None:
        """One chunk of the sequence that was queued first, up to its next split.

        Chunks end on multiples of their length, wherever the sequence resumed: so a resumed and a cold prefill split at
        the same places from there on.
        """
        sequence = min((one for one in self.running if one.phase is Phase.PREFILLING), key=lambda one: one.place,
                       default=None)
        if sequence is None:
            return
        stop = sequence.splits[0].frontier if sequence.splits else sequence.prompt_tokens - 1
        end = min(stop, (sequence.computed // self._prefill_chunk + 1) * self._prefill_chunk)
        count = end - sequence.computed
        self._executor.prefill(sequence, count, self._decode_when_due)
        self.computed_prefill_tokens += count
        if sequence.splits and sequence.computed == stop:
            self._driver.publish(sequence, sequence.splits.pop(0).kind)
        self._settle_prefill(sequence)

    def _settle_prefill(self, sequence: Sequence) -> None:
        """All but the last prompt token are in memory: from here on it decodes."""
        if sequence.computed == sequence.prompt_tokens - 1:
            sequence.phase = Phase.DECODING
            sequence.clock.prefilled = self._clock()

    def _decode_when_due(self) -> None:
        """Between two layers of a chunk."""
        if self._turns.due:
            self._decode()

    def _decode(self) -> None:
        batch = [sequence for sequence in self.running if sequence.phase is Phase.DECODING]
        if batch:
            with self._turns.step():
                self._decode_each(batch)

    def _decode_each(self, batch: list[Sequence]) -> None:
        logits = self._executor.decode(batch)
        for sequence, row in zip(batch, logits, strict=True):
            if sequence.computed == sequence.prompt_tokens:
                self.computed_prefill_tokens += 1
            try:
                token = sequence.sampler.choose(row, self._executor.draw)
            except (ConstraintError, RuntimeError) as error:
                self._fail(sequence, error)
            else:
                self._commit(sequence, token)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """No next token can be chosen: this request ends with an error, its neighbours go on."""
        self.running.remove(sequence)
        self._driver.release(sequence)
        if isinstance(error, ConstraintError):
            sequence.refuse(ErrorCode.INVALID_REQUEST, str(error))
        else:
            logger.error("no token could be chosen", exc_info=error, extra={"request_id": sequence.request.request_id})
            sequence.refuse(ErrorCode.INTERNAL_ERROR, "no token could be chosen: the model's output is not a number")

    def _commit(self, sequence: Sequence, token: Token) -> None:
        sequence.tokens.append(token.token_id)
        self.committed_decode_tokens += 1
        now, clock = self._clock(), sequence.clock
        if clock.first_token is None:
            clock.first_token = now
        else:
            self.gaps.observe(now - clock.last_token)
        clock.last_token = now
        stopped = token.token_id in sequence.request.sampling.stop_token_ids
        full = len(sequence.tokens) >= sequence.longest
        sequence.say(token)
        if stopped or full:
            self._end(sequence, "stop" if stopped else "length")

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """A whole reply: its end is what forks resume from."""
        self.running.remove(sequence)
        self._driver.publish(sequence, CheckpointKind.ENDPOINT)
        self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Free everything first, then tell: when the last event arrives, the status document is already true."""
        self._driver.release(sequence)
        sequence.phase = Phase.DONE
        sequence.clock.finished = self._clock()
        self._on_done(sequence, reason)
