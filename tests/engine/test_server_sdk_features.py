"""What the SDKs do beyond one call and its reply: every parameter that they have, pages, parallel calls, loops of calls
and outputs, asynchronous clients, leaving, silence, salt."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fake_engine import Misbehaviour
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.resources.responses import Responses
from openai.resources.responses.input_tokens import InputTokens
from pydantic import BaseModel
from server_harness import SESSION, Served, running

from ninfer_engine.server import chat_schema, messages_schema, responses_schema
from ninfer_engine.server.context import Limits

HI: Any = [{"role": "user", "content": "hi"}]
TWO_CALLS = ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n'
             '<tool_call>{"name": "add", "arguments": {"a": 22}}</tool_call>')
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
ADD_ITEM: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
ADD_BLOCK: Any = [{"name": "add", "input_schema": {"type": "object"}}]
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI}, "/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 99},
}


SDK_OWN = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
CREATES: list[tuple[Callable[..., Any], type[BaseModel], dict[str, Any]]] = [
    (openai.resources.chat.Completions.create, chat_schema.ChatRequest, chat_schema.CHAT_ONLY),
    (openai.resources.Completions.create, chat_schema.CompletionRequest, chat_schema.COMPLETION_ONLY),
    (Responses.create, responses_schema.CreateResponse, responses_schema.ONLY),
    (InputTokens.count, responses_schema.CreateResponse, responses_schema.ONLY),
    (anthropic.resources.Messages.create, messages_schema.MessageRequest, messages_schema.ONLY),
    (anthropic.resources.Messages.count_tokens, messages_schema.CountRequest, messages_schema.ONLY),
]


@pytest.mark.parametrize(("create", "schema", "only"), CREATES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_every_parameter_of_an_sdk_is_honoured_or_refused_by_its_name(
    create: Callable[..., Any], schema: type[BaseModel], only: dict[str, Any]
) -> None:
    known = {field.alias or name for name, field in schema.model_fields.items()} | set(only)
    assert set(inspect.signature(create).parameters) - SDK_OWN <= known


def openai_client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.http.base_url}/v1", api_key="none", max_retries=0)


def openai_async(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.http.base_url}/v1", api_key="none", max_retries=0)


def anthropic_async(served: Served) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=str(served.http.base_url), api_key="none", max_retries=0)


async def test_input_items_come_page_by_page_to_both_clients(served: Served) -> None:
    items: Any = [{"role": "user", "content": f"part {n}"} for n in range(23)]
    client = openai_client(served)
    made = client.responses.create(model="tiny", input=items)
    pages = list(client.responses.input_items.list(made.id, limit=5, order="asc").iter_pages())
    assert [len(page.data) for page in pages] == [5, 5, 5, 5, 3]
    texts = [item.content[0].text for page in pages for item in page.data]  # type: ignore[union-attr]  # messages all
    assert texts == [f"part {n}" for n in range(23)]
    again: Any = [{"type": "message", "id": "msg_same", "role": "user", "content": str(n)} for n in range(5)]
    same = client.responses.create(model="tiny", input=again)
    found: Any = list(client.responses.input_items.list(same.id, limit=1, order="asc"))
    assert [item.content[0].text for item in found] == ["0", "1", "2", "3", "4"]
    assert found[0].id == "msg_same"
    async with openai_async(served) as other:
        newest = [item.id async for item in other.responses.input_items.list(made.id, limit=10)]
    assert newest == [item.id for page in reversed(pages) for item in reversed(page.data)]


async def test_parallel_calls_are_told_apart_in_every_stream(served: Served) -> None:
    served.says.text = TWO_CALLS
    wanted = [{"a": 1}, {"a": 22}]
    async with openai_async(served) as client:
        async with client.chat.completions.stream(model="tiny", messages=HI, tools=[ADD]) as stream:
            async for _ in stream:
                pass
            chat: Any = await stream.get_final_completion()
        calls = chat.choices[0].message.tool_calls
        assert [json.loads(call.function.arguments) for call in calls] == wanted
        assert len({call.id for call in calls}) == 2
        async with client.responses.stream(model="tiny", input="hi", tools=[ADD_ITEM]) as events:
            kinds = [event.type async for event in events]
            made: Any = await events.get_final_response()
        assert [json.loads(item.arguments) for item in made.output] == wanted
        assert kinds.count("response.function_call_arguments.done") == 2
        one: Any = await client.chat.completions.create(model="tiny", messages=HI, tools=[ADD],
                                                        parallel_tool_calls=False)
        assert len(one.choices[0].message.tool_calls) == 1
        none: Any = await client.chat.completions.create(model="tiny", messages=HI, tools=[ADD], tool_choice="none")
        assert (none.choices[0].message.tool_calls, none.choices[0].message.content) == (None, TWO_CALLS)
    async with (
        anthropic_async(served) as other,
        other.messages.stream(model="tiny", max_tokens=200, messages=HI, tools=ADD_BLOCK) as blocks,
    ):
        final: Any = await blocks.get_final_message()
    assert [block.input for block in final.content] == wanted


async def test_a_loop_of_calls_and_outputs_goes_round_on_every_route(served: Served) -> None:
    served.says.text = TWO_CALLS
    async with openai_async(served) as client, anthropic_async(served) as other:
        asked: Any = await client.chat.completions.create(model="tiny", messages=HI, tools=[ADD])
        said = asked.choices[0].message
        first: Any = await client.responses.create(model="tiny", input="hi", tools=[ADD_ITEM])
        made: Any = await other.messages.create(model="tiny", max_tokens=200, messages=HI, tools=ADD_BLOCK)
        served.says.text = "23"
        history = [*HI, said.model_dump(exclude_none=True, exclude={"refusal"}),
                   *({"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in said.tool_calls)]
        ended: Any = await client.chat.completions.create(model="tiny", messages=history, tools=[ADD])
        outputs: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
                        for item in first.output]
        child = await client.responses.create(model="tiny", input=outputs, previous_response_id=first.id)
        replayed: Any = [*HI, *first.output, *outputs]
        again = await client.responses.create(model="tiny", input=replayed, tools=[ADD_ITEM])
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "ok"} for block in made.content]
        blocks: Any = [*HI, {"role": "assistant", "content": [block.model_dump() for block in made.content]},
                       {"role": "user", "content": results}]
        last: Any = await other.messages.create(model="tiny", max_tokens=200, messages=blocks, tools=ADD_BLOCK)
    assert {ended.choices[0].message.content, child.output_text, again.output_text, last.content[0].text} == {"23"}


def test_what_the_anthropic_sdk_may_put_into_messages_reaches_the_model(served: Served) -> None:
    client = anthropic.Anthropic(base_url=str(served.http.base_url), api_key="none", max_retries=0)
    call: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}]}
    result: Any = {"type": "tool_result", "tool_use_id": "t", "content": "no such account", "is_error": True}
    messages: Any = [{"role": "system", "content": "More rules."}, *HI, call, {"role": "user", "content": [result]},
                     {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "The answer is ("}]
    served.says.text = "B)"
    body: Any = {"model": "tiny", "system": "Rules.", "messages": messages, "tools": ADD_BLOCK}
    made: Any = client.messages.create(max_tokens=20, **body)
    with client.messages.stream(max_tokens=20, **body) as stream:
        assert "".join(stream.text_stream) == made.content[0].text == "B)"
    read = served.model.tokenizer.decode(list(served.engine.requests[-1].tokens), skip_special=False)
    assert "Rules.\n\nMore rules." in read
    assert "Error: no such account" in read
    assert read.endswith("Be brief.<|im_end|>\n<|im_start|>assistant\nThe answer is (")
    assert client.messages.count_tokens(**body).input_tokens == len(served.engine.requests[-1].tokens)


def test_history_in_which_calls_and_outputs_do_not_pair_is_refused(served: Served) -> None:
    client = openai_client(served)
    call: Any = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "c", "output": "1"}
    for items, place in (([call, call], 1), ([output], 0), ([call, output, output], 2), ([output, call], 0)):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="tiny", input=items)
        assert refused.value.param == f"input[{place}].call_id"
    parent = client.responses.create(model="tiny", input=[*HI, call])
    child = client.responses.create(model="tiny", input=[output], previous_response_id=parent.id)
    for again in (output, call):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="tiny", input=[again], previous_response_id=child.id)
        assert refused.value.param == "input[0].call_id"
    client.responses.create(model="tiny", input=[output], previous_response_id=parent.id)  # a fork has its own history


async def test_asynchronous_clients_do_what_the_others_do(served: Served) -> None:
    async with openai_async(served) as client, anthropic_async(served) as other:
        first = await client.responses.create(model="tiny", input="hi", extra_headers={"X-NInfer-Session": SESSION})
        text = ""
        async for event in await client.responses.create(
            model="tiny", input="and?", previous_response_id=first.id, stream=True,
            extra_headers={"X-NInfer-Session": SESSION},
        ):
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == "fine"
        assert (await client.responses.input_tokens.count(model="tiny", input="hi")).input_tokens == \
            first.usage.input_tokens  # type: ignore[union-attr]  # it is there
        pieces = [chunk.choices[0].text async for chunk in
                  await client.completions.create(model="tiny", prompt="x", stream=True)]
        assert "".join(pieces) == "fine"
        made = await other.messages.create(model="tiny", max_tokens=9, messages=HI)
        assert (await other.messages.count_tokens(model="tiny", messages=HI)).input_tokens == made.usage.input_tokens
        assert [model.id async for model in client.models.list()] == ["tiny"]
        with pytest.raises(anthropic.BadRequestError):
            await other.messages.create(model="tiny", max_tokens=0, messages=HI)


async def test_a_request_id_is_the_one_that_each_sdk_shows(served: Served) -> None:
    async with openai_async(served) as client, anthropic_async(served) as other:
        chat: Any = await client.chat.completions.create(model="tiny", messages=HI)
        made: Any = await other.messages.create(model="tiny", max_tokens=9, messages=HI,
                                                extra_headers={"x-request-id": "from.the-client"})
        assert (made._request_id, made.ninfer["request_id"]) == ("from.the-client", "from.the-client")
        with pytest.raises(anthropic.NotFoundError) as missing:
            await other.messages.create(model="none", max_tokens=9, messages=HI)
    assert chat._request_id == chat.ninfer["request_id"]
    assert {line["request_id"] for line in served.lines() if "request_id" in line} == \
        {chat._request_id, "from.the-client", missing.value.request_id}


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Served]:
    """A server whose keep-alives come soon and whose streams open at once."""
    with running(tmp_path, limits=Limits(keepalive_s=0.05, admission_grace_s=0.05)) as server:
        yield server


@pytest.mark.parametrize("path", STREAMS)
def test_silence_is_broken_on_every_route_and_stops_with_the_stream(quick: Served, path: str) -> None:
    quick.engine.misbehaviour = Misbehaviour.SILENT_UNTIL_RELEASED
    lines = []
    with quick.http.stream("POST", path, json={"model": "tiny", "stream": True, **STREAMS[path]}) as reply:
        for line in reply.iter_lines():
            lines.append(line)
            if lines.count(": keep-alive") == 3:
                quick.engine.release.set()
    assert lines.count(": keep-alive") >= 3
    assert [line for line in lines if line][-1] != ": keep-alive"


async def test_clients_read_through_silence_and_leaving_a_stream_ends_its_request(quick: Served) -> None:
    quick.engine.misbehaviour = Misbehaviour.SILENT_UNTIL_RELEASED
    async with openai_async(quick) as client, anthropic_async(quick) as other:
        asyncio.get_running_loop().call_later(0.3, quick.engine.release.set)
        stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "fine"
        quick.engine.misbehaviour = Misbehaviour.TALKS_UNTIL_ENDED
        for count, client_stream in enumerate((
            await client.chat.completions.create(model="tiny", messages=HI, stream=True, max_tokens=90_000),
            await client.responses.create(model="tiny", input="hi", stream=True, max_output_tokens=90_000),
            await other.messages.create(model="tiny", messages=HI, stream=True, max_tokens=90_000),
        ), 1):
            async for _ in client_stream:
                break
            await client_stream.close()
            while len(quick.engine.cancelled) < count:
                await asyncio.sleep(0.01)


async def test_a_stream_that_is_refused_after_it_began_raises_in_every_client(quick: Served) -> None:
    quick.engine.misbehaviour = Misbehaviour.QUEUE_TIMEOUT
    async with openai_async(quick) as client, anthropic_async(quick) as other:
        streams: list[Any] = [
            await client.chat.completions.create(model="tiny", messages=HI, stream=True),
            await client.completions.create(model="tiny", prompt="hi", stream=True),
            await other.messages.create(model="tiny", messages=HI, stream=True, max_tokens=9),
            await client.responses.create(model="tiny", input="hi", stream=True),
        ]
        quick.engine.release.set()
        for stream in streams[:3]:
            with pytest.raises((openai.APIError, anthropic.APIError)) as refused:
                async for _ in stream:
                    pass
            body: Any = refused.value.body
            assert body.get("error", body)["code"] == "request_queue_timeout"
        last = [event async for event in streams[3]][-1]
    assert (last.type, last.response.error.code) == ("response.failed", "request_queue_timeout")


async def test_a_response_in_the_making_is_cancelled_by_another_client(quick: Served) -> None:
    quick.engine.misbehaviour = Misbehaviour.TALKS_UNTIL_ENDED
    async with openai_async(quick) as client, openai_async(quick) as other:
        stream: Any = await client.responses.create(model="tiny", input="hi", stream=True, max_output_tokens=90_000,
                                                    metadata={"a": "b"})
        events = [await anext(stream) for _ in range(5)]
        ended = await other.responses.cancel(events[0].response.id)
        events += [event async for event in stream]
    assert (events[-1].type, ended.status) == ("response.cancelled", "cancelled")
    last = events[-1].response  # an event of ours, so that the SDK leaves it as it came
    assert last["status"] == "cancelled"
    assert last["output"][0]["content"][0]["text"].startswith(ended.output_text)
    assert ended.output_text
    same = {"id", "created_at", "metadata", "model", "tool_choice", "tools", "parallel_tool_calls"}
    assert ended.model_dump(include=same) == {name: last[name] for name in same}


async def test_salt_and_key_reach_the_engine_and_the_reply(served: Served) -> None:
    async with openai_async(served) as client:
        made = await client.responses.create(model="tiny", input="hi", prompt_cache_key="group-7",
                                             extra_body={"cache_salt": "mine"})
        child: Any = await client.responses.create(model="tiny", input="and?", previous_response_id=made.id)
        chat: Any = await client.chat.completions.create(model="tiny", messages=HI, prompt_cache_key="group-7",
                                                         extra_body={"cache_salt": "other"})
    assert made.prompt_cache_key == "group-7"
    assert [request.cache_salt for request in served.engine.requests] == ["mine", "mine", "other"]
    assert chat.usage.prompt_tokens_details.cached_tokens == 0
    assert child.usage.input_tokens_details.cached_tokens == child.ninfer["reused_tokens"] > 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.sampled_from([*STREAMS]))
def test_whatever_a_model_says_every_stream_is_well_formed(shared: Served, text: str, path: str) -> None:
    shared.says.text = text + "\r\n\ndata: {}\n\n\u2028"  # what would break lines, if anything would
    body = {"model": "tiny", "stream": True, **STREAMS[path]}
    raw = httpx.post(f"{shared.http.base_url}{path}".replace("//v1", "/v1"), json=body, timeout=20).content
    shared.says.text = "fine"
    assert raw.endswith(b"\n\n")
    events = raw[:-2].split(b"\n\n")
    for event in events:
        *names, data = event.split(b"\n")
        assert all(name.startswith(b"event: ") for name in names) and len(names) <= 1
        assert data == b"data: [DONE]" or isinstance(json.loads(data.removeprefix(b"data: ")), dict)
    assert raw.count(b"data: [DONE]") == (path in ("/v1/chat/completions", "/v1/completions"))
