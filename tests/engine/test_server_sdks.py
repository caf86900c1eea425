"""The official openai and anthropic Python SDKs, unmodified, against a running server."""

from typing import Any

import anthropic
import openai
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
