"""What every route needs, in one value; and the small steps that generating routes share."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.runtime.api import EngineApi, Finished, GenerationRequest
from ninfer_engine.server.body import read_json
from ninfer_engine.server.errors import ApiError
from ninfer_engine.server.metrics import Metrics
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.output import Delta
from ninfer_engine.server.reply import Reply, parts
from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.runs import Run, RunEndedError, Runs, cancelled_when_client_leaves

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the HTTP surface. admission_grace_s: how long a stream waits for a refusal before it opens with 200."""

    max_body_bytes: int = 64 * 1024 * 1024
    keepalive_s: float = 5.0
    admission_grace_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Context:
    """The server's parts."""

    engine: EngineApi
    model: ServedModel
    flags: EngineFlags
    log: RequestLog
    metrics: Metrics
    runs: Runs
    limits: Limits

    @property
    def max_context(self) -> int:
        """Longest prompt plus reply that the running engine takes."""
        return self.engine.status().runtime.max_context


def context(request: Request) -> Context:
    """The context of the app that a request came to."""
    found: Context = request.app.state.context
    return found


async def json_body(request: Request) -> dict[str, Any]:
    """The request's JSON object, within the body limit."""
    return await read_json(request, context(request).limits.max_body_bytes)


def arrived(request: Request) -> float:
    """`time.monotonic()` at the request's arrival."""
    return float(getattr(request.state, "arrived", None) or time.monotonic())


def check_model(ctx: Context, asked: str) -> None:
    """Raises model_not_found for any model but the one served."""
    if asked != ctx.model.model_id:
        raise no_such_model(ctx)


def no_such_model(ctx: Context) -> ApiError:
    """The 404 for another model's name."""
    return ApiError(
        ErrorCode.MODEL_NOT_FOUND, f"the model does not exist; this server has {ctx.model.model_id}", "model"
    )


def now_unix() -> int:
    """Unix seconds, for `created` fields."""
    return int(time.time())


@dataclass(frozen=True, slots=True)
class Whole:
    """A reply that ran to its end."""

    deltas: list[Delta]
    finished: Finished


async def run_to_end(request: Request, generation: GenerationRequest, reply: Reply) -> Whole:
    """Run a generation whose reply is sent in one piece. The client's leaving ends it at once."""
    ctx = context(request)
    run = ctx.runs.start(request, replace(generation, together=not reply.watches_for_stops), stream=False)
    deltas: list[Delta] = []
    finished: Finished | None = None
    try:
        async with cancelled_when_client_leaves(request, run):
            async for part in parts(ctx.engine, run, reply):
                if isinstance(part, Finished):
                    finished = part
                else:
                    deltas.append(part)
    except RunEndedError as ended:
        raise ended.as_api_error() from None
    assert finished is not None, "events end in Finished or raise"  # noqa: S101
    return Whole(deltas, finished)


async def start_stream(request: Request, generation: GenerationRequest) -> Run:
    """Start a generation whose reply is streamed. Raises ApiError when the engine refuses it at once."""
    ctx = context(request)
    run = ctx.runs.start(request, generation, stream=True)
    await run.begun(ctx.limits.admission_grace_s)
    return run


async def in_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run template and tokenizer work off the event loop, so that status and streams go on."""
    return await asyncio.to_thread(work, *args, **kwargs)
