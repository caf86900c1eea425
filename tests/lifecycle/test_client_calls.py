"""The client against real sockets that misbehave by name, and against canned replies."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from ninfer_engine.contract.errors import ErrorCode
from ninfer_lifecycle.client import (
    MAX_REPLY_BYTES,
    Deadlines,
    EngineClient,
    EngineDeadlineError,
    EngineProtocolError,
    EngineReplyError,
    EngineUnreachableError,
)
from ninfer_lifecycle.errors import EngineError, ExitCode

REPLY = {
    "id": "resp_1", "object": "response", "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "one "},
                                               {"type": "output_text", "text": "two"}]}],
    "usage": {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2,
              "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 12},
    "ninfer": {"request_id": "ab", "path": "root", "frontier_tokens": 0, "reused_tokens": 0, "computed_tokens": 10},
}


def client(handler: httpx.MockTransport, **options: object) -> EngineClient:
    return EngineClient("http://engine", "the-key", transport=handler, **options)  # type: ignore[arg-type]  # names


def answering(status: int, body: object) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _: httpx.Response(status, json=body))


@contextmanager
def serving(*behaviours: str) -> Iterator[tuple[str, list[bytes]]]:
    """A socket server; connection N is silent, trickle, truncated or ok. Yields its URL and what it got."""
    listener = socket.create_server(("127.0.0.1", 0))
    got: list[bytes] = []
    open_connections: list[socket.socket] = []
    done = threading.Event()

    def serve() -> None:
        for behaviour in behaviours:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_connections.append(connection)
            got.append(connection.recv(65536))
            try:
                _behave(connection, behaviour, done)
            except OSError:
                continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", got
    finally:
        done.set()
        with suppress(OSError):  # wakes accept
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_connections:
            connection.close()
        thread.join(10)


def _behave(connection: socket.socket, behaviour: str, done: threading.Event) -> None:
    body = json.dumps(REPLY).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    match behaviour:
        case "silent":
            done.wait(30)
        case "trickle":
            connection.sendall(head)
            for byte in body:
                if done.wait(0.02):
                    return
                connection.sendall(bytes([byte]))
        case "truncated":
            connection.sendall(head + body[: len(body) // 2])
            connection.close()
        case _:
            connection.sendall(head + body)


def test_a_reply_is_typed_and_its_text_joined() -> None:
    reply = client(answering(200, REPLY)).create_response({"model": "m", "input": "hi"})
    assert reply.text == "one two"
    assert reply.usage is not None and reply.usage.input_tokens_details.cached_tokens == 0
    assert reply.ninfer is not None and reply.ninfer.computed_tokens == 10


def test_a_reply_of_another_engine_without_the_ninfer_object_is_read_too() -> None:
    body = {key: value for key, value in REPLY.items() if key != "ninfer"}
    assert client(answering(200, body)).create_response({}).ninfer is None


def test_cached_tokens_that_the_engine_left_out_stay_unreported_and_are_never_zero() -> None:
    body = {**REPLY, "usage": {"input_tokens": 1, "input_tokens_details": {}, "output_tokens": 1, "total_tokens": 2}}
    usage = client(answering(200, body)).create_response({}).usage
    assert usage is not None and usage.input_tokens_details.cached_tokens is None


def test_key_and_session_travel_in_headers() -> None:
    seen: list[httpx.Request] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=REPLY)

    client(httpx.MockTransport(note)).create_response({"input": "é"}, session="a" * 64)
    assert seen[0].headers["Authorization"] == "Bearer the-key"
    assert seen[0].headers["X-NInfer-Session"] == "a" * 64
    assert json.loads(seen[0].content) == {"input": "é"}


def test_an_error_body_becomes_an_error_with_its_code_and_advice() -> None:
    body = {"error": {"message": "too long", "type": "invalid_request_error",
                      "code": "context_length_exceeded", "param": "input"}}
    with pytest.raises(EngineReplyError) as caught:
        client(answering(400, body)).create_response({})
    error = caught.value
    assert (error.status, error.code, error.param) == (400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "input")
    assert "max_context" in error.advice and error.exit_code is ExitCode.INCONCLUSIVE


def test_an_error_page_of_something_else_is_shown_in_part() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(502, text="<html>" + "x" * 10_000))
    with pytest.raises(EngineReplyError) as caught:
        client(transport).models()
    assert "<html>" in caught.value.message and len(caught.value.message) < 400


@pytest.mark.parametrize("body", [[], {}, {"id": 1}, "text"])
def test_a_success_that_is_no_reply_is_a_protocol_error(body: object) -> None:
    with pytest.raises(EngineProtocolError):
        client(answering(200, body)).create_response({})


def test_health_of_an_engine_that_cannot_serve_is_a_value() -> None:
    health = client(answering(503, {"status": "loading"})).health()
    assert (health.ok, health.http_status) == (False, 503)


def test_a_silent_engine_ends_at_the_deadline() -> None:
    with serving("silent") as (url, _), EngineClient(url) as engine, pytest.raises(EngineDeadlineError):
        engine.create_response({}, timeout_s=0.3)


def test_an_engine_that_trickles_ends_at_the_deadline_of_the_whole_reply() -> None:
    with serving("trickle") as (url, _), EngineClient(url) as engine:
        started = time.monotonic()
        with pytest.raises(EngineDeadlineError, match="not whole after"):
            engine.create_response({}, timeout_s=0.5)
        assert time.monotonic() - started < 0.02 * len(json.dumps(REPLY))


def test_a_post_whose_reply_breaks_is_not_sent_again() -> None:
    with serving("truncated", "ok") as (url, got), EngineClient(url) as engine:
        with pytest.raises(EngineUnreachableError):
            engine.create_response({"input": "x"})
        assert len(got) == 1


def test_a_get_is_sent_again_after_a_broken_connection() -> None:
    with serving("truncated", "ok") as (url, got), EngineClient(url) as engine:
        assert engine.get_response("resp_1").id == "resp_1"
        assert len(got) == 2


def test_no_engine_is_an_error_within_the_deadline_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with EngineClient(f"http://127.0.0.1:{port}", deadlines=Deadlines(quick_s=0.3)) as engine:
        with pytest.raises(EngineUnreachableError, match=f"127.0.0.1:{port}"):
            engine.models()
        with pytest.raises(EngineUnreachableError):
            engine.health()


def test_a_reply_beyond_the_size_limit_is_refused() -> None:
    huge = httpx.MockTransport(lambda _: httpx.Response(200, content=b" " * (MAX_REPLY_BYTES + 1)))
    with pytest.raises(EngineProtocolError, match="more than"):
        client(huge).models()


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serving("ok") as (url, _), EngineClient(url) as engine:
        assert engine.get_response("resp_1").status == "completed"


def test_every_client_error_is_an_engine_error() -> None:
    for kind in (EngineUnreachableError, EngineDeadlineError, EngineProtocolError, EngineReplyError):
        assert issubclass(kind, EngineError)


def test_checkpoint_calls_send_exactly_the_session() -> None:
    seen: list[tuple[str, str, bytes]] = []
    save = {"session_sha256": "a" * 64, "mode": "explicit", "generation": 1, "bytes": 5, "frontier_tokens": 3,
            "response_records": 1, "written_bytes": 5, "engine_stall_s": 0.0}

    def note(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path, request.content))
        if request.method == "POST":
            return httpx.Response(200, json=save)
        if request.method == "DELETE":
            return httpx.Response(200, json={"session_sha256": "a" * 64, "deleted": True})
        return httpx.Response(200, json={"session_sha256": "a" * 64, "state": "available"})

    engine = client(httpx.MockTransport(note))
    assert engine.save("a" * 64).generation == 1
    assert engine.checkpoint_status("a" * 64).state == "available"
    assert engine.delete_checkpoint("a" * 64).deleted
    body = json.dumps({"session_sha256": "a" * 64}).encode()
    assert seen == [("POST", "/v1/ninfer/checkpoints", body), ("GET", "/v1/ninfer/checkpoints/status", b""),
                    ("DELETE", "/v1/ninfer/checkpoints", body)]
