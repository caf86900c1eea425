"""Whatever a client sends, and whenever it leaves, the reply is an answer or an error body, never a fault; and the
engine, a real one, is idle afterwards and has lost nothing."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_server import RealServed, real_server, until_idle
from server_harness import SESSION

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "model": "tiny", "instructions": "i", "temperature": 0.5, "top_p": 1, "max_output_tokens": 9, "store": True,
        "tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}, "metadata": {"a": "b"}, "seed": 1,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        "parallel_tool_calls": False, "top_logprobs": 1, "include": ["message.output_text.logprobs"],
        "reasoning": {"effort": "low"}, "min_p": 0.1, "top_k": 4, "logit_bias": {"7": 1}, "presence_penalty": 0.5,
        "ninfer_session": SESSION, "previous_response_id": None, "stream": False, "cache_salt": "s",
        "prompt_cache_key": "k", "preserve_thinking": True,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "2"},
        ],
    },
    "/v1/chat/completions": {
        "model": "tiny", "max_tokens": 9, "stop": ["a"], "stream": True, "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ],
        "tools": [{"type": "function",
                   "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
        "tool_choice": "auto", "n": 2, "logprobs": True, "top_logprobs": 2, "frequency_penalty": -1,
        "repetition_penalty": 1.1, "response_format": {"type": "regex", "pattern": "a+b"}, "reasoning_effort": "low",
        "chat_template_kwargs": {"preserve_thinking": True}, "parallel_tool_calls": True,
    },
    "/v1/completions": {"model": "tiny", "prompt": [1, 2], "max_tokens": 3, "stop": "x", "logit_bias": {},
                        "logprobs": 2, "n": 2,
                        "response_format": {"type": "grammar", "grammar": 'start: "a" start | "b"'}},
    "/v1/messages": {
        "model": "tiny", "max_tokens": 9, "stop_sequences": ["a"], "cache_control": {"type": "ephemeral"},
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "2", "is_error": True}]},
            {"role": "system", "content": "y"},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low"}, "thinking": {"type": "adaptive"},
    },
    "/v1/ninfer/checkpoints": {"session_sha256": SESSION},
}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "x"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "n": 2},
    "/v1/completions": {"prompt": "x" * 300}, "/v1/messages": {"messages": [{"role": "user", "content": "x"}]},
}
LIMITS = {"/v1/responses": "max_output_tokens"} | dict.fromkeys([*STREAMS][1:], "max_tokens")
COUNTING = {"/v1/responses/input_tokens": "/v1/responses"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(["<|im_end|>", "<think>", "f"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServed]:
    """A server that takes whatever comes."""
    store = tmp_path_factory.mktemp("fuzz")
    with real_server(max_context=512, default_max_tokens=8, session_checkpoint_dir=str(store)) as server:
        yield server


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every node of a JSON value."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(found for key, child in inner for found in places(child, (*path, key)))]


def changed(body: Any, path: tuple[Any, ...], value: Any, remove: bool) -> Any:
    """`body` with the node at `path` replaced or removed."""
    if not path:
        return value
    made = copy.deepcopy(body)
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    if remove:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return made


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*BODIES, *COUNTING]), st.data())
def test_a_body_with_anything_anywhere_gets_an_answer_or_an_error_body(
    target: RealServed, path: str, data: Any
) -> None:
    body = BODIES[COUNTING.get(path, path)]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places(body)))
        body = changed(body, place, data.draw(JSON), data.draw(st.booleans()))
    reply = target.http.post(path, content=json.dumps(body))
    assert reply.status_code in (200, 400, 404, 409), reply.text
    assert len(reply.headers["x-request-id"]) == 64
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "code", "param"}
        assert error["message"]


def test_the_bodies_that_are_mutated_are_good_ones(target: RealServed) -> None:
    for path, body in BODIES.items():
        assert target.http.post(path, json=body).status_code == 200


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.sampled_from([*BODIES]))
def test_bytes_that_are_no_json_get_an_error_body(target: RealServed, content: bytes, path: str) -> None:
    reply = target.http.post(path, content=content)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] in ("invalid_json", "invalid_request")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(
    st.sampled_from(["x-ninfer-session", "authorization", "x-api-key", "content-type", "content-length", "accept"]),
    st.binary(max_size=20).map(lambda raw: raw.translate(None, b"\r\n\0").strip()), max_size=3))
def test_any_header_values_get_an_answer(target: RealServed, headers: dict[str, bytes]) -> None:
    lines = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in headers.items())
    with target.socket() as raw:
        raw.sendall(b"GET /v1/ninfer/checkpoints/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + lines + b"\r\n")
        status = int(raw.makefile("rb").readline().split()[1])
    assert status in (200, 400)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*STREAMS]), st.integers(0, 12), st.integers(1, 400), st.booleans())
def test_a_client_may_leave_a_reply_anywhere(
    target: RealServed, path: str, lines: int, length: int, stream: bool
) -> None:
    """lines: how many it reads first. The engine is looked at when the server stops."""
    body = {"model": "tiny", **STREAMS[path], LIMITS[path]: length, "stream": stream}
    content = json.dumps(body).encode()
    with target.socket() as raw:
        raw.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
        reply = raw.makefile("rb")
        read = [reply.readline() for _ in range(lines if stream else 0)]
    assert not read or read[0].split()[1] in (b"200", b"429")  # those who left before may not all be noticed yet


def test_the_server_goes_on(target: RealServed) -> None:
    until_idle(target)
    assert target.http.get("/health").status_code == 200
    target.create()
