"""POST /v1/chat/completions, /v1/completions and /v1/messages."""

import json
from typing import Any

import pytest
from fake_engine import Misbehaviour
from server_harness import SESSION, Served

HI = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
COUNT = MESSAGES + "/count_tokens"
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI}, COMPLETIONS: {"prompt": "x"}, MESSAGES: {"messages": HI, "max_tokens": 50},
    COUNT: {"messages": HI},
}
CALL_TEXT = 'Look.\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
STRICT_NOT = {"type": "function", "function": {"name": "add", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"not": {"type": "null"}}}}}}
MESSAGES_TOOL = {"name": "add", "input_schema": {"type": "object"}}


def test_a_chat_completion_has_usage_and_diagnostics(served: Served) -> None:
    served.says.text = "<think>\nhm\n</think>\n\nhello"
    reply = served.post(CHAT, messages=HI, ninfer_session=SESSION)
    [choice] = reply["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("hello", "hm")
    assert (reply["object"], choice["finish_reason"]) == ("chat.completion", "stop")
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert reply["usage"]["prompt_tokens"] == reply["ninfer"]["computed_tokens"]
    prompt = served.model.tokenizer.encode(served.model.chat.render(HI))
    assert list(served.engine.requests[0].tokens) == prompt
    assert (served.engine.requests[0].session, served.engine.requests[0].store) == (SESSION, False)


def test_a_chat_stream_says_the_same_as_the_whole_and_ends_in_done(served: Served) -> None:
    served.says.text = CALL_TEXT
    whole = served.post(CHAT, messages=HI, tools=[TOOL])["choices"][0]
    events = served.events(CHAT, messages=HI, tools=[TOOL], stream_options={"include_usage": True})
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["message"]["content"] == "Look."
    pieces = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [piece["index"] for piece in pieces] == [0] * len(pieces)
    assert (pieces[0]["id"][:5], pieces[0]["function"]) == ("call_", {"name": "add", "arguments": ""})
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert {"name": "add", "arguments": arguments} == whole["message"]["tool_calls"][0]["function"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["finish_reason"] == "tool_calls"
    assert (events[-1]["choices"], events[-1]["usage"]["completion_tokens"] > 0) == ([], True)
    assert "ninfer" in events[-1] and "ninfer" not in events[-2]
    assert len({event["id"] for event in events}) == 1


def test_without_usage_the_last_chunk_has_the_diagnostics(served: Served) -> None:
    for path, body in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "x"})):
        events = served.events(path, **body)
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert "ninfer" in events[-1] and "usage" not in events[-1]


def test_a_stop_string_ends_the_reply_early_and_is_not_part_of_it(served: Served) -> None:
    served.says.text = "one two three "
    served.engine.misbehaviour = Misbehaviour.TALKS_UNTIL_ENDED
    reply = served.post(CHAT, messages=HI, stop=["zzz", " three"], max_tokens=90_000)
    assert reply["choices"][0]["message"]["content"] == "one two"
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] < 100
    messages = served.post(MESSAGES, messages=HI, stop_sequences=[" three"], max_tokens=90_000)
    assert (messages["stop_reason"], messages["stop_sequence"]) == ("stop_sequence", " three")
    last = served.events(COMPLETIONS, prompt="x", stop="two", max_tokens=90_000)[-1]
    assert last["choices"][0]["finish_reason"] == "stop"


def test_tool_choice_none_leaves_the_prompt_as_it_is_and_calls_as_text(served: Served) -> None:
    served.says.text = CALL_TEXT
    free = served.post(CHAT, messages=HI, tools=[TOOL])
    bound = served.post(CHAT, messages=HI, tools=[TOOL], tool_choice="none")
    assert bound["choices"][0]["message"]["content"] == CALL_TEXT
    assert bound["usage"]["prompt_tokens"] == free["usage"]["prompt_tokens"]


