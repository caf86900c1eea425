"""POST /v1/completions: text or token ids in, text out, no chat template."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ninfer_engine.runtime.api import Finished, GenerationRequest
from ninfer_engine.server.chat_schema import CompletionRequest, parse_completion, prompt_tokens
from ninfer_engine.server.choices import Choices, Part, requests_for, run_all, start_stream
from ninfer_engine.server.context import (
    Context,
    Whole,
    arrived,
    check_model,
    context,
    json_body,
    now_unix,
    prepared,
)
from ninfer_engine.server.errors import ApiError, invalid
from ninfer_engine.server.formats import constraint
from ninfer_engine.server.identity import take_identity
from ninfer_engine.server.items import new_id
from ninfer_engine.server.json_reply import JsonReply
from ninfer_engine.server.logprobs import TextLogprobs
from ninfer_engine.server.output import TextDelta
from ninfer_engine.server.prompt import Prompt
from ninfer_engine.server.reply import Reply, finish_reason
from ninfer_engine.server.runs import RunEndedError
from ninfer_engine.server.sampling import reply_limit
from ninfer_engine.server.sse import DONE, EventStream, event
from ninfer_engine.server.usage import chat_usage

DEFAULT_MAX_TOKENS = 16  # of the public API


@dataclass(frozen=True, slots=True)
class _Job:
    create: CompletionRequest
    requests: list[GenerationRequest]
    replies: list[Reply]
    head: dict[str, Any]

    @property
    def logged(self) -> bool:
        """Log-probabilities were asked for."""
        return self.create.logprobs is not None


async def create_completion(request: Request) -> Response:
    """Make a completion, whole or as a stream."""
    ctx = context(request)
    job = await _prepare(request, ctx)
    if job.create.stream:
        choices = await start_stream(request, job.requests, job.replies)
        return EventStream(_stream(choices, job), choices.cancel, ctx.limits.keepalive_s)
    wholes = await run_all(request, job.requests, job.replies)
    return JsonReply({
        **job.head,
        "choices": [_whole(job, index, whole) for index, whole in enumerate(wholes)],
        "usage": chat_usage([whole.finished for whole in wholes], job.replies),
        "ninfer": wholes[0].finished.record,
    })


async def _prepare(request: Request, ctx: Context) -> _Job:
    body = await json_body(request)
    session = take_identity(request, body)
    create = parse_completion(body)
    check_model(ctx, create.model)
    tokens = prompt_tokens(create.prompt, ctx.model.tokenizer.size, ctx.max_context)
    if tokens is None:
        tokens = await prepared(request, ctx.model.tokenizer.encode, create.prompt)
    if not tokens:
        raise invalid("prompt must not be empty", "prompt")
    limit = reply_limit(create.max_tokens, DEFAULT_MAX_TOKENS, len(tokens), ctx.max_context)
    wanted = create.format()
    prompt = Prompt(tuple(tokens))
    generation = GenerationRequest(
        request_id=request.state.request_id,
        tokens=prompt.tokens,
        sampling=create.sampling(limit, ctx.model, create.logprobs),
        arrived=arrived(request),
        session=session,
        cache_salt=create.cache_salt or "",
        constraint=await constraint(ctx.model, prompt, wanted=wanted),
    )
    requests = requests_for(generation, create.n or 1, ctx.most_requests)
    replies = [Reply(ctx.model, {}, stops=create.stop or (), plain=True) for _ in requests]
    head = {"id": new_id("cmpl"), "object": "text_completion", "created": now_unix(), "model": create.model}
    return _Job(create, requests, replies, head)


def _whole(job: _Job, index: int, whole: Whole) -> dict[str, Any]:
    texts = [delta for delta in whole.deltas if isinstance(delta, TextDelta)]
    text = "".join(delta.text for delta in texts)
    logs = [log for delta in texts for log in delta.logs]
    made = _choice(index, text, TextLogprobs().take(logs, text) if job.logged else None,
                   finish_reason(whole.finished, job.replies[index]))
    return made | ({"ninfer": whole.finished.record} if len(job.requests) > 1 else {})


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


class _Chunks:
    """The chunks of a stream."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._logs = [TextLogprobs() for _ in job.requests]
        self._finished: dict[int, Finished] = {}

    def add(self, item: Part) -> list[dict[str, Any]]:
        """The chunks of one part."""
        match item.part:
            case TextDelta(text=text, logs=logs):
                told = self._logs[item.index].take(logs, text) if self._job.logged else None
                return [{**self._job.head, "choices": [_choice(item.index, text, told, None)]}]
            case Finished():
                return self._end(item.index, item.part)
            case _:
                return []  # a completion is text and nothing else

    def _end(self, index: int, finished: Finished) -> list[dict[str, Any]]:
        """The last of a choice; after the last choice, the usage when asked for. `ninfer` stands on the last chunk."""
        job = self._job
        self._finished[index] = finished
        end = {**job.head, "choices": [_choice(index, "", None, finish_reason(finished, job.replies[index]))]}
        if len(self._finished) < len(job.requests):
            return [end]
        ninfer = {"ninfer": self._finished[0].record}
        options = job.create.stream_options
        if options is None or not options.include_usage:
            return [end | ninfer]
        usage = chat_usage([self._finished[one] for one in range(len(job.requests))], job.replies)
        return [end, {**job.head, "choices": [], "usage": usage, **ninfer}]


async def _stream(choices: Choices, job: _Job) -> AsyncGenerator[bytes, None]:
    chunks = _Chunks(job)
    try:
        async for made in choices.parts():
            yield b"".join(event(chunk) for item in made for chunk in chunks.add(item))
        yield DONE
    except RunEndedError as ended:
        error = ended.as_api_error()
        if isinstance(error, ApiError):
            yield event(error.body())
    except ApiError as error:
        yield event(error.body())
