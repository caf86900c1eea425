"""What every route needs, in one value; and the small steps that generating routes share."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.runtime.api import EngineApi, Finished
from ninfer_engine.server.body import parse_object, read_body
from ninfer_engine.server.errors import ApiError
from ninfer_engine.server.metrics import Metrics
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.output import Delta
from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.runs import Runs

P = ParamSpec("P")
R = TypeVar("R")

INLINE_BYTES = 2048  # a body of so many bytes costs half a millisecond of template and tokenizer at most


MOST_BODY_BYTES = 64 * 2**20
BODY_BYTES, TOKEN_BYTES = 4 * 2**20, 32  # of whatever a request says beside its prompt; of a token of that


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the HTTP surface. admission_grace_s: how long a stream waits for a refusal before it opens with 200."""

    max_body_bytes: int = MOST_BODY_BYTES
    keepalive_s: float = 5.0
    admission_grace_s: float = 0.25

    @classmethod
    def of(cls, max_context: int) -> "Limits":
        """Of a server whose prompts have at most so many tokens. What is read of a body keeps others waiting, so it may
        be no longer than a prompt that could run, generously written."""
        return cls(max_body_bytes=min(MOST_BODY_BYTES, BODY_BYTES + TOKEN_BYTES * max_context))


@dataclass(frozen=True, slots=True)
class Context:
    """The server's parts. max_context: longest prompt plus reply that the engine takes; it does not change."""

    engine: EngineApi
    model: ServedModel
    flags: EngineFlags
    log: RequestLog
    metrics: Metrics
    runs: Runs
    limits: Limits
    max_context: int

    @property
    def most_requests(self) -> int:
        """Requests that run and wait at once."""
        return self.flags.max_concurrency + self.flags.max_pending_requests


def context(request: Request) -> Context:
    """The context of the app that a request came to."""
    found: Context = request.scope["app"].context
    return found


async def json_body(request: Request) -> dict[str, Any]:
    """The request's JSON object, within the body limit. Raises request_too_large and invalid_json."""
    raw = await read_body(request, context(request).limits.max_body_bytes)
    request.state.small = len(raw) <= INLINE_BYTES
    return await prepared(request, parse_object, raw)


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


async def prepared(request: Request, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run what grows with a body (reading it, template, tokenizer) off the event loop, so that status and streams go
    on; for a small body (see INLINE_BYTES) at once, since another thread would take longer to begin than that takes."""
    if request.state.small:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
