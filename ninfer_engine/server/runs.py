"""Generations in flight: one task drives the engine for each, so that cancelling it frees the slot whatever the handler
is doing; logs and metrics of a request's end are written here, once."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Protocol

from starlette.requests import Request

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.runtime.api import EngineApi, EngineRefusedError, Finished, GenerationRequest, Token
from ninfer_engine.server.errors import ApiError, ClientGoneError, internal_error
from ninfer_engine.server.metrics import Metrics
from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.traces import NoTraces, Traces

logger = logging.getLogger("ninfer.server")


class EndedBy(StrEnum):
    """Who ended a run before its end."""

    CLIENT_GONE = "client_disconnected"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"


class RunEndedError(Exception):
    """The run was ended early; `by` says by whom."""

    def __init__(self, by: EndedBy) -> None:
        super().__init__(by.value)
        self.by = by

    def as_api_error(self) -> Exception:
        """What a reply that has not begun becomes."""
        match self.by:
            case EndedBy.CLIENT_GONE:
                return ClientGoneError()
            case EndedBy.CANCELLED:
                return ApiError(ErrorCode.INVALID_REQUEST, "the request was cancelled")
            case EndedBy.SHUTDOWN:
                return ApiError(ErrorCode.ENGINE_UNAVAILABLE, "the server is stopping; send it again elsewhere")


class Run:
    """One generation. Iterate `bursts`; `cancel` from anywhere on the event loop. response: the response object that it
    makes, as it stands, if it makes one."""

    def __init__(
        self, request: GenerationRequest, generate: AsyncIterator[Token | Finished],
        response: Mapping[str, Any] | None = None,
    ) -> None:
        self.request = request
        self.response = response
        self.prepare_s = time.monotonic() - request.arrived
        self._queue: asyncio.Queue[Token | Finished | Exception] = asyncio.Queue()
        self._begun = asyncio.Event()
        self._ended_by: EndedBy | None = None
        self.finished: Finished | None = None
        self.failure: Exception | None = None
        self.task = asyncio.create_task(self._drive(generate), name=f"run-{request.request_id[:8]}")
        self.task.add_done_callback(self._settle)

    def cancel(self, by: EndedBy) -> None:
        """End the run now; does nothing to one that has ended."""
        if not self.task.done():
            self._ended_by = self._ended_by or by
            self.task.cancel()

    async def begun(self, grace_s: float) -> None:
        """Wait for the first event, at most `grace_s`. Raises ApiError when the engine refuses within that time, so
        that a stream that cannot run gets an HTTP status instead."""
        try:
            async with asyncio.timeout(grace_s):
                await self._begun.wait()
        except TimeoutError:
            return
        if isinstance(self.failure, ApiError):
            raise self.failure

    async def bursts(self) -> AsyncIterator[list[Token | Finished]]:
        """Tokens, then Finished, in lists of what is at hand. Raises ApiError (refused or failed) or RunEndedError
        (cancelled), after what came before it."""
        last: Token | Finished | Exception | None = None
        while not isinstance(last, Finished):
            burst: list[Token | Finished] = []
            last = await self._queue.get()
            while not isinstance(last, Exception):
                burst.append(last)
                if self._queue.empty():
                    break
                last = self._queue.get_nowait()
            if isinstance(last, Finished) and last.reason == "cancelled":
                burst.pop()
                last = RunEndedError(self._ended_by or EndedBy.SHUTDOWN)
            if burst:
                yield burst
            if isinstance(last, Exception):
                raise last

    async def _drive(self, generate: AsyncIterator[Token | Finished]) -> None:
        async for event in generate:
            if isinstance(event, Finished):
                self.finished = event
            self._queue.put_nowait(event)
            self._begun.set()

    def _settle(self, task: asyncio.Task[None]) -> None:
        if not (task.cancelled() or task.exception()) and self.finished is not None:
            return
        self.failure = self._reason(task)
        self._queue.put_nowait(self.failure)
        self._begun.set()

    def _reason(self, task: asyncio.Task[None]) -> Exception:
        if task.cancelled():
            return RunEndedError(self._ended_by or EndedBy.SHUTDOWN)
        error = task.exception()
        if isinstance(error, EngineRefusedError):
            return ApiError.of(error)
        if error is not None:
            logger.error("generation failed", exc_info=error, extra={"request_id": self.request.request_id})
        return internal_error(self.request.request_id)


class Runs:
    """Every run in flight, by request id and by response id."""

    def __init__(
        self, engine: EngineApi, log: RequestLog, metrics: Metrics, traces: Traces = NoTraces()  # noqa: B008 - no state
    ) -> None:
        self._traces = traces
        self._engine = engine
        self._log = log
        self._metrics = metrics
        self._by_request: dict[str, Run] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._by_request.values()))

    def of_response(self, response_id: str, session: str | None) -> Run | None:
        """The run that is making a response, if it belongs to `session`."""
        for run in self._by_request.values():
            if run.request.response_id == response_id and run.request.session == session:
                return run
        return None

    def start(self, http: Request, request: GenerationRequest, stream: bool) -> Run:
        """Hand a request to the engine. The caller iterates the run's events and ends in `finish_with`."""
        if request.request_id in self._by_request:
            taken = "a request with this ninfer_request_id is running"
            raise ApiError(ErrorCode.INVALID_NINFER_IDENTITY, taken, "ninfer_request_id")
        route, headers = http.scope["path"], http.headers
        self._log.request_start(request, route, stream)
        run = Run(request, self._engine.generate(request), getattr(http.state, "response", None))
        self._by_request[request.request_id] = run
        http.state.logged = True
        run.task.add_done_callback(lambda _task: self._ended(run, route, headers))
        return run

    def cancel_all(self, by: EndedBy) -> None:
        """End every run."""
        for run in self:
            run.cancel(by)

    def _ended(self, run: Run, route: str, headers: Mapping[str, str]) -> None:
        request_id = run.request.request_id
        self._by_request.pop(request_id, None)
        self._trace(run, route, headers)
        if run.finished is not None:
            self._metrics.observe(run.finished.record)
            self._log.request_done(request_id, run.finished, run.prepare_s)
            return
        match run.failure:
            case RunEndedError(by=by):
                self._metrics.ended_early(by.value)
                self._log.request_error(request_id, route, by.value)
            case ApiError(code=ErrorCode.INTERNAL_ERROR as code):
                self._metrics.ended_early(code.value)
                self._log.request_error(request_id, route, code.value)
            case ApiError(code=code, status=status):
                self._metrics.ended_early(code.value)
                self._log.request_rejected(request_id, route, code.value, status)
            case _:
                pass


    def _trace(self, run: Run, route: str, headers: Mapping[str, str]) -> None:
        ended = time.time_ns()
        started = ended - round((time.monotonic() - run.request.arrived) * 1e9)
        by = run.failure.by.value if isinstance(run.failure, RunEndedError) else None
        by = run.failure.code.value if isinstance(run.failure, ApiError) else by
        try:
            self._traces.generation(run.request, route, headers, started, ended, run.finished, by)
        except Exception:
            logger.exception("trace lost", extra={"request_id": run.request.request_id})


class Cancellable(Protocol):
    """A run, or several."""

    def cancel(self, by: EndedBy) -> None:
        """End it now; does nothing to one that has ended."""


@asynccontextmanager
async def cancelled_when_client_leaves(http: Request, run: Cancellable) -> AsyncIterator[None]:
    """For replies that are not streams: the run ends when the client goes or the handler does."""
    watcher = asyncio.create_task(_watch(http.receive, run))
    try:
        yield
    finally:
        watcher.cancel()
        run.cancel(EndedBy.CLIENT_GONE)


async def _watch(receive: Any, run: Cancellable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    run.cancel(EndedBy.CLIENT_GONE)
