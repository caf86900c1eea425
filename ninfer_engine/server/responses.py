"""POST /v1/responses and /v1/responses/input_tokens."""

from array import array
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ninfer_engine.runtime.api import Finished, GenerationRequest
from ninfer_engine.runtime.responses import StoredResponse
from ninfer_engine.server.choices import Choices, run_all, start_stream
from ninfer_engine.server.context import (
    Context,
    arrived,
    check_model,
    context,
    json_body,
    now_unix,
    prepared,
)
from ninfer_engine.server.errors import ApiError
from ninfer_engine.server.formats import constraint
from ninfer_engine.server.identity import take_identity
from ninfer_engine.server.items import Item, new_id, stored_form
from ninfer_engine.server.json_reply import JsonReply
from ninfer_engine.server.prompt import Prompt, response_prompt
from ninfer_engine.server.reply import Reply
from ninfer_engine.server.response_builder import Event, ResponseBuilder
from ninfer_engine.server.responses_schema import CreateResponse, parse_create
from ninfer_engine.server.runs import RunEndedError
from ninfer_engine.server.sampling import reply_limit
from ninfer_engine.server.sse import EventStream, event
from ninfer_engine.server.tools import ToolPolicy, policy, shown_choice


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, understood: everything that making the response needs."""

    create: CreateResponse
    items: tuple[Item, ...]
    prompt: Prompt
    strict: tuple[str, ...]
    generation: GenerationRequest
    reply: Reply
    builder: ResponseBuilder


async def create_response(request: Request) -> Response:
    """Make a response, whole or as a stream."""
    ctx = context(request)
    job = await _prepare(request, ctx)
    request.state.response = job.builder.response
    if job.create.stream:
        choices = await start_stream(request, [job.generation], [job.reply])
        return EventStream(_stream(ctx, choices, job), choices.cancel, ctx.limits.keepalive_s)
    [whole] = await run_all(request, [job.generation], [job.reply])
    for delta in whole.deltas:
        job.builder.add(delta)
    _finish(ctx, job, whole.finished)
    return JsonReply(job.builder.response)


async def count_input_tokens(request: Request) -> Response:
    """The prompt tokens that a create of the same body would have."""
    ctx = context(request)
    job = await _prepare(request, ctx)
    return JsonReply({"object": "response.input_tokens", "input_tokens": len(job.prompt.tokens)})


async def _prepare(request: Request, ctx: Context) -> _Job:
    body = await json_body(request)
    session = take_identity(request, body)
    create = await prepared(request, parse_create, body)
    check_model(ctx, create.model)
    turn = await prepared(request, create.turn)
    choice, wanted = create.choice(), create.format()
    prompt = await response_prompt(ctx.engine, ctx.model, turn, create.previous_response_id, session, ctx.metrics,
                                   small=request.state.small)
    response_id = new_id("resp")
    salt = create.cache_salt
    if salt is None:
        salt = prompt.parent.cache_salt if prompt.parent is not None else ""
    strict = _strict(create, prompt)
    allowed = policy(prompt.tools, choice, create.parallel_tool_calls, strict)
    limit = reply_limit(create.max_output_tokens, ctx.flags.default_max_tokens, len(prompt.tokens), ctx.max_context)
    generation = GenerationRequest(
        request_id=request.state.request_id,
        tokens=prompt.tokens,
        sampling=create.sampling(limit, ctx.model, create.told_logprobs()),
        arrived=arrived(request),
        session=session,
        parent_response_id=create.previous_response_id,
        response_id=response_id,
        store=create.store is not False,
        cache_salt=salt,
        restored_s=prompt.restored_s,
        constraint=await constraint(ctx.model, prompt, allowed, wanted, turn.thinking.budget),
    )
    reply = Reply(ctx.model, allowed.schemas, prompt.in_reasoning, parallel=allowed.parallel)
    builder = ResponseBuilder(_blank(create, prompt, response_id, allowed, strict))
    return _Job(create, turn.items, prompt, strict, generation, reply, builder)


def _strict(create: CreateResponse, prompt: Prompt) -> tuple[str, ...]:
    """The strict tools of a request, or those of the response that it continues when it brings no tools."""
    if create.tools is not None:
        return tuple(tool.name for tool in create.tools if tool.strict)
    return tuple(prompt.parent.context.get("strict") or ()) if prompt.parent is not None else ()


def _blank(
    create: CreateResponse, prompt: Prompt, response_id: str, allowed: ToolPolicy, strict: tuple[str, ...]
) -> dict[str, Any]:
    """The response object before anything was said."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": now_unix(),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": prompt.instructions,
        "max_output_tokens": create.max_output_tokens,
        "metadata": create.metadata or {},
        "model": create.model,
        "output": [],
        "parallel_tool_calls": allowed.parallel,
        "previous_response_id": create.previous_response_id,
        "prompt_cache_key": create.prompt_cache_key,
        "reasoning": {"effort": create.reasoning.effort if create.reasoning else None, "summary": None},
        "safety_identifier": create.safety_identifier,
        "service_tier": "default",
        "store": create.store is not False,
        "temperature": 1.0 if create.temperature is None else create.temperature,
        "text": {"format": (create.text or {}).get("format") or {"type": "text"}},
        "tool_choice": shown_choice(create.choice()),
        "tools": [{"type": "function", "strict": tool["function"]["name"] in strict, **tool["function"]}
                  for tool in prompt.tools],
        "top_logprobs": create.top_logprobs or 0,
        "top_p": 1.0 if create.top_p is None else create.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": create.user,
    }


async def _stream(ctx: Context, choices: Choices, job: _Job) -> AsyncGenerator[bytes, None]:
    yield _chunks(job.builder.begin())
    try:
        async for made in choices.parts():
            yield b"".join(
                _chunks(_finish(ctx, job, item.part) if isinstance(item.part, Finished) else job.builder.add(item.part))
                for item in made)
    except RunEndedError:
        yield _chunks(job.builder.cancel())
    except ApiError as error:
        yield _chunks(job.builder.fail(error))


def _chunks(events: list[Event]) -> bytes:
    return b"".join(event(item, item["type"]) for item in events)


def _finish(ctx: Context, job: _Job, finished: Finished) -> list[Event]:
    """Close the response and store it. Storing comes before the reply goes out, so that a child can follow at once."""
    events = job.builder.finish(finished, job.reply)
    if not job.generation.store:
        return events
    prompt, generation = job.prompt, job.generation
    said = finished.output_tokens or tuple(job.reply.tokens)
    ctx.engine.responses.put(StoredResponse(
        response_id=str(generation.response_id),
        session=generation.session,
        parent_id=generation.parent_response_id,
        tokens=array("I", (*prompt.tokens, *said)),
        prompt_tokens=len(prompt.tokens),
        body=job.builder.response,
        input_items=stored_form(job.items),
        context={"instructions": prompt.instructions, "tools": list(prompt.tools), "strict": list(job.strict)},
        cache_salt=generation.cache_salt,
    ))
    return events
