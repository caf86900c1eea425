"""An engine without a model: it keeps the contract of EngineApi, says what a script says, and misbehaves by name."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto

from ninfer_engine.contract.checkpoints import CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.diagnostics import (
    LogMaterialization,
    LogResult,
    LogTimings,
    MissReason,
    NinferRecord,
    ReusePath,
)
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.status import Cache, Identity, LastSelection, Restore, Runtime, Scheduler, StatusDocument
from ninfer_engine.runtime.api import (
    ConstraintError,
    Counts,
    Durations,
    EngineRefusedError,
    Finished,
    FinishReason,
    GenerationRequest,
    Logprobs,
    RestoreCounts,
    SaveCounts,
    Token,
)
from ninfer_engine.runtime.responses import ResponseStore, StoredResponse

INSTANCE = "instance-0123456789abcdef"


class Misbehaviour(Enum):
    """What the next requests meet."""

    SILENT_UNTIL_RELEASED = auto()
    """The first token does not come before `release` is set: queued, or prefilling something long."""
    TALKS_UNTIL_ENDED = auto()
    """Repeats its script for ever, until cancelled or asked to finish."""
    OVERLOADED = auto()
    QUEUE_TIMEOUT = auto()
    """Refuses after `release`, as a queue time-out does: long after the stream has opened."""
    RAISES = auto()
    RAISES_AFTER_THE_SCRIPT = auto()
    NEVER_SAYS_FINISHED = auto()
    CANNOT_RESTORE = auto()
    DEAD = auto()


class FakeEngine:
    """script: the reply's tokens for a request, end-of-turn token included if it is to be sampled."""

    def __init__(self, script: Callable[[GenerationRequest], list[int]], max_context: int = 100_000) -> None:
        self.responses = ResponseStore(1000)
        self.script = script
        self.misbehaviour: Misbehaviour | None = None
        self.release = threading.Event()
        self.started = threading.Event()
        self.ended = threading.Event()
        self.requests: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self.forgotten: list[tuple[str, str | None]] = []
        self.restores: list[str] = []
        self.saved: dict[str, list[StoredResponse]] = {}
        self.closed = 0
        self._published: dict[str, int] = {}
        self._children: Counter[str] = Counter()
        self._finish: set[str] = set()
        self._max_context = max_context
        self._computed = 0
        self._last: LastSelection | None = None

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Token | Finished]:
        self.requests.append(request)
        self.started.set()
        self._refuse(request)
        try:
            if self.misbehaviour in (Misbehaviour.SILENT_UNTIL_RELEASED, Misbehaviour.QUEUE_TIMEOUT):
                await asyncio.to_thread(self.release.wait, 30)
            if self.misbehaviour is Misbehaviour.QUEUE_TIMEOUT:
                raise EngineRefusedError(ErrorCode.REQUEST_QUEUE_TIMEOUT, "waited too long")
            said: list[int] = []
            async for token in self._say(request):
                said.append(token)
                yield Token(token, self._logs(request, token))
            if self.misbehaviour is Misbehaviour.RAISES_AFTER_THE_SCRIPT:
                raise RuntimeError("secret prompt text in a foreign message")
            if self.misbehaviour is not Misbehaviour.NEVER_SAYS_FINISHED:
                yield self._finished(request, tuple(said))
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.append(request.request_id)
            raise
        finally:
            self.ended.set()

    def _refuse(self, request: GenerationRequest) -> None:
        match self.misbehaviour:
            case Misbehaviour.OVERLOADED:
                raise EngineRefusedError(ErrorCode.SERVER_OVERLOADED, "17 requests run or wait already")
            case Misbehaviour.DEAD:
                raise EngineRefusedError(ErrorCode.ENGINE_UNAVAILABLE, "the engine thread has ended")
            case Misbehaviour.RAISES:
                raise RuntimeError("secret prompt text in a foreign message")
            case _:
                pass
        prompt = len(request.tokens)
        if prompt >= self._max_context:
            told = f"the prompt has {prompt} tokens, the limit is {self._max_context} for prompt and reply together"
            raise EngineRefusedError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, told, "input")

    async def _say(self, request: GenerationRequest) -> AsyncIterator[int]:
        """The script; under a constraint, the script as long as it is allowed, then whatever is allowed first."""
        if request.constraint is not None:
            async for token in self._constrained(request):
                yield token
            return
        count, most = 0, min(request.sampling.max_new_tokens, self._max_context - len(request.tokens))
        while True:
            for token in self.script(request):
                if count == most or request.request_id in self._finish:
                    return
                count += 1
                yield token
                await asyncio.sleep(0)
            if self.misbehaviour is not Misbehaviour.TALKS_UNTIL_ENDED:
                return

    async def _constrained(self, request: GenerationRequest) -> AsyncIterator[int]:
        assert request.constraint is not None
        matcher, script = request.constraint.start(), self.script(request)
        for count in range(request.sampling.max_new_tokens):
            allowed = matcher.allowed()
            wanted = script[count] if count < len(script) else None
            if wanted is None or (allowed is not None and not allowed[wanted]):
                script = []
                if allowed is None:
                    return
                ends = [token for token in request.sampling.stop_token_ids if allowed[token]]
                wanted = ends[0] if ends else int(allowed.argmax())
            try:
                matcher.accept(wanted)
            except ConstraintError as error:
                raise EngineRefusedError(ErrorCode.INVALID_REQUEST, str(error)) from None
            yield wanted
            await asyncio.sleep(0)
            if wanted in request.sampling.stop_token_ids or request.request_id in self._finish:
                return

    def _finished(self, request: GenerationRequest, said: tuple[int, ...]) -> Finished:
        stops = request.sampling.stop_token_ids
        stopped = request.request_id in self._finish or bool(said and said[-1] in stops)
        reason: FinishReason = "stop" if stopped else "length"
        parent = request.parent_response_id
        reused = self._published.get(parent, 0) if parent is not None else 0
        path = ReusePath.ROOT
        if parent is not None and reused:
            path = ReusePath.PRIVATE_LONG_ANCHOR if self._children[parent] else ReusePath.PRIVATE_ENDPOINT
            self._children[parent] += 1
        miss = None if reused else MissReason.NEVER_SEEN
        computed = len(request.tokens) - reused
        self._computed += computed
        self._last = LastSelection(path=path, frontier_tokens=reused)
        if request.store and request.response_id is not None:
            self._published[request.response_id] = len(request.tokens) + len(said) - 1
        return Finished(
            reason=reason,
            record=NinferRecord(
                request_id=request.request_id, path=path, frontier_tokens=reused, reused_tokens=reused,
                computed_tokens=computed, miss_reason=miss,
            ),
            log_result=LogResult(
                finish_reason=reason, prompt_tokens=len(request.tokens), completion_tokens=len(said),
                computed_prefill_tokens=computed, prefix_cache_hit_tokens=reused, prefix_reuse_path=path,
                miss_reason=miss,
            ),
            log_timings=LogTimings(prepare=0, queue=0, plan=0, restore=0, ttft=0, prefill=0, decode=0, total=0),
            log_materialization=LogMaterialization(
                predicted_now_ns=0, predicted_future_loss_ns=0, predicted_total_ns=0, targets_evaluated=1,
                planning_elapsed_ns=0, stop_reason="exact", model_optimal=True,
            ),
            output_tokens=said,
        )

    def finish(self, request_id: str) -> None:
        self._finish.add(request_id)

    def status(self) -> StatusDocument:
        return StatusDocument(
            status="failed" if self.misbehaviour is Misbehaviour.DEAD else "ok",
            identity=Identity(
                deployment_profile=None, model_id="tiny", model_artifact_sha256="0" * 64, binary_sha256="0" * 64,
                config_sha256=None, build_profile="test", engine_version="0", device="cpu", server_instance_id=INSTANCE,
            ),
            runtime=Runtime(
                public_model_id="tiny", max_context=self._max_context, kv_capacity_mode="explicit",
                kv_capacity_tokens=self._max_context, kv_cache="fp32", speculative_backend="none",
            ),
            scheduler=Scheduler(max_concurrency=1, max_pending_requests=16, computed_prefill_tokens=self._computed),
            cache=Cache(last_selection=self._last),
            restore=Restore(),
        )

    async def save_session(self, session: str) -> SaveReply:
        records = self.responses.of_session(session)
        if not records:
            raise EngineRefusedError(ErrorCode.NOTHING_TO_SAVE, "the session has no stored response")
        self.saved[session] = records
        return SaveReply(
            session_sha256=session, mode="explicit", generation=1, bytes=10, frontier_tokens=5,
            response_records=len(records), written_bytes=10, engine_stall_s=0.0,
        )

    async def checkpoint_status(self, session: str) -> CheckpointStatus:
        records = self.saved.get(session)
        return CheckpointStatus(
            session_sha256=session, state="available" if records else "missing", response_records=len(records or ())
        )

    async def delete_checkpoint(self, session: str) -> DeleteReply:
        return DeleteReply(session_sha256=session, deleted=self.saved.pop(session, None) is not None)

    async def restore_session(self, session: str) -> bool:
        self.restores.append(session)
        if self.misbehaviour is Misbehaviour.CANNOT_RESTORE:
            raise OSError("the disk is on fire")
        for record in self.saved.get(session, ()):
            self.responses.put(record)
            self._published[record.response_id] = len(record.tokens) - 1
        return session in self.saved

    async def forget_response(self, response_id: str, session: str | None) -> None:
        self.forgotten.append((response_id, session))

    @staticmethod
    def _logs(request: GenerationRequest, token: int) -> Logprobs | None:
        """Every token is as likely as its id is small."""
        top = request.sampling.logprobs
        if top is None:
            return None
        return Logprobs(-float(token), tuple((other, -float(other)) for other in range(top)))

    def wedged(self) -> bool:
        return False

    def counts(self) -> Counts:
        few, none = Durations((0.001, 0.01), (3, 2, 1), 0.5), Durations((1.0,), (0, 0), 0.0)
        return Counts(few, {"explicit": SaveCounts(none, 0, 0, 0.0, {"nothing_to_save": 2}),
                            "automatic": SaveCounts(few, 700, 70, 0.25, {})},
                      RestoreCounts(few, 900, {"restored": 6, "failed": 1}), 4)

    def healthy(self) -> bool:
        return self.misbehaviour is not Misbehaviour.DEAD

    def close(self) -> None:
        self.closed += 1
