"""The official openai and anthropic Python SDKs, unmodified, against a running server."""

import json
import re
from typing import Any, Literal

import anthropic
import jsonschema
import openai
import pydantic
import pytest
from fake_engine import Misbehaviour
from server_harness import SESSION, Served

CALL_TEXT = '<think>\nhm\n</think>\n\nLook.\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
# Typed as Any: the SDKs' parameter types are theirs to check, the wire is ours.
HI: Any = [{"role": "user", "content": "hi"}]
MESSAGES_TOOLS: Any = [{"name": "add", "input_schema": {"type": "object"}}]
CHAT_TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.http.base_url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def messages_client(served: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=str(served.http.base_url), api_key="none", max_retries=0)


def test_openai_responses_whole_streamed_and_continued(served: Served, client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="hi", extra_headers={"X-NInfer-Session": SESSION})
    assert (first.output_text, first.status) == ("fine", "completed")
    assert first.usage is not None and first.usage.input_tokens_details.cached_tokens == 0
    kinds, text = [], ""
    stream = client.responses.create(
        model="tiny", input="and?", previous_response_id=first.id, stream=True,
        extra_headers={"X-NInfer-Session": SESSION},
    )
    for event in stream:
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert (kinds[0], kinds[-1], text) == ("response.created", "response.completed", "fine")
    served.engine.saved.clear()


def test_openai_responses_helpers_read_items_delete_and_cancel(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tiny", input="hi") as stream:
        for _ in stream:
            pass
        made: Any = stream.get_final_response()
    assert client.responses.retrieve(made.id).output_text == made.output_text
    [item] = client.responses.input_items.list(made.id).data
    assert item.type == "message"
    assert client.responses.cancel(made.id).id == made.id
    assert client.responses.input_tokens.count(model="tiny", input="hi").input_tokens == made.usage.input_tokens
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(made.id)
    assert missing.value.code == "response_not_found"


def test_openai_responses_read_reasoning_and_calls(served: Served, client: openai.OpenAI) -> None:
    served.says.text = CALL_TEXT
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
    made = client.responses.create(model="tiny", input="hi", tools=[tool])
    assert [item.type for item in made.output] == ["reasoning", "message", "function_call"]


def test_openai_chat_whole_and_streamed_with_tools(served: Served, client: openai.OpenAI) -> None:
    served.says.text = CALL_TEXT
    whole = client.chat.completions.create(model="tiny", messages=HI, tools=[CHAT_TOOL])
    assert whole.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(
        model="tiny", messages=HI, tools=[CHAT_TOOL], stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            pass
        final: Any = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content == "Look."
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'
    assert final.usage == whole.usage


def test_openai_completions_and_models(client: openai.OpenAI) -> None:
    assert client.completions.create(model="tiny", prompt=[1, 2, 3]).choices[0].text == "fine"
    pieces = client.completions.create(model="tiny", prompt="x", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "fine"
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_openai_errors_have_their_classes(served: Served, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="tiny", input="x", background=True)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "background")
    served.engine.misbehaviour = Misbehaviour.OVERLOADED
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="tiny", input="x")


async def test_openai_async_streams(served: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.http.base_url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=HI, stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "fine"


def test_anthropic_messages_whole_streamed_and_counted(served: Served, messages_client: anthropic.Anthropic) -> None:
    served.says.text = CALL_TEXT
    whole = messages_client.messages.create(model="tiny", max_tokens=500, messages=HI, tools=MESSAGES_TOOLS)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    with messages_client.messages.stream(model="tiny", max_tokens=500, messages=HI, tools=MESSAGES_TOOLS) as stream:
        assert "".join(stream.text_stream) == "Look."
        final: Any = stream.get_final_message()
    assert (final.stop_reason, final.content[2].input) == ("tool_use", {"a": 1})
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = messages_client.messages.count_tokens(model="tiny", messages=HI, tools=MESSAGES_TOOLS)
    assert counted.input_tokens == whole.usage.input_tokens


def test_anthropic_errors_have_their_classes(served: Served, messages_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        messages_client.messages.create(model="other", max_tokens=5, messages=HI)
    served.engine.misbehaviour = Misbehaviour.OVERLOADED
    with pytest.raises(anthropic.RateLimitError):
        messages_client.messages.create(model="tiny", max_tokens=5, messages=HI)


WEATHER: Any = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 3}},
                "required": ["city", "days"], "additionalProperties": False}
FORECAST: Any = {"type": "function", "function": {"name": "forecast", "parameters": WEATHER, "strict": True}}


