"""Bad requests: each gets the error body of its own, by name and place, and the engine goes on."""

import contextlib
import json
import re
import select
from pathlib import Path
from typing import Any

import pytest
from fake_engine import Misbehaviour
from server_harness import OTHER, SESSION, Served, running

from ninfer_engine.server.context import Limits

GOOD = {"model": "tiny", "input": "x"}
TOOL = {"type": "function", "name": "f"}


def post_raw(served: Served, content: bytes, path: str = "/v1/responses") -> tuple[int, dict[str, Any]]:
    reply = served.http.post(path, content=content)
    assert len(reply.headers["x-request-id"]) == 64
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return reply.status_code, error


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'"text"', b"null", b'{"model": "tiny", "input": "x",}', b"\xff\xfe", b'{"a": NaN}',
        b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": ' + b"1" * 5000 + b"}", b'{"input": "\\ud800"}',
        b'{"model": "tiny", "input": "x", "input": "y"}', b'{"input": {"a": 1, "a": 2}}', b"[" * 100_000,
        b'{"a":' * 50_000, b'{"input": ' + b"[" * 101 + b"]" * 101 + b"}",
    ],
)
def test_what_is_not_strict_json_is_invalid_json(shared: Served, content: bytes) -> None:
    status, error = post_raw(shared, content)
    assert (status, error["code"], error["type"]) == (400, "invalid_json", "invalid_request_error")
    shared.create()


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"colour": "red"}, "unknown_parameter", "colour"),
        ({"tools": [{**TOOL, "colour": 1}]}, "unknown_parameter", "tools[0].colour"),
        ({"input": [{"role": "user", "content": "x", "colour": 1}]}, "unknown_parameter", "input[0].colour"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "y": 1}]}]},
         "unknown_parameter", "input[0].content[0].y"),
        ({"input": None}, "invalid_request", "input"),
        ({"input": []}, "invalid_request", "input"),
        ({"input": 5}, "invalid_request", "input"),
        ({"input": ["x"]}, "invalid_request", "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "invalid_request", "input[0].role"),
        ({"input": [{"role": "user"}]}, "invalid_request", "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
         "invalid_request", "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "unsupported_parameter", "input[0].content[0].type"),
        ({"input": [{"type": "computer_call"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
         "invalid_request", "input[0].call_id"),
        ({"temperature": "hot"}, "invalid_request", "temperature"),
        ({"temperature": 2.5}, "invalid_request", "temperature"),
        ({"temperature": True}, "invalid_request", "temperature"),
        ({"top_p": 0}, "invalid_request", "top_p"),
        ({"max_output_tokens": 0}, "invalid_request", "max_output_tokens"),
        ({"max_output_tokens": 1.5}, "invalid_request", "max_output_tokens"),
        ({"max_output_tokens": "5"}, "invalid_request", "max_output_tokens"),
        ({"store": "yes"}, "invalid_request", "store"),
        ({"stream": 1}, "invalid_request", "stream"),
        ({"metadata": {"a": 1}}, "invalid_request", "metadata.a"),
        ({"previous_response_id": 7}, "invalid_request", "previous_response_id"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"reasoning": {"effort": "extreme"}}, "invalid_request", "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "unsupported_parameter", "reasoning.summary"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"include": ["reasoning.encrypted_content"]}, "unsupported_parameter", "include"),
        ({"include": "message.output_text.logprobs"}, "invalid_request", "include"),
        ({"text": {"format": {"type": "yaml"}}}, "unsupported_parameter", "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}},
         "unsupported_parameter", "text.format.schema"),
        ({"text": {"colour": 1}}, "unsupported_parameter", "text.colour"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{**TOOL, "strict": True, "parameters": {"properties": {"a": {"not": {}}}}}]},
         "unsupported_parameter", "tools"),
        ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "invalid_request", "tools[1]"),
        ({"tool_choice": {"type": "web_search"}}, "unsupported_parameter", "tool_choice.type"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(shared: Served, change: dict[str, Any], code: str, param: str) -> None:
    before = len(shared.engine.requests)
    status, error = post_raw(shared, json.dumps(GOOD | change).encode())
    assert (status, error["code"], error["param"]) == (400, code, param)
    assert param.rsplit(".", 1)[-1] in error["message"]
    assert len(shared.engine.requests) == before


def test_fields_at_the_value_that_says_what_happens_anyway_are_accepted(served: Served) -> None:
    served.create(
        background=False, truncation="disabled", parallel_tool_calls=True, service_tier="auto", include=[],
        top_logprobs=0,
        text={"format": {"type": "text"}}, reasoning=None, tools=[], tool_choice="auto", prompt_cache_key="k",
    )
    # false is not 0, and true is not 1
    assert served.create("hello", 400, top_logprobs=False)["error"]["param"] == "top_logprobs"


def test_a_missing_model_is_required_and_a_wrong_one_not_found(shared: Served) -> None:
    assert post_raw(shared, b'{"input": "x"}')[1]["param"] == "model"
    status, error = post_raw(shared, b'{"input": "x", "model": "other"}')
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize(
    ("header", "body"),
    [(SESSION, OTHER), (None, "A" * 64), (None, "a" * 63), (None, 5), ("nonsense", None), ("", None)],
)
def test_a_session_that_is_malformed_or_given_as_two_is_refused(shared: Served, header: str | None, body: Any) -> None:
    headers = {} if header is None else {"x-ninfer-session": header}
    fields = GOOD if body is None else GOOD | {"ninfer_session": body}
    reply = shared.http.post("/v1/responses", json=fields, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_ninfer_identity")


def test_a_request_id_that_is_running_already_is_refused(served: Served) -> None:
    assert served.create("hello", 400, ninfer_request_id="x")["error"]["code"] == "invalid_ninfer_identity"
    served.engine.misbehaviour = Misbehaviour.SILENT_UNTIL_RELEASED
    body = GOOD | {"ninfer_request_id": "e" * 64, "stream": True}
    with served.http.stream("POST", "/v1/responses", json=body) as first:
        assert served.http.post("/v1/responses", json=body).json()["error"]["param"] == "ninfer_request_id"
        served.engine.release.set()
        first.read()
    served.engine.misbehaviour = None
    assert served.http.post("/v1/responses", json=body).status_code == 200


def test_the_same_session_in_both_places_is_one(served: Served) -> None:
    served.post("/v1/responses", 200, {"x-ninfer-session": SESSION}, input="x", ninfer_session=SESSION)
    assert served.engine.requests[0].session == SESSION


@pytest.mark.parametrize(
    ("misbehaviour", "status", "code", "kind"),
    [
        (Misbehaviour.OVERLOADED, 429, "server_overloaded", "rate_limit_error"),
        (Misbehaviour.DEAD, 503, "engine_unavailable", "server_error"),
        (Misbehaviour.RAISES, 500, "internal_error", "server_error"),
        (Misbehaviour.RAISES_AFTER_THE_SCRIPT, 500, "internal_error", "server_error"),
        (Misbehaviour.NEVER_SAYS_FINISHED, 500, "internal_error", "server_error"),
    ],
)
def test_what_the_engine_refuses_or_breaks_has_its_status(
    served: Served, misbehaviour: Misbehaviour, status: int, code: str, kind: str
) -> None:
    served.engine.misbehaviour = misbehaviour
    reply = served.http.post("/v1/responses", json=GOOD)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (status, code, kind)
    assert "secret" not in reply.text
    if status == 500:
        assert reply.headers["x-request-id"] in error["message"]
    served.engine.misbehaviour = None
    served.create()


def test_a_queue_timeout_is_503(served: Served) -> None:
    served.engine.misbehaviour = Misbehaviour.QUEUE_TIMEOUT
    served.engine.release.set()
    assert served.create("hello", 503)["error"]["code"] == "request_queue_timeout"


def test_a_prompt_that_is_too_long_says_the_count_and_the_limit(served: Served) -> None:
    count = served.post("/v1/responses/input_tokens", input="hello " * 50_000)["input_tokens"]
    error = served.create("hello " * 50_000, 400)["error"]
    assert error["code"] == "context_length_exceeded"
    assert re.findall(r"\d+", error["message"]) == [str(count), "100000"]


def test_the_default_limit_shrinks_to_the_room_that_is_left(tmp_path: Path) -> None:
    with running(tmp_path, default_max_tokens=1_000_000) as served:
        served.create()
        request = served.engine.requests[0]
        assert request.sampling.max_new_tokens == 100_000 - len(request.tokens)


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(max_body_bytes=1000)) as served:
        reply = served.raw(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n")
        assert b" 413 " in reply and b"request_too_large" in reply
        served.create()


def test_a_body_may_be_as_large_as_a_prompt_that_fits_could_make_it_and_no_larger(served: Served) -> None:
    limit = 4 * 2**20 + 32 * 100_000
    body = json.dumps({"model": "tiny", "input": "x", "user": ""}).encode()
    fits = body[:-2] + b"u" * (limit - len(body)) + body[-2:]
    assert served.http.post("/v1/responses", content=fits).status_code == 200
    assert served.http.post("/v1/responses", content=fits + b" ").json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(("path", "field", "item", "count"), [
    ("/v1/completions", "x", [], 600_000),
    ("/v1/chat/completions", "messages", {"role": "user", "content": []}, 60_000),
    ("/v1/responses", "input", {"role": "user", "content": []}, 60_000),
    ("/v1/messages", "messages", {"role": "user", "content": []}, 60_000),
])
def test_others_are_answered_while_a_large_body_is_read(
    served: Served, path: str, field: str, item: Any, count: int
) -> None:
    """It is refused at its end, when all of it has been looked at."""
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    content = json.dumps({"model": "tiny", limit: 9, field: [item] * count + [5]}).encode()
    with served.socket() as raw:
        raw.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
        answered = 0
        while not select.select([raw], [], [], 0)[0]:
            answered += served.http.get("/health").status_code == 200
        assert raw.recv(65536).split()[1] == b"400"
    assert answered > 12


def test_a_body_that_grows_too_large_is_refused_while_it_is_sent(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(max_body_bytes=1000)) as served:
        chunk = b"200\r\n" + b"x" * 512 + b"\r\n"
        head = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        reply = served.raw(head + chunk * 2)  # and never the last chunk
        assert b" 413 " in reply and b"request_too_large" in reply


def test_malformed_http_is_refused_and_the_server_goes_on(served: Served) -> None:
    with served.socket() as raw:
        raw.sendall(b"\x00\x01\x02 nonsense\r\n\r\n")
        reply = raw.makefile("rb").read()
        assert b" 400 " in reply and b"x-request-id" in reply and b'"code": "invalid_request"' in reply
    with served.socket() as raw:
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf")
    served.create()


@pytest.mark.parametrize("head", [
    b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 200_000,
    b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x-many: 1\r\n" * 20_000,
    b"GET /" + b"a" * 200_000,
])
def test_a_head_that_does_not_end_is_refused_instead_of_kept(served: Served, head: bytes) -> None:
    with served.socket() as raw, contextlib.suppress(ConnectionError):  # the server stops reading when it has answered
        raw.sendall(head)
        reply = raw.makefile("rb").read()
        assert b" 400 " in reply and b"longer than" in reply
    served.create()


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.3"])
def test_a_request_that_offers_another_protocol_is_answered_in_this_one(served: Served, protocol: str) -> None:
    reply = served.http.post("/v1/responses", json=GOOD, headers={"connection": "upgrade", "upgrade": protocol})
    assert reply.status_code == 200
    assert served.http.post("/v1/responses", json=GOOD).status_code == 200


def test_requests_in_a_pipeline_are_answered_in_their_order(served: Served) -> None:
    with served.socket() as raw:
        raw.sendall(b"".join(f"GET {path} HTTP/1.1\r\nhost: x\r\nx-request-id: {path[1:]}\r\n{last}\r\n".encode()
                             for path, last in (("/health", ""), ("/none", ""), ("/metrics", "connection: close\r\n"))))
        reply = raw.makefile("rb").read()
    assert re.findall(rb"x-request-id: (\w+)", reply) == [b"health", b"none", b"metrics"]
    assert re.findall(rb"HTTP/1.1 (\d+)", reply) == [b"200", b"404", b"200"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"), ("GET", "/v1/responses/", 404, "not_found"),
        ("GET", "/v1/responses/input_tokens", 404, "response_not_found"),
        ("PATCH", "/v1/responses/resp_none", 405, "method_not_allowed"),
        ("PUT", "/v1/responses", 405, "method_not_allowed"), ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"), ("GET", "/v1/responses/resp_none", 404, "response_not_found"),
        ("DELETE", "/v1/responses/resp_none", 404, "response_not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
def test_routes_that_do_not_exist_answer_in_json(
    shared: Served, method: str, path: str, status: int, code: str
) -> None:
    reply = shared.http.request(method, path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert len(reply.headers["x-request-id"]) == 64
    assert ("allow" in reply.headers) == (status == 405)


def test_a_method_that_is_not_allowed_is_told_those_that_are(shared: Served) -> None:
    for path, methods in (("/v1/responses", "POST"), ("/v1/responses/resp_none", "DELETE, GET, HEAD"),
                          ("/v1/ninfer/checkpoints", "DELETE, POST"), ("/v1/models/tiny", "GET, HEAD")):
        assert shared.http.put(path).headers["allow"] == methods
