"""POST /v1/messages and /v1/messages/count_tokens: the Anthropic shape over the same generations."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ninfer_engine.runtime.api import Finished, GenerationRequest
from ninfer_engine.server.breakpoints import marked_prompt
from ninfer_engine.server.choices import Choices, run_all, start_stream
from ninfer_engine.server.context import (
    Context,
    arrived,
    check_model,
    context,
    json_body,
    prepared,
)
from ninfer_engine.server.errors import ApiError
from ninfer_engine.server.formats import constraint
from ninfer_engine.server.identity import take_identity
from ninfer_engine.server.items import new_id
from ninfer_engine.server.json_reply import JsonReply
from ninfer_engine.server.message_builder import MessageBuilder
from ninfer_engine.server.messages_schema import MessageRequest, parse_count, parse_message
from ninfer_engine.server.output import Delta
from ninfer_engine.server.prompt import text_prompt
from ninfer_engine.server.reply import Reply
from ninfer_engine.server.runs import RunEndedError
from ninfer_engine.server.sse import EventStream, event


@dataclass(frozen=True, slots=True)
class _Job:
    create: MessageRequest
    generation: GenerationRequest
    reply: Reply
    builder: MessageBuilder


async def create_message(request: Request) -> Response:
    """Make a message, whole or as a stream."""
    ctx = context(request)
    job = await _prepare(request, ctx)
    if job.create.stream:
        choices = await start_stream(request, [job.generation], [job.reply])
        return EventStream(_stream(choices, job, request.scope["path"]), choices.cancel, ctx.limits.keepalive_s)
    [whole] = await run_all(request, [job.generation], [job.reply])
    for delta in whole.deltas:
        job.builder.add(delta)
    job.builder.finish(whole.finished, job.reply.stop_string)
    return JsonReply(job.builder.message)


async def count_tokens(request: Request) -> Response:
    """The prompt tokens that a message request of the same body would have; what that would be refused for, this is."""
    ctx = context(request)
    body = await json_body(request)
    take_identity(request, body)
    count = await prepared(request, parse_count, body)
    check_model(ctx, count.model)
    count.policy()
    count.format()
    messages = await prepared(request, count.template_messages)
    prompt = await prepared(request, text_prompt, ctx.model, messages, count.template_tools(), count.thoughts(),
                            begun=count.begun())
    return JsonReply({"input_tokens": len(prompt.tokens)})


async def _prepare(request: Request, ctx: Context) -> _Job:
    body = await json_body(request)
    session = take_identity(request, body)
    create = await prepared(request, parse_message, body)
    check_model(ctx, create.model)
    allowed, wanted, thinking = create.policy(), create.format(), create.thoughts()
    prompt, marks = await prepared(request, marked_prompt, ctx.model, create, thinking)
    generation = GenerationRequest(
        request_id=request.state.request_id,
        tokens=prompt.tokens,
        sampling=create.sampling(create.max_tokens, ctx.model),
        arrived=arrived(request),
        session=session,
        cache_salt=create.cache_salt or "",
        marks=marks,
        constraint=await constraint(ctx.model, prompt, allowed, wanted, thinking.budget),
    )
    reply = Reply(ctx.model, allowed.schemas, prompt.in_reasoning, create.stop_sequences or (),
                  parallel=allowed.parallel)
    builder = MessageBuilder(new_id("msg"), create.model, len(prompt.tokens), max(marks, default=0))
    return _Job(create, generation, reply, builder)


async def _stream(choices: Choices, job: _Job, path: str) -> AsyncGenerator[bytes, None]:
    yield _chunk(job.builder.begin())
    try:
        async for made in choices.parts():
            yield b"".join(_chunk(event) for item in made for event in _events(job, item.part))
    except RunEndedError as ended:
        error = ended.as_api_error()
        if isinstance(error, ApiError):
            yield _chunk(error.body(path))
    except ApiError as error:
        yield _chunk(error.body(path))


def _events(job: _Job, part: Delta | Finished) -> list[dict[str, Any]]:
    if isinstance(part, Finished):
        return job.builder.finish(part, job.reply.stop_string)
    return job.builder.add(part)


def _chunk(item: dict[str, Any]) -> bytes:
    return event(item, str(item["type"]))