class Trip(pydantic.BaseModel):
    """What a reply is parsed into by the SDKs' own helpers."""

    model_config = pydantic.ConfigDict(extra="forbid")

    city: Literal["Rome", "Oslo"]
    days: int


def test_openai_chat_n_logprobs_and_penalties(served: Served, client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="tiny", messages=HI, n=3, seed=5, logprobs=True, top_logprobs=2, presence_penalty=0.5,
        frequency_penalty=-0.5, logit_bias={"5": -1}, extra_body={"min_p": 0.1, "top_k": 3, "repetition_penalty": 1.2},
    )
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    sent = served.engine.requests
    assert [request.sampling.seed for request in sent] == [5, 6, 7]
    assert [request.follows for request in sent] == [None, sent[0].request_id, sent[0].request_id]
    first = sent[0].sampling
    assert (first.presence_penalty, first.frequency_penalty, first.logit_bias) == (0.5, -0.5, ((5, -1.0),))
    assert (first.min_p, first.top_k, first.repetition_penalty, first.logprobs) == (0.1, 3, 1.2, 2)
    for choice in made.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        logs = choice.logprobs.content
        assert "".join(log.token for log in logs) == choice.message.content == "fine"
        assert all(len(log.top_logprobs) == 2 and bytes(log.bytes or []).decode() == log.token for log in logs)
    assert made.usage is not None
    assert made.usage.completion_tokens == 3 * (len(served.model.tokenizer.encode("fine")) + 1)


def test_openai_chat_streams_of_several_choices(client: openai.OpenAI) -> None:
    texts, reasons = ["", "", ""], {}
    stream = client.chat.completions.create(
        model="tiny", messages=HI, n=3, stream=True, logprobs=True, stream_options={"include_usage": True})
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
            if choice.delta.content:
                assert choice.logprobs is not None and choice.logprobs.content
    assert (texts, reasons) == (["fine"] * 3, {0: "stop", 1: "stop", 2: "stop"})
    assert usage is not None and usage.prompt_tokens_details is not None


def test_openai_completions_have_the_legacy_logprobs(served: Served, client: openai.OpenAI) -> None:
    served.says.text = "a fine day"
    whole = client.completions.create(model="tiny", prompt="x", logprobs=2, n=2)
    logs = whole.choices[1].logprobs
    assert logs is not None and logs.tokens is not None and logs.text_offset is not None
    assert "".join(logs.tokens) == whole.choices[1].text == "a fine day"
    places = zip(logs.text_offset, logs.tokens, strict=True)
    assert all(whole.choices[1].text[at:].startswith(token) for at, token in places)
    offsets: list[int] = []
    for chunk in client.completions.create(model="tiny", prompt="x", logprobs=0, stream=True):
        if chunk.choices[0].logprobs is not None:
            offsets += chunk.choices[0].logprobs.text_offset or []
    assert offsets == logs.text_offset


def test_openai_responses_logprobs_are_included_when_asked_for(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model="tiny", input="hi", include=["message.output_text.logprobs"], top_logprobs=1)
    part: Any = made.output[0]
    assert "".join(log.token for log in part.content[0].logprobs) == made.output_text
    with client.responses.stream(model="tiny", input="hi", top_logprobs=1) as stream:
        seen = [log.token for event in stream if event.type == "response.output_text.delta" for log in event.logprobs]
    assert "".join(seen) == "fine"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "forecast"}}])
def test_openai_a_forced_tool_is_called_whatever_the_model_wants_to_say(
    served: Served, client: openai.OpenAI, choice: Any
) -> None:
    served.says.text = "I would rather talk."
    made: Any = client.chat.completions.create(
        model="tiny", messages=HI, tools=[FORECAST, CHAT_TOOL], tool_choice=choice, parallel_tool_calls=False,
        max_tokens=300)
    assert made.choices[0].finish_reason == "tool_calls"
    assert made.choices[0].message.content is None
    [call] = made.choices[0].message.tool_calls
    if choice != "required":
        jsonschema.validate(json.loads(call.function.arguments), WEATHER)
        assert call.function.name == "forecast"


def test_openai_responses_force_tools_and_stream_their_arguments(served: Served, client: openai.OpenAI) -> None:
    served.says.text = "I would rather talk."
    tool: Any = {"type": "function", "name": "forecast", "parameters": WEATHER, "strict": True}
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "forecast"}]}
    for choice in ("required", {"type": "function", "name": "forecast"}, allowed):
        with client.responses.stream(model="tiny", input="hi", tools=[tool], tool_choice=choice,
                                     parallel_tool_calls=False, max_output_tokens=300) as stream:
            deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            final: Any = stream.get_final_response()
        [call] = final.output
        assert "".join(deltas) == call.arguments
        assert len(deltas) > 1
        jsonschema.validate(json.loads(call.arguments), WEATHER)


