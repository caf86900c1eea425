"""The official openai and anthropic SDKs, unmodified, against the engine on a real model's real text."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import jsonschema
import openai
import pydantic
import pytest
from smollm2_cases import NEEDS_SMOLLM2, served

pytestmark = NEEDS_SMOLLM2

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
CITY: Any = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo", "Lima"]},
             "days": {"type": "integer", "minimum": 1, "maximum": 9}},
             "required": ["city", "days"], "additionalProperties": False}
FORECAST: Any = {"type": "function", "function": {"name": "forecast", "description": "The weather in a city.",
                 "parameters": CITY, "strict": True}}
SESSION = "5a" * 32
GREEDY: Any = {"temperature": 0}  # the anthropic SDK no longer has a name for it


class Place(pydantic.BaseModel):
    """What a reply is parsed into by the SDKs' own helpers."""

    model_config = pydantic.ConfigDict(extra="forbid")

    country: Literal["France", "Norway", "Peru"]
    capital: str = pydantic.Field(max_length=20)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def messages_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)


def test_openai_chat_says_the_same_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="smollm2", messages=CAPITAL, temperature=0, max_tokens=24)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"
    pieces = list(client.chat.completions.create(
        model="smollm2", messages=CAPITAL, temperature=0, max_tokens=24, stream=True,
        stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert len(pieces) > 5
    assert whole.usage is not None and pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    # The same question again is known up to its last token.
    assert pieces[-1].usage.prompt_tokens_details is not None
    assert (pieces[-1].usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_openai_responses_go_on_from_a_previous_one_and_understand_it(client: openai.OpenAI) -> None:
    headers = {"X-NInfer-Session": SESSION}
    first = client.responses.create(model="smollm2", input="What is the capital of France?", temperature=0,
                                    max_output_tokens=24, extra_headers=headers)
    assert "Paris" in first.output_text
    second = client.responses.create(model="smollm2", input="And of Italy?", previous_response_id=first.id,
                                     temperature=0, max_output_tokens=24, extra_headers=headers)
    assert "Rome" in second.output_text
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1
    with client.responses.stream(model="smollm2", input="And of Italy?", previous_response_id=first.id, temperature=0,
                                 max_output_tokens=24, extra_headers=headers) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final: Any = stream.get_final_response()
    assert said == final.output_text == second.output_text
    items = client.responses.input_items.list(second.id, extra_headers=headers).data
    assert "Italy" in str(items)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="smollm2", input="And?", previous_response_id=first.id)  # without its session


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "forecast"}}])
def test_openai_a_small_model_calls_the_tool_that_it_is_made_to_call(client: openai.OpenAI, choice: Any) -> None:
    asked: Any = [{"role": "user", "content": "How is the weather in Oslo for the next 3 days?"}]
    fields: Any = {"model": "smollm2", "messages": asked, "tools": [FORECAST], "tool_choice": choice,
                   "parallel_tool_calls": False, "temperature": 0, "max_tokens": 200}
    made: Any = client.chat.completions.create(**fields)
    assert made.choices[0].finish_reason == "tool_calls"
    [call] = made.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, CITY)
    assert call.function.name == "forecast"
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        final: Any = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    told: Any = [*asked, made.choices[0].message.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": call.id, "content": "Snow, minus four degrees."}]
    answer: Any = client.chat.completions.create(model="smollm2", messages=told, tools=[FORECAST], temperature=0,
                                                 tool_choice="none", max_tokens=40)
    assert answer.choices[0].message.content


def test_openai_json_schema_holds_a_small_model_to_it(client: openai.OpenAI) -> None:
    made = client.chat.completions.parse(model="smollm2", messages=CAPITAL, response_format=Place, temperature=0,
                                         max_tokens=80)
    assert isinstance(made.choices[0].message.parsed, Place)
    with client.responses.stream(model="smollm2", input="Name a country and its capital.", text_format=Place,
                                 temperature=0, max_output_tokens=80) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Place)


def test_openai_logprobs_are_those_of_the_tokens_that_make_the_text(client: openai.OpenAI) -> None:
    made: Any = client.chat.completions.create(model="smollm2", messages=CAPITAL, temperature=0, max_tokens=24,
                                               logprobs=True, top_logprobs=3)
    logs = made.choices[0].logprobs.content
    said = b"".join(bytes(log.bytes) for log in logs).decode()
    assert said.removesuffix("<|im_end|>") == made.choices[0].message.content
    for log in logs:  # greedy: nothing is likelier than what was said
        assert log.logprob == max(other.logprob for other in log.top_logprobs)


def test_anthropic_messages_say_the_same_whole_and_streamed(messages_client: anthropic.Anthropic) -> None:
    fields: Any = {"model": "smollm2", "max_tokens": 24, "messages": CAPITAL, "extra_body": GREEDY}
    whole = messages_client.messages.create(**fields)
    assert "Paris" in str(whole.content[0])
    assert whole.stop_reason == "end_turn"
    with messages_client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == getattr(whole.content[0], "text", None)
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = messages_client.messages.count_tokens(model="smollm2", messages=CAPITAL)
    cached = whole.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == whole.usage.input_tokens + cached


def test_anthropic_a_small_model_uses_the_tool_that_it_is_made_to_use(messages_client: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "forecast", "description": "The weather in a city.", "input_schema": CITY}]
    made: Any = messages_client.messages.create(
        model="smollm2", max_tokens=200, extra_body=GREEDY, tools=tools,
        tool_choice={"type": "tool", "name": "forecast", "disable_parallel_tool_use": True},
        messages=[{"role": "user", "content": "How is the weather in Lima?"}])
    assert made.stop_reason == "tool_use"
    [use] = [block for block in made.content if block.type == "tool_use"]
    jsonschema.validate(use.input, CITY)


async def test_async_clients_stream_at_the_same_time(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client, \
            anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as messages:
        pieces = await client.chat.completions.create(model="smollm2", messages=CAPITAL, temperature=0, max_tokens=24,
                                                      stream=True)
        async with messages.messages.stream(model="smollm2", max_tokens=24, messages=CAPITAL,
                                            extra_body=GREEDY) as stream:
            one = "".join([text async for text in stream.text_stream])
            other = "".join([piece.choices[0].delta.content or "" async for piece in pieces if piece.choices])
    assert one == other
    assert "Paris" in one
