"""The SDKs against a server over the real engine and the tiny model: what the fake engine cannot show."""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import openai
import pytest
from real_server import real_server, until_idle

HI: Any = [{"role": "user", "content": "Which account of the ledger pays the most, and in which line of it?"}]
SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"ok": {"type": "boolean"}, "count": {"enum": [1, 2, 3]}},
    "required": ["ok", "count"], "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "pay", "parameters": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A running server."""
    with real_server() as server:
        yield server.url


def samples(text: str) -> dict[str, float]:
    """Prometheus text: every sample by its name and labels."""
    return {name: float(value) for name, value in re.findall(r"^([^#]\S*) (\S+)$", text, re.MULTILINE)}


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def test_a_prompt_that_is_too_long_is_refused_under_the_routes_own_name_for_it(client: openai.OpenAI, url: str) -> None:
    long = "line " * 5000
    told: Any = [{"role": "user", "content": long}]
    claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    for param, ask in (
        ("messages", lambda: client.chat.completions.create(model="tiny", messages=told, stream=True)),
        ("prompt", lambda: client.completions.create(model="tiny", prompt=long)),
        ("prompt", lambda: client.completions.create(model="tiny", prompt=[70] * 5000)),
        ("input", lambda: client.responses.create(model="tiny", input=long, stream=True)),
        ("messages", lambda: claude.messages.create(model="tiny", messages=told, max_tokens=5, stream=True)),
    ):
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as refused:
            ask()
        error = refused.value.response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        count, limit = re.findall(r"\d+", error["message"])
        assert int(count) > int(limit) == 4096


def test_a_reply_that_may_be_longer_than_the_context_ends_with_it(client: openai.OpenAI, url: str) -> None:
    endless = {"response_format": {"type": "regex", "pattern": "a{1000}"}}
    made = client.completions.create(model="tiny", prompt=[70] * 4090, max_tokens=10**6, extra_body=endless)
    assert (made.choices[0].finish_reason, made.usage.completion_tokens) == ("length", 6)  # type: ignore[union-attr]  # it is there


def test_choices_share_one_prefill_and_tell_logprobs(client: openai.OpenAI) -> None:
    made: Any = client.chat.completions.create(
        model="tiny", messages=HI, n=4, seed=3, max_tokens=12, logprobs=True, top_logprobs=3, temperature=1)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    reused = [choice.ninfer["reused_tokens"] for choice in made.choices]
    assert reused == [0, *[made.usage.prompt_tokens - 1] * 3]
    assert made.usage.prompt_tokens_details.cached_tokens == 0
    for choice in made.choices:
        for log in choice.logprobs.content:
            assert log.logprob <= 0
            assert [one.logprob for one in log.top_logprobs] == sorted(
                (one.logprob for one in log.top_logprobs), reverse=True)
    again: Any = client.chat.completions.create(model="tiny", messages=HI, n=2, seed=3, max_tokens=12, temperature=1)
    assert [choice.message.content for choice in again.choices] == \
        [choice.message.content for choice in made.choices[:2]]
    greedy: Any = client.chat.completions.create(model="tiny", messages=HI, max_tokens=6, temperature=0, logprobs=True,
                                                 top_logprobs=1)
    assert all(log.top_logprobs[0].token == log.token for log in greedy.choices[0].logprobs.content)


@pytest.mark.parametrize("temperature", [0, 1])
def test_formats_and_forced_calls_bind_the_real_sampler(client: openai.OpenAI, temperature: int) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    made: Any = client.chat.completions.create(model="tiny", messages=HI, response_format=wanted, max_tokens=60,
                                               temperature=temperature)
    jsonschema.validate(json.loads(made.choices[0].message.content), SCHEMA)
    with client.chat.completions.stream(model="tiny", messages=HI, tools=[TOOL], tool_choice="required",
                                        parallel_tool_calls=False, max_tokens=120, temperature=temperature) as stream:
        for _ in stream:
            pass
        final: Any = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    jsonschema.validate(json.loads(final.choices[0].message.tool_calls[0].function.arguments), SCHEMA)