def test_history_with_calls_and_reasoning_reaches_the_template(served: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    served.post(CHAT, messages=[
        {"role": "developer", "content": "rules"},
        *HI,
        {"role": "assistant", "content": None, "reasoning_content": "so", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
    ])
    parsed = {**call, "function": {"name": "add", "arguments": {"a": 1}}}
    whole = served.model.chat.render([
        {"role": "system", "content": "rules"},
        *HI,
        {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [parsed]},
        {"role": "tool", "content": "2"},
    ])
    assert list(served.engine.requests[0].tokens) == served.model.tokenizer.encode(whole)


@pytest.mark.parametrize(
    ("path", "change", "code", "param"),
    [
        (CHAT, {"n": 18}, "invalid_request", "n"),
        (CHAT, {"n": 0}, "invalid_request", "n"),
        (CHAT, {"top_logprobs": 2}, "invalid_request", "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "invalid_request", "top_logprobs"),
        (CHAT, {"presence_penalty": 2.5}, "invalid_request", "presence_penalty"),
        (CHAT, {"min_p": 1.5}, "invalid_request", "min_p"),
        (CHAT, {"repetition_penalty": 0}, "invalid_request", "repetition_penalty"),
        (CHAT, {"logit_bias": {"a": 1}}, "invalid_request", "logit_bias.a.[key]"),
        (CHAT, {"logit_bias": {"512": 1}}, "invalid_request", "logit_bias"),
        (CHAT, {"response_format": {"type": "yaml"}}, "unsupported_parameter", "response_format"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "invalid_request", "response_format.json_schema"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}},
         "unsupported_parameter", "response_format.json_schema.schema"),
        (CHAT, {"response_format": {"type": "regex", "pattern": "(["}}, "unsupported_parameter",
         "response_format.pattern"),
        (CHAT, {"response_format": {"type": "grammar", "grammar": "start"}}, "unsupported_parameter",
         "response_format.grammar"),
        (CHAT, {"response_format": {"type": "grammar", "grammar": "start: start"}}, "unsupported_parameter",
         "response_format.grammar"),
        (CHAT, {"tool_choice": "required"}, "invalid_request", "tool_choice"),
        (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
         "invalid_request", "tool_choice"),
        (CHAT, {"tools": [STRICT_NOT], "tool_choice": "required"}, "unsupported_parameter", "tools"),
        (CHAT, {"tools": [TOOL, TOOL]}, "invalid_request", "tools[1]"),
        (MESSAGES, {"tools": [MESSAGES_TOOL, MESSAGES_TOOL]}, "invalid_request", "tools[1]"),
        (COUNT, {"tool_choice": {"type": "any"}}, "invalid_request", "tool_choice"),
        (COUNT, {"output_format": {"type": "yaml"}}, "unsupported_parameter", "output_format"),
        (CHAT, {"enable_thinking": True}, "unsupported_parameter", "enable_thinking"),
        (CHAT, {"reasoning_effort": "extreme"}, "invalid_request", "reasoning_effort"),
        (CHAT, {"chat_template_kwargs": {"colour": 1}}, "unknown_parameter", "chat_template_kwargs.colour"),
        (CHAT, {"colour": 1}, "unknown_parameter", "colour"),
        (CHAT, {"messages": []}, "invalid_request", "messages"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "invalid_request", "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "name": "n"}]}, "unsupported_parameter",
         "messages[0].name"),
        (CHAT, {"stream": True, "stream_options": {"include_obfuscation": True}}, "unsupported_parameter",
         "stream_options.include_obfuscation"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "unsupported_parameter", "messages[0].content[0].type"),
        (CHAT, {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]},
         "invalid_request", "messages[0].tool_call_id"),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": 2}, "invalid_request", "max_tokens"),
        (CHAT, {"stop": [""]}, "invalid_request", "stop[0]"),
        (MESSAGES, {"stop_sequences": ["x" * 1025]}, "invalid_request", "stop_sequences[0]"),
        (CHAT, {"stream_options": {"include_usage": True}}, "invalid_request", "stream_options"),
        (CHAT, {"tool_choice": {"type": "function"}}, "invalid_request", "tool_choice.function"),
        (CHAT, {"tool_choice": "sometimes"}, "unsupported_parameter", "tool_choice"),
        (COMPLETIONS, {"prompt": ""}, "invalid_request", "prompt"),
        (COMPLETIONS, {"prompt": []}, "invalid_request", "prompt"),
        (COMPLETIONS, {"prompt": [512]}, "invalid_request", "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "invalid_request", "prompt"),
        (COMPLETIONS, {"prompt": [True]}, "invalid_request", "prompt"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "unsupported_parameter", "prompt"),
        (COMPLETIONS, {"echo": True}, "unsupported_parameter", "echo"),
        (COMPLETIONS, {"suffix": "x"}, "unsupported_parameter", "suffix"),
        (MESSAGES, {"max_tokens": None}, "invalid_request", "max_tokens"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1}}, "unsupported_parameter", "thinking"),
        (MESSAGES, {"thinking": {"type": "enabled"}}, "invalid_request", "thinking.budget_tokens"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 50}}, "invalid_request",
         "thinking.budget_tokens"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "invalid_request", "tool_choice"),
        (MESSAGES, {"tool_choice": {"type": "tool"}}, "invalid_request", "tool_choice.name"),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": {"type": "thing"}}},
         "unsupported_parameter", "output_format.schema"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "unsupported_parameter", "messages[0].content[0].type"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
         "invalid_request", "messages[0].content[0].tool_use_id"),
        (MESSAGES, {"messages": [{"role": "robot", "content": "x"}]}, "invalid_request", "messages[0].role"),
        (MESSAGES, {"messages": [*HI, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]}, "unsupported_parameter", "messages[1]"),
        (MESSAGES, {"messages": [*HI, {"role": "assistant", "content": "so"}], "output_format": {
            "type": "json_schema", "schema": {"type": "object"}}}, "invalid_request", "messages"),
        (MESSAGES, {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
         "unsupported_parameter", "system[0].cache_control.ttl"),
        (MESSAGES, {"thinking": {"type": "adaptive", "display": "omitted"}}, "unsupported_parameter",
         "thinking.display"),
    ],
)
def test_what_is_wrong_or_not_supported_is_named(
    shared: Served, path: str, change: dict[str, Any], code: str, param: str
) -> None:
    reply = shared.post(path, 400, **(GOOD[path] | change))
    assert (reply["error"]["code"], reply["error"]["param"]) == (code, param)
    assert (reply.get("type") == "error") == path.startswith(MESSAGES)


