"""POST /v1/chat/completions."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ninfer_engine.runtime.api import Finished, GenerationRequest
from ninfer_engine.server import tools
from ninfer_engine.server.chat_schema import ChatRequest, parse_chat
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
from ninfer_engine.server.errors import ApiError
from ninfer_engine.server.identity import take_identity
from ninfer_engine.server.items import new_id
from ninfer_engine.server.output import Delta, ReasoningDelta, TextDelta, ToolCall
from ninfer_engine.server.prompt import text_prompt
from ninfer_engine.server.reply import Reply, finish_reason, parts
from ninfer_engine.server.response_builder import ninfer_object
from ninfer_engine.server.runs import EndedBy, Run, RunEndedError
from ninfer_engine.server.sampling import reply_limit
from ninfer_engine.server.sse import DONE, EventStream, event
from ninfer_engine.server.usage import chat_usage


@dataclass(frozen=True, slots=True)
class _Job:
    chat: ChatRequest
    generation: GenerationRequest
    reply: Reply
    head: dict[str, Any]


async def create_chat_completion(request: Request) -> Response:
    """Make a chat completion, whole or as a stream."""
    ctx = context(request)
    job = await _prepare(request, ctx)
    if job.chat.stream:
        run = await start_stream(request, job.generation)
        chunks = _stream(ctx, run, job)
        return EventStream(chunks, lambda: run.cancel(EndedBy.CLIENT_GONE), ctx.limits.keepalive_s)
    whole = await run_to_end(request, job.generation, job.reply)
    message = _message(whole.deltas)
    return JSONResponse({
        **job.head,
        "object": "chat.completion",
        "choices": [{
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _reason(whole.finished, job.reply, "tool_calls" in message),
        }],
        "usage": chat_usage(whole.finished, job.reply.reasoning_tokens),
        "ninfer": ninfer_object(whole.finished.record),
    })


async def _prepare(request: Request, ctx: Context) -> _Job:
    body = await json_body(request)
    session = take_identity(request, body)
    chat = parse_chat(body)
    check_model(ctx, chat.model)
    messages, offered = chat.template_messages(), chat.template_tools()
    prompt = await in_thread(text_prompt, ctx.model, messages, offered)
    limit = reply_limit(chat.limit(), ctx.flags.default_max_tokens, len(prompt.tokens), ctx.max_context)
    generation = GenerationRequest(
        request_id=request.state.request_id,
        tokens=prompt.tokens,
        sampling=chat.sampling(limit, ctx.model.eos_token_ids),
        arrived=arrived(request),
        session=session,
        cache_salt=chat.cache_salt or "",
    )
    schemas = tools.schemas(offered, tools.check_tool_choice(chat.tool_choice))
    reply = Reply(ctx.model, schemas, prompt.in_reasoning, chat.stop or ())
    return _Job(chat, generation, reply, {"id": new_id("chatcmpl"), "created": now_unix(), "model": chat.model})


def _message(deltas: list[Delta]) -> dict[str, Any]:
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    calls = [_call(delta) for delta in deltas if isinstance(delta, ToolCall)]
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": new_id("call"), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _reason(finished: Finished, reply: Reply, called: bool) -> str:
    reason = finish_reason(finished, reply)
    return "tool_calls" if called and reason == "stop" else reason


async def _stream(ctx: Context, run: Run, job: _Job) -> AsyncIterator[bytes]:
    calls = 0
    try:
        yield _chunk(job, {"role": "assistant", "content": ""})
        async for part in parts(ctx.engine, run, job.reply):
            match part:
                case TextDelta(text=text):
                    yield _chunk(job, {"content": text})
                case ReasoningDelta(text=text):
                    yield _chunk(job, {"reasoning_content": text})
                case ToolCall():
                    yield _chunk(job, {"tool_calls": [{"index": calls, **_call(part)}]})
                    calls += 1
                case Finished():
                    for chunk in _last(job, part, calls > 0):
                        yield chunk
        yield DONE
    except RunEndedError as ended:
        error = ended.as_api_error()
        if isinstance(error, ApiError):
            yield event(error.body())
    except ApiError as error:
        yield event(error.body())


def _last(job: _Job, finished: Finished, called: bool) -> list[bytes]:
    """The finish chunk and, when asked for, the usage chunk; `ninfer` stands on the last of them."""
    ninfer = {"ninfer": ninfer_object(finished.record)}
    reason = _reason(finished, job.reply, called)
    options = job.chat.stream_options
    if options is None or not options.include_usage:
        return [_chunk(job, {}, reason, ninfer)]
    usage = {"choices": [], "usage": chat_usage(finished, job.reply.reasoning_tokens), **ninfer}
    return [_chunk(job, {}, reason), event({**job.head, "object": "chat.completion.chunk", **usage})]


def _chunk(job: _Job, delta: dict[str, Any], reason: str | None = None, extra: dict[str, Any] | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    options = job.chat.stream_options
    usage = {"usage": None} if options is not None and options.include_usage else {}
    return event({**job.head, "object": "chat.completion.chunk", "choices": [choice], **usage, **(extra or {})})