def test_streams_of_several_choices_each_follow_the_format_and_call_the_tools(client: openai.OpenAI) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    formatted = said_in_streams(client, response_format=wanted, logprobs=True)
    called = said_in_streams(client, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    for text, finish in formatted + called:
        jsonschema.validate(json.loads(text), SCHEMA)
        assert finish in ("stop", "tool_calls")


def said_in_streams(client: openai.OpenAI, **fields: Any) -> list[tuple[str, str]]:
    """The text or the arguments of three choices that come at once, and how each ended."""
    said, ends = [""] * 3, [""] * 3
    for chunk in client.chat.completions.create(model="tiny", messages=HI, n=3, seed=1, stream=True, max_tokens=120,
                                                stream_options={"include_usage": True}, **fields):
        for choice in chunk.choices:
            [call] = choice.delta.tool_calls or [None]
            said[choice.index] += call.function.arguments if call is not None else choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert chunk.usage is not None
    assert not chunk.choices
    return list(zip(said, ends, strict=True))


def test_what_the_metrics_count_is_what_the_replies_say() -> None:
    with real_server() as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        made: list[Any] = [client.chat.completions.create(model="tiny", messages=HI, max_tokens=9) for _ in range(3)]
        first = client.responses.create(model="tiny", input="Name the lines.", max_output_tokens=9)
        made.append(client.responses.create(model="tiny", input="And?", previous_response_id=first.id,
                                            max_output_tokens=9))
        made.append(first)
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="tiny", prompt="line " * 5000)
        until_idle(server)
        found = samples(server.http.get("/metrics").text)
    records = [one.ninfer for one in made]
    for path, count in Counter(record["path"] for record in records).items():
        assert found[f'ninfer_prefix_selections_total{{path="{path}"}}'] == count
    for reason, count in Counter(record["miss_reason"] for record in records if record["miss_reason"]).items():
        assert found[f'ninfer_prefix_misses_total{{reason="{reason}"}}'] == count
    assert found["ninfer_reused_tokens_total"] == sum(record["reused_tokens"] for record in records)
    assert found["ninfer_computed_tokens_total"] == sum(record["computed_tokens"] for record in records) == \
        found['ninfer_engine_tokens_total{kind="computed_prefill"}']
    for stage in ("queue", "plan", "restore", "ttft"):
        spent = sum(record["timings"][f"{stage}_s"] for record in records)
        assert found[f"ninfer_{stage}_seconds_sum"] == pytest.approx(spent)
    said = found['ninfer_engine_tokens_total{kind="committed_decode"}']
    assert found["ninfer_token_gap_seconds_count"] == said - len(made)
    assert found['ninfer_requests_ended_total{how="completed"}'] == len(made)
    assert found['ninfer_requests_ended_total{how="context_length_exceeded"}'] == 1
    assert found['ninfer_http_requests_total{route="/v1/responses",status="200"}'] == 2
    assert found['ninfer_http_requests_total{route="/v1/completions",status="400"}'] == 1
    assert found['ninfer_pool_occupied{pool="private_catalog"}'] == 2


def test_constrained_and_free_requests_share_a_batch(client: openai.OpenAI, url: str) -> None:
    free: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 40, "temperature": 0}
    alone: Any = client.chat.completions.create(**free)
    texts: list[str] = []

    def bound(_: int) -> None:
        made = client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=40, temperature=1,
            extra_body={"response_format": {"type": "regex", "pattern": "[ab]{30}"}})
        texts.append(str(made.choices[0].message.content))

    threads = [threading.Thread(target=bound, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    beside: Any = client.chat.completions.create(**free)
    for thread in threads:
        thread.join()
    assert beside.choices[0].message.content == alone.choices[0].message.content
    assert [set(text) <= {"a", "b"} and len(text) for text in texts] == [30, 30]
    assert anthropic.Anthropic(base_url=url, api_key="none").messages.create(
        model="tiny", max_tokens=5, messages=HI).usage.cache_read_input_tokens


def test_responses_continue_token_exact_and_penalties_change_the_reply(client: openai.OpenAI) -> None:
    base: Any = client.responses.create(model="tiny", input="Name the lines of the ledger.", max_output_tokens=20,
                                        temperature=0)
    child: Any = client.responses.create(model="tiny", input="And then?", previous_response_id=base.id,
                                         max_output_tokens=8, temperature=0)
    assert child.usage.input_tokens_details.cached_tokens >= base.usage.input_tokens + base.usage.output_tokens - 1
    bent: Any = client.responses.create(model="tiny", input="Name the lines of the ledger.", max_output_tokens=20,
                                        temperature=0, extra_body={"frequency_penalty": 2, "repetition_penalty": 3})
    assert bent.output_text != base.output_text
    biased: Any = client.responses.create(model="tiny", input="Name the lines.", max_output_tokens=5, temperature=0,
                                          extra_body={"logit_bias": {"97": 100}})
    assert biased.output_text == "aaaaa"
