"""POST /v1/completions: text or token ids in, text out, no chat template."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ninfer_engine.runtime.api import Finished, GenerationRequest
from ninfer_engine.server.chat_schema import CompletionRequest, parse_completion, prompt_tokens
from ninfer_engine.server.context import (
    Context,
    arrived,
    check_model,
    context,
    in_thread,
    json_body,
    now_unix,
    run_to_end,
    start_stream,
)
from ninfer_engine.server.errors import ApiError, invalid
from ninfer_engine.server.identity import take_identity
from ninfer_engine.server.items import new_id
from ninfer_engine.server.output import TextDelta
from ninfer_engine.server.reply import Reply, finish_reason, parts
from ninfer_engine.server.response_builder import ninfer_object
from ninfer_engine.server.runs import EndedBy, Run, RunEndedError
from ninfer_engine.server.sampling import reply_limit
from ninfer_engine.server.sse import DONE, EventStream, event
from ninfer_engine.server.usage import chat_usage

DEFAULT_MAX_TOKENS = 16  # of the public API


@dataclass(frozen=True, slots=True)
class _Job:
    create: CompletionRequest
    generation: GenerationRequest
    reply: Reply
    head: dict[str, Any]


async def create_completion(request: Request) -> Response:
    """Make a completion, whole or as a stream."""
    ctx = context(request)
    job = await _prepare(request, ctx)
    if job.create.stream:
        run = await start_stream(request, job.generation)
        chunks = _stream(ctx, run, job)
        return EventStream(chunks, lambda: run.cancel(EndedBy.CLIENT_GONE), ctx.limits.keepalive_s)
    whole = await run_to_end(request, job.generation, job.reply)
    text = "".join(delta.text for delta in whole.deltas if isinstance(delta, TextDelta))
    return JSONResponse({
        **job.head,
        "choices": [_choice(text, finish_reason(whole.finished, job.reply))],
        "usage": chat_usage(whole.finished, 0),
        "ninfer": ninfer_object(whole.finished.record),
    })


async def _prepare(request: Request, ctx: Context) -> _Job:
    body = await json_body(request)
    session = take_identity(request, body)
    create = parse_completion(body)
    check_model(ctx, create.model)
    tokens = prompt_tokens(create.prompt, ctx.model.tokenizer.size)
    if tokens is None:
        tokens = await in_thread(ctx.model.tokenizer.encode, create.prompt)
    if not tokens:
        raise invalid("prompt must not be empty", "prompt")
    limit = reply_limit(create.max_tokens, DEFAULT_MAX_TOKENS, len(tokens), ctx.max_context)
    generation = GenerationRequest(
        request_id=request.state.request_id,
        tokens=tuple(tokens),
        sampling=create.sampling(limit, ctx.model.eos_token_ids),
        arrived=arrived(request),
        session=session,
        cache_salt=create.cache_salt or "",
    )
    reply = Reply(ctx.model, {}, stops=create.stop or (), plain=True)
    head = {"id": new_id("cmpl"), "object": "text_completion", "created": now_unix(), "model": create.model}
    return _Job(create, generation, reply, head)


def _choice(text: str, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


async def _stream(ctx: Context, run: Run, job: _Job) -> AsyncIterator[bytes]:
    try:
        async for part in parts(ctx.engine, run, job.reply):
            if isinstance(part, TextDelta):
                yield event({**job.head, "choices": [_choice(part.text, None)]})
            elif isinstance(part, Finished):
                for chunk in _last(job, part):
                    yield event(chunk)
        yield DONE
    except RunEndedError as ended:
        error = ended.as_api_error()
        if isinstance(error, ApiError):
            yield event(error.body())
    except ApiError as error:
        yield event(error.body())


def _last(job: _Job, finished: Finished) -> list[dict[str, Any]]:
    ninfer = {"ninfer": ninfer_object(finished.record)}
    end = {**job.head, "choices": [_choice("", finish_reason(finished, job.reply))]}
    options = job.create.stream_options
    if options is None or not options.include_usage:
        return [end | ninfer]
    return [end, {**job.head, "choices": [], "usage": chat_usage(finished, 0), **ninfer}]
