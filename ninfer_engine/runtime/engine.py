"""The engine as the server sees it: `EngineApi` over the engine thread, the response store and the durable sessions."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator

from ninfer_engine.contract.checkpoints import CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.contract.status import StatusDocument
from ninfer_engine.runtime.api import (
    Counts,
    EngineRefusedError,
    Finished,
    FinishReason,
    GenerationRequest,
    Token,
)
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.loop import EngineLoop
from ninfer_engine.runtime.records import finished_event
from ninfer_engine.runtime.responses import ResponseStore
from ninfer_engine.runtime.sampler import Sampler
from ninfer_engine.runtime.scheduler import Scheduler
from ninfer_engine.runtime.sequence import Channel, Clock, Phase, Sequence
from ninfer_engine.runtime.sessions import Sessions, sessions_named
from ninfer_engine.runtime.statistics import StatusBoard


class Engine:
    """Implements `runtime.api.EngineApi`. `start` before use, `close` to save live sessions and end the thread."""

    def __init__(
        self,
        flags: EngineFlags,
        scheduler: Scheduler,
        driver: CacheDriver,
        board: StatusBoard,
        sessions: Sessions,
        responses: ResponseStore,
        loop: EngineLoop,
    ) -> None:
        self.responses = responses
        self._flags = flags
        self._scheduler = scheduler
        self._driver = driver
        self._board = board
        self._sessions = sessions
        self._loop = loop
        self._ids = itertools.count(1)
        self._load = 0
        self._active: dict[str, Sequence] = {}
        self._load_lock = threading.Lock()

    def start(self) -> None:
        """Start the engine thread, and bring back the sessions of --restore-on-start while it serves."""
        self._loop.start()
        self._sessions.start(sessions_named(self._flags.restore_on_start))

    def close(self) -> None:
        """Save every live session, end what runs, stop the threads."""
        self._sessions.save_all()
        self._loop.stop()
        self._sessions.close()

    def healthy(self) -> bool:
        """The engine thread lives and steps."""
        return self._loop.healthy

    def wedged(self) -> bool:
        """The engine thread hangs in a step; see EngineApi."""
        return self._loop.wedged

    def counts(self) -> Counts:
        """What was counted since start."""
        return Counts(self._scheduler.gaps.counts(), self._sessions.ledger.counts(), self._board.restores.counts(),
                      self._scheduler.backfilled)

    def status(self) -> StatusDocument:
        """The newest snapshot."""
        return self._board.document(healthy=self.healthy())

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Token | Finished]:
        """Run one request; see EngineApi. Closing the iterator frees the request's slot."""
        sequence = self._submit(request)
        try:
            while True:
                event = await sequence.channel.receive()
                assert not isinstance(event, EngineRefusedError)  # noqa: S101  # receive raises it
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            with self._load_lock:
                self._load -= 1
                self._active.pop(request.request_id, None)
            if sequence.phase is not Phase.DONE:
                sequence.cancelled = True
                self._loop.post(lambda: None)

    def finish(self, request_id: str) -> None:
        """End a running request as if it had sampled a stop token; see EngineApi."""
        with self._load_lock:
            sequence = self._active.get(request_id)
        if sequence is not None:
            sequence.ended = True

    async def save_session(self, session: str) -> SaveReply:
        """Save now; see EngineApi."""
        return await asyncio.wrap_future(self._sessions.save(session))

    async def checkpoint_status(self, session: str) -> CheckpointStatus:
        """What the durable store holds of a session."""
        return await asyncio.to_thread(self._sessions.status, session)

    async def delete_checkpoint(self, session: str) -> DeleteReply:
        """Forget a session in the durable store."""
        return await asyncio.wrap_future(self._sessions.delete(session))

    async def restore_session(self, session: str) -> bool:
        """Bring a saved session back; see EngineApi. A caller that leaves does not end it: others may wait for it."""
        return await asyncio.shield(asyncio.wrap_future(self._sessions.restore(session)))

    async def forget_response(self, response_id: str, session: str | None) -> None:
        """A stored response was deleted by its client; see EngineApi."""
        self._loop.post(lambda: self._driver.forget(response_id))
        await asyncio.wrap_future(self._sessions.forget_response(session, response_id))

    def _submit(self, request: GenerationRequest) -> Sequence:
        if not self.healthy():
            raise EngineRefusedError(ErrorCode.ENGINE_UNAVAILABLE, "the engine does not run: see its log, restart it")
        limit = self._driver.longest_sequence(self._flags.max_context)
        prompt = len(request.tokens)
        if prompt == 0:
            raise EngineRefusedError(ErrorCode.INVALID_REQUEST, "the prompt is empty: give at least one token", "input")
        if prompt >= limit:
            raise EngineRefusedError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"the prompt has {prompt} tokens, the limit is {limit} for prompt and reply together", "input")
        matcher = None if request.constraint is None else request.constraint.start()
        most = self._flags.max_concurrency + self._flags.max_pending_requests
        with self._load_lock:
            if self._load >= most:
                raise EngineRefusedError(ErrorCode.SERVER_OVERLOADED,
                                         f"{most} requests run or wait already: try again later")
            self._load += 1
        sequence = Sequence(
            sequence_id=next(self._ids), request=request, channel=Channel(asyncio.get_running_loop()),
            clock=Clock(request.arrived), sampler=Sampler(request.sampling, request.tokens, matcher),
            tokens=list(request.tokens), room=limit,
        )
        with self._load_lock:
            self._active[request.request_id] = sequence
        self._loop.post(lambda: self._sessions.queue(sequence, self._scheduler.add))
        return sequence


def tell(board: StatusBoard, sequence: Sequence, reason: FinishReason) -> None:
    """A sequence ended: count it, refresh the snapshot, then send its last event."""
    board.count(sequence)
    board.refresh()
    sequence.tell(finished_event(sequence, reason))
