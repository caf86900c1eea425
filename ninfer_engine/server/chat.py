"""POST /v1/chat/completions."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ninfer_engine.runtime.api import Finished, GenerationRequest
from ninfer_engine.server.call_stream import CallDelta, CallEnd, CallStart
from ninfer_engine.server.chat_schema import ChatRequest, parse_chat
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
from ninfer_engine.server.errors import ApiError
from ninfer_engine.server.formats import constraint
from ninfer_engine.server.identity import take_identity
from ninfer_engine.server.items import new_id
from ninfer_engine.server.json_reply import JsonReply
from ninfer_engine.server.logprobs import chat_logprobs
from ninfer_engine.server.output import Delta, ReasoningDelta, TextDelta, TokenLog
from ninfer_engine.server.prompt import text_prompt
from ninfer_engine.server.reply import Reply, finish_reason
from ninfer_engine.server.runs import RunEndedError
from ninfer_engine.server.sampling import reply_limit
from ninfer_engine.server.sse import DONE, EventStream, event
from ninfer_engine.server.usage import chat_usage


@dataclass(frozen=True, slots=True)
class _Job:
    chat: ChatRequest
    requests: list[GenerationRequest]
    replies: list[Reply]
    head: dict[str, Any]

    @property
    def logged(self) -> bool:
        """Log-probabilities were asked for."""
        return bool(self.chat.logprobs)


async def create_chat_completion(request: Request) -> Response:
    """Make a chat completion, whole or as a stream."""
    ctx = context(request)
    job = await _prepare(request, ctx)
    if job.chat.stream:
        choices = await start_stream(request, job.requests, job.replies)
        return EventStream(_stream(choices, job), choices.cancel, ctx.limits.keepalive_s)
    wholes = await run_all(request, job.requests, job.replies)
    return JsonReply({
        **job.head,
        "object": "chat.completion",
        "choices": [_choice(job, index, whole) for index, whole in enumerate(wholes)],
        "usage": chat_usage([whole.finished for whole in wholes], job.replies),
        "ninfer": wholes[0].finished.record,
    })


async def _prepare(request: Request, ctx: Context) -> _Job:
    body = await json_body(request)
    session = take_identity(request, body)
    chat = await prepared(request, parse_chat, body)
    check_model(ctx, chat.model)
    messages, offered = await prepared(request, chat.template_messages), chat.template_tools()
    policy, wanted, thinking = chat.policy(), chat.format(), chat.thinking()
    prompt = await prepared(request, text_prompt, ctx.model, messages, offered, thinking)
    limit = reply_limit(chat.limit(), ctx.flags.default_max_tokens, len(prompt.tokens), ctx.max_context)
    generation = GenerationRequest(
        request_id=request.state.request_id,
        tokens=prompt.tokens,
        sampling=chat.sampling(limit, ctx.model, chat.told_logprobs()),
        arrived=arrived(request),
        session=session,
        cache_salt=chat.cache_salt or "",
        constraint=await constraint(ctx.model, prompt, policy, wanted, thinking.budget),
    )
    requests = requests_for(generation, chat.n or 1, ctx.most_requests)
    replies = [Reply(ctx.model, policy.schemas, prompt.in_reasoning, chat.stop or (), parallel=policy.parallel)
               for _ in requests]
    return _Job(chat, requests, replies, {"id": new_id("chatcmpl"), "created": now_unix(), "model": chat.model})


def _choice(job: _Job, index: int, whole: Whole) -> dict[str, Any]:
    message, logs = _message(whole.deltas)
    made = {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(logs) if job.logged else None,
        "finish_reason": _reason(whole.finished, job.replies[index], "tool_calls" in message),
    }
    return made | ({"ninfer": whole.finished.record} if len(job.requests) > 1 else {})


def _message(deltas: list[Delta]) -> tuple[dict[str, Any], list[TokenLog]]:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    logs: list[TokenLog] = []
    for delta in deltas:
        match delta:
            case TextDelta(text=text):
                message["content"] = (message["content"] or "") + text
                logs += delta.logs
            case ReasoningDelta(text=text):
                message["reasoning_content"] = message.get("reasoning_content", "") + text
            case CallStart():
                message.setdefault("tool_calls", []).append(_call(delta))
            case CallDelta(arguments=arguments):
                message["tool_calls"][-1]["function"]["arguments"] += arguments
            case CallEnd():
                pass
    if message["content"] is None and "tool_calls" not in message:
        message["content"] = ""
    return message, logs


def _call(start: CallStart) -> dict[str, Any]:
    return {"id": new_id("call"), "type": "function", "function": {"name": start.name, "arguments": ""}}


def _reason(finished: Finished, reply: Reply, called: bool) -> str:
    reason = finish_reason(finished, reply)
    return "tool_calls" if called and reason == "stop" else reason


class _Chunks:
    """The chunks of a stream: what each part of each choice comes to."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._calls = [0] * len(job.requests)
        self._finished: dict[int, Finished] = {}

    def begin(self) -> list[bytes]:
        """The first chunk of every choice."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(len(self._calls))]

    def add(self, item: Part) -> list[bytes]:
        """The chunks of one part."""
        index = item.index
        match item.part:
            case TextDelta(text=text, logs=logs):
                return [self._chunk(index, {"content": text}, logs=logs)]
            case ReasoningDelta(text=text):
                return [self._chunk(index, {"reasoning_content": text})]
            case CallStart():
                self._calls[index] += 1
                return [self._call(index, _call(item.part))]
            case CallDelta(arguments=arguments):
                return [self._call(index, {"function": {"arguments": arguments}})]
            case CallEnd():
                return []
            case Finished():
                return self._end(index, item.part)

    def _call(self, index: int, fields: dict[str, Any]) -> bytes:
        return self._chunk(index, {"tool_calls": [{"index": self._calls[index] - 1, **fields}]})

    def _end(self, index: int, finished: Finished) -> list[bytes]:
        """The finish chunk and, after the last choice, the usage chunk when asked for; `ninfer` stands on the last."""
        job = self._job
        self._finished[index] = finished
        reason = _reason(finished, job.replies[index], self._calls[index] > 0)
        last, usage = len(self._finished) == len(job.requests), self._with_usage
        made = [self._chunk(index, {}, reason, self._ninfer() if last and not usage else {})]
        if last and usage:
            told = chat_usage([self._finished[one] for one in range(len(job.requests))], job.replies)
            fields = {"choices": [], "usage": told, **self._ninfer()}
            made.append(event({**job.head, "object": "chat.completion.chunk", **fields}))
        return made

    def _ninfer(self) -> dict[str, Any]:
        return {"ninfer": self._finished[0].record}

    @property
    def _with_usage(self) -> bool:
        options = self._job.chat.stream_options
        return options is not None and bool(options.include_usage)

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None, extra: dict[str, Any] | None = None,
        logs: tuple[TokenLog, ...] = (),
    ) -> bytes:
        told = chat_logprobs(logs) if logs and self._job.logged else None
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}
        usage = {"usage": None} if self._with_usage else {}
        head = self._job.head
        return event({**head, "object": "chat.completion.chunk", "choices": [choice], **usage, **(extra or {})})


async def _stream(choices: Choices, job: _Job) -> AsyncGenerator[bytes, None]:
    chunks = _Chunks(job)
    try:
        yield b"".join(chunks.begin())
        async for made in choices.parts():
            yield b"".join(chunk for item in made for chunk in chunks.add(item))
        yield DONE
    except RunEndedError as ended:
        error = ended.as_api_error()
        if isinstance(error, ApiError):
            yield event(error.body())
    except ApiError as error:
        yield event(error.body())