def test_openai_structured_output_is_parsed_by_the_sdk(served: Served, client: openai.OpenAI) -> None:
    served.says.text = "No JSON from me."
    made = client.chat.completions.parse(model="tiny", messages=HI, response_format=Trip, max_tokens=300)
    assert isinstance(made.choices[0].message.parsed, Trip)
    with client.responses.stream(model="tiny", input="hi", text_format=Trip, max_output_tokens=300) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Trip)
    assert client.responses.retrieve(final.id).text.format.type == "json_schema"  # type: ignore[union-attr]  # it is set


@pytest.mark.parametrize(("response_format", "pattern"), [
    ({"type": "json_object"}, r"\{.*"), ({"type": "regex", "pattern": "(yes|no)!{3}"}, "(yes|no)!!!"),
    ({"type": "grammar", "grammar": 'start: "x" start | "y"'}, "x*y"),
])
def test_other_formats_are_followed_too(served: Served, response_format: Any, pattern: str) -> None:
    served.says.text = "No, thanks."
    for path, body in (("/v1/chat/completions", {"messages": HI}), ("/v1/completions", {"prompt": "x"})):
        made = served.post(path, max_tokens=40, response_format=response_format, **body)["choices"][0]
        text = made["text"] if "text" in made else made["message"]["content"]
        assert re.fullmatch(pattern, text, re.DOTALL) or made["finish_reason"] == "length"


async def test_openai_async_parses_and_streams_calls(served: Served) -> None:
    served.says.text = CALL_TEXT
    async with openai.AsyncOpenAI(base_url=f"{served.http.base_url}/v1", api_key="none", max_retries=0) as client:
        async with client.chat.completions.stream(model="tiny", messages=HI, tools=[CHAT_TOOL]) as stream:
            kinds = [event.type async for event in stream]
            final: Any = await stream.get_final_completion()
        assert "tool_calls.function.arguments.delta" in kinds
        assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"a": 1}
        served.says.text = "No."
        made = await client.responses.parse(model="tiny", input="hi", text_format=Trip, max_output_tokens=300)
        assert isinstance(made.output_parsed, Trip)


def test_anthropic_forced_tools_and_formats(served: Served, messages_client: anthropic.Anthropic) -> None:
    served.says.text = "I would rather talk."
    tool: Any = {"name": "forecast", "input_schema": WEATHER}
    for choice in ({"type": "any", "disable_parallel_tool_use": True},
                   {"type": "tool", "name": "forecast", "disable_parallel_tool_use": True}):
        made: Any = messages_client.messages.create(
            model="tiny", max_tokens=300, messages=HI, tools=[tool], tool_choice=choice)  # type: ignore[arg-type]  # a dict
        assert (made.stop_reason, [block.type for block in made.content]) == ("tool_use", ["tool_use"])
        jsonschema.validate(made.content[0].input, WEATHER)
    with messages_client.messages.stream(model="tiny", max_tokens=300, messages=HI, tools=[tool],
                                         tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final: Any = stream.get_final_message()
    assert len(pieces) > 1
    jsonschema.validate(final.content[0].input, WEATHER)
    formatted: Any = messages_client.messages.create(
        model="tiny", max_tokens=300, messages=HI,
        output_config={"format": {"type": "json_schema", "schema": WEATHER}})
    jsonschema.validate(json.loads(formatted.content[0].text), WEATHER)


async def test_anthropic_async_streams(served: Served) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=str(served.http.base_url), api_key="none", max_retries=0) as client,
        client.messages.stream(model="tiny", max_tokens=50, messages=HI, stop_sequences=["ne"]) as stream,
    ):
        assert "".join([text async for text in stream.text_stream]) == "fi"
        final = await stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "ne")


def test_the_request_id_of_a_client_is_the_one_in_reply_log_and_diagnostics(
    served: Served, client: openai.OpenAI
) -> None:
    made: Any = client.chat.completions.create(model="tiny", messages=HI, extra_headers={"x-request-id": "trace-7.a"})
    assert made._request_id == "trace-7.a"
    assert made.ninfer["request_id"] == "trace-7.a"
    assert {line["request_id"] for line in served.lines() if "request_id" in line} == {"trace-7.a"}
    odd: Any = client.chat.completions.create(model="tiny", messages=HI, extra_headers={"x-request-id": "no spaces"})
    assert len(odd._request_id) == 64