@pytest.mark.parametrize("prompt", ["some text", ["some text"]])
def test_a_completion_of_text_is_read_without_a_template(served: Served, prompt: Any) -> None:
    served.says.text = "<think>more</think>"
    reply = served.post(COMPLETIONS, prompt=prompt, max_tokens=30)
    assert list(served.engine.requests[0].tokens) == served.model.tokenizer.encode("some text")
    assert (reply["object"], reply["choices"][0]["text"]) == ("text_completion", "<think>more</think>")


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
def test_a_completion_of_token_ids_is_read_as_they_are(served: Served, prompt: Any) -> None:
    reply = served.post(COMPLETIONS, prompt=prompt)
    assert served.engine.requests[0].tokens == (5, 6, 7)
    assert served.engine.requests[0].sampling.max_new_tokens == 16
    assert reply["usage"]["prompt_tokens"] == 3


def test_a_message_has_blocks_and_counts_cached_tokens_apart(served: Served) -> None:
    served.says.text = "<think>\nhm\n</think>\n\n" + CALL_TEXT
    reply = served.post(MESSAGES, messages=HI, max_tokens=500, tools=[MESSAGES_TOOL], system="rules")
    assert [block["type"] for block in reply["content"]] == ["thinking", "text", "tool_use"]
    assert reply["content"][2]["input"] == {"a": 1}
    assert (reply["type"], reply["role"], reply["stop_reason"]) == ("message", "assistant", "tool_use")
    usage = reply["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(served.engine.requests[0].tokens)
    served.says.text = "two"
    result = {"type": "tool_result", "tool_use_id": reply["content"][2]["id"], "content": "2"}
    history = [*HI, {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}]
    assert served.post(MESSAGES, messages=history, max_tokens=5, tools=[MESSAGES_TOOL])["stop_reason"] == "end_turn"


def test_a_message_stream_builds_the_same_message(served: Served) -> None:
    served.says.text = "<think>\nhm\n</think>\n\n" + CALL_TEXT
    body = {"messages": HI, "max_tokens": 500, "tools": [MESSAGES_TOOL]}
    whole = served.post(MESSAGES, **body)
    events = served.events(MESSAGES, **body)
    ends = [events[place]["type"] for place in (0, -2, -1)]
    assert ends == ["message_start", "message_delta", "message_stop"]
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            kind, value = list(event["delta"].values())
            field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}[kind]
            blocks[-1][field] += value
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    for block in [*blocks, *whole["content"]]:
        block.pop("id", None)
    assert blocks == whole["content"]
    assert events[-2]["usage"] == whole["usage"]


def test_count_tokens_is_what_a_message_would_have(served: Served) -> None:
    body = {"messages": HI, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "tools": [MESSAGES_TOOL]}
    counted = served.post(COUNT, **body)
    served.post(MESSAGES, max_tokens=5, **body)
    assert counted == {"input_tokens": len(served.engine.requests[0].tokens)}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
def test_a_fault_in_the_middle_of_any_stream_is_told_in_it(served: Served, path: str) -> None:
    served.engine.misbehaviour = Misbehaviour.RAISES_AFTER_THE_SCRIPT
    assert served.events(path, **GOOD[path])[-1]["error"]["code"] == "internal_error"
