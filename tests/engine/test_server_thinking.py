"""Reasoning in its own channel, its switches and its budgets, with a template that has the switches of Qwen's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from server_harness import Served, running

TEMPLATE = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.reasoning_content and preserve_thinking is not false %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% else %}<think>
{% endif %}
{%- endif -%}
"""
HI: Any = [{"role": "user", "content": "hi"}]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.fixture
def thinking(tmp_path: Path) -> Iterator[Served]:
    """A server of a model that thinks unless told not to."""
    with running(tmp_path, template=TEMPLATE) as server:
        server.says.text = "well, well\n</think>\n\nfine"
        yield server


def prompt_text(served: Served) -> str:
    """What the model read last."""
    tokens = served.engine.requests[-1].tokens
    return "".join(served.model.tokenizer.bytes_of(token).decode() for token in tokens)


def test_reasoning_comes_apart_on_every_route_whole_and_streamed(thinking: Served) -> None:
    message = thinking.post(CHAT, messages=HI)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("well, well", "fine")
    deltas = [event["choices"][0]["delta"] for event in thinking.events(CHAT, messages=HI)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "well, well"
    assert "".join(delta.get("content", "") for delta in deltas) == "fine"
    made = thinking.create(HI)
    assert [item["type"] for item in made["output"]] == ["reasoning", "message"]
    said = len(thinking.model.tokenizer.encode("well, well\n</think>"))
    assert made["usage"]["output_tokens_details"]["reasoning_tokens"] == said
    blocks = thinking.post(MESSAGES, messages=HI, max_tokens=99)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]


@pytest.mark.parametrize(("path", "fields"), [
    (CHAT, {"messages": HI, "enable_thinking": False}),
    (CHAT, {"messages": HI, "chat_template_kwargs": {"enable_thinking": False}}),
    (CHAT, {"messages": HI, "reasoning_effort": "none"}),
    (RESPONSES, {"input": HI, "reasoning": {"effort": "none"}}),
    (RESPONSES, {"input": HI, "enable_thinking": False}),
    (MESSAGES, {"messages": HI, "max_tokens": 50, "thinking": {"type": "disabled"}}),
])
def test_thinking_is_switched_off_by_every_name_that_clients_know(
    thinking: Served, path: str, fields: dict[str, Any]
) -> None:
    thinking.says.text = "fine"
    reply = thinking.post(path, **fields)
    assert prompt_text(thinking).endswith("<think>\n\n</think>\n\n")
    assert "reasoning_content" not in json.dumps(reply)
    assert '"type": "reasoning"' not in json.dumps(reply)


def test_two_names_of_a_switch_that_differ_are_refused(thinking: Served) -> None:
    reply = thinking.post(CHAT, 400, messages=HI, enable_thinking=True, chat_template_kwargs={"enable_thinking": False})
    assert reply["error"]["param"] == "enable_thinking"


def test_earlier_reasoning_stays_or_goes_as_asked(thinking: Served) -> None:
    history = [*HI, {"role": "assistant", "content": "fine", "reasoning_content": "old thoughts"}, *HI]
    thinking.post(CHAT, messages=history)
    assert "old thoughts" in prompt_text(thinking)
    thinking.post(CHAT, messages=history, preserve_thinking=True)
    assert "old thoughts" in prompt_text(thinking)
    thinking.post(CHAT, messages=history, preserve_thinking=False)
    assert "old thoughts" not in prompt_text(thinking)
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "old thoughts"}]}
    thinking.post(RESPONSES, input=[*HI, thought, {"role": "assistant", "content": "fine"}, *HI],
                  preserve_thinking=True)
    assert "old thoughts" in prompt_text(thinking)


DROPS = TEMPLATE.replace("m.reasoning_content and preserve_thinking is not false", "m.reasoning_content and loop.last")


def test_a_template_that_drops_earlier_reasoning_cannot_be_asked_to_keep_it(tmp_path: Path, thinking: Served) -> None:
    with running(tmp_path / "drops", template=DROPS) as dropping:
        for path, body in ((CHAT, {"messages": HI}), (RESPONSES, {"input": HI})):
            for fields in ({"preserve_thinking": True}, {"chat_template_kwargs": {"preserve_thinking": True}}):
                error = dropping.post(path, 400, **body, **fields)["error"]
                assert (error["code"], error["param"]) == ("unsupported_parameter", "preserve_thinking")
    error = thinking.post(RESPONSES, 400, input=HI, preserve_thinking=False)["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "preserve_thinking")


@pytest.mark.parametrize(("path", "fields"), [
    (CHAT, {"messages": HI, "reasoning_effort": "minimal"}),
    (RESPONSES, {"input": HI, "reasoning": {"effort": "minimal"}}),
    (MESSAGES, {"messages": HI, "max_tokens": 900, "thinking": {"type": "enabled", "budget_tokens": 256}}),
    (MESSAGES, {"messages": HI, "max_tokens": 900, "output_config": {"effort": "low"},
                "thinking": {"type": "enabled", "budget_tokens": 256}}),
])
def test_a_budget_ends_the_reasoning_and_the_answer_follows(
    thinking: Served, path: str, fields: dict[str, Any]
) -> None:
    thinking.says.text = "so " * 600
    reply = thinking.post(path, **fields)
    usage = reply["usage"]
    said = usage.get("completion_tokens", usage.get("output_tokens"))
    assert said >= 256 + len(thinking.model.tokenizer.encode("</think>"))
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    if details is not None:
        assert details["reasoning_tokens"] == 256 + len(thinking.model.tokenizer.encode("</think>"))


def test_a_format_begins_after_the_reasoning(thinking: Served) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}
    reply = thinking.post(CHAT, messages=HI, response_format={
        "type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    message = reply["choices"][0]["message"]
    assert message["reasoning_content"] == "well, well"
    assert set(json.loads(message["content"])) == {"ok"}


def test_the_answer_of_a_model_that_reasons_first_cannot_be_begun_for_it(thinking: Served) -> None:
    begun = [*HI, {"role": "assistant", "content": "so"}]
    refused = thinking.post(MESSAGES, 400, messages=begun, max_tokens=99)["error"]
    assert (refused["code"], refused["param"]) == ("unsupported_parameter", "messages")
    thinking.says.text = " it is"
    made = thinking.post(MESSAGES, messages=begun, max_tokens=99, thinking={"type": "disabled"})
    assert made["content"] == [{"type": "text", "text": " it is"}]
    assert prompt_text(thinking).endswith("<think>\n\n</think>\n\nso")


def test_the_sdks_read_reasoning(thinking: Served) -> None:
    client = openai.OpenAI(base_url=f"{thinking.http.base_url}/v1", api_key="none", max_retries=0)
    chat: Any = client.chat.completions.create(model="tiny", messages=HI, reasoning_effort="low")
    assert chat.choices[0].message.reasoning_content == "well, well"
    made: Any = client.responses.create(model="tiny", input="hi", reasoning={"effort": "high"})
    assert made.output[0].content[0].text == "well, well"
    messages = anthropic.Anthropic(base_url=str(thinking.http.base_url), api_key="none", max_retries=0)
    with messages.messages.stream(model="tiny", max_tokens=2000, messages=HI,
                                  thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
        thought = "".join(event.thinking for event in stream if event.type == "thinking")
        final: Any = stream.get_final_message()
    assert thought == final.content[0].thinking == "well, well"
