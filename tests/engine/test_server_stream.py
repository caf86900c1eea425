"""Server-sent events of /v1/responses: order, numbers, endings, keep-alives, vanished clients."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import Misbehaviour
from server_harness import SESSION, Served, running

from ninfer_engine.server.context import Limits

ENDINGS = {"response.completed", "response.incomplete", "response.cancelled", "response.failed"}


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Served]:
    """A server whose keep-alives come soon and whose streams open at once."""
    with running(tmp_path, limits=Limits(keepalive_s=0.05, admission_grace_s=0.05)) as server:
        yield server


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types in order, repeated deltas said once."""
    found: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if not found or found[-1] != kind:
            found.append(kind)
    return found


def check_numbers(events: list[dict[str, Any]]) -> None:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events if event["type"] in ENDINGS] == [events[-1]["type"]]


def test_a_message_streams_in_the_published_order(served: Served) -> None:
    served.says.text = "some words to say"
    events = served.events("/v1/responses", input="hi")
    check_numbers(events)
    assert kinds(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]["response"]
    assert said == last["output"][0]["content"][0]["text"] == "some words to say"
    assert last["ninfer"]["computed_tokens"] == last["usage"]["input_tokens"]
    assert events[0]["response"]["id"] == last["id"]
    assert served.http.get(f"/v1/responses/{last['id']}").json() == last


def test_reasoning_and_calls_stream_as_items_of_their_own(served: Served) -> None:
    served.says.text = '<think>\nhm\n</think>\n\nok <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    events = served.events("/v1/responses", input="hi", tools=[tool])
    check_numbers(events)
    assert kinds(events)[2:] == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done", "completed",
    ]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output


def test_a_stream_and_a_whole_reply_say_the_same(served: Served) -> None:
    served.says.text = "  text with <tool_call> in it, é and <think>"
    whole = served.create("x")["output"][0]["content"]
    assert served.events("/v1/responses", input="x")[-1]["response"]["output"][0]["content"] == whole
    assert whole[0]["text"] == served.says.text


def test_a_stream_cut_by_its_limit_ends_incomplete_and_is_stored(served: Served) -> None:
    served.says.text = "many words that go on"
    events = served.events("/v1/responses", input="x", max_output_tokens=2)
    assert events[-1]["type"] == "response.incomplete"
    served.create("on", previous_response_id=events[-1]["response"]["id"])


@pytest.mark.parametrize(
    ("misbehaviour", "status", "code"),
    [(Misbehaviour.OVERLOADED, 429, "server_overloaded"), (Misbehaviour.DEAD, 503, "engine_unavailable"),
     (Misbehaviour.RAISES, 500, "internal_error")],
)
def test_a_stream_that_is_refused_at_once_gets_an_http_status(
    served: Served, misbehaviour: Misbehaviour, status: int, code: str
) -> None:
    served.engine.misbehaviour = misbehaviour
    assert served.create("hello", status, stream=True)["error"]["code"] == code


def test_a_stream_that_is_refused_late_ends_in_failed(quick: Served) -> None:
    quick.engine.misbehaviour = Misbehaviour.QUEUE_TIMEOUT
    with quick.http.stream("POST", "/v1/responses", json={"model": "tiny", "input": "x", "stream": True}) as reply:
        lines = reply.iter_lines()
        assert next(lines) == "event: response.created"
        quick.engine.release.set()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    check_numbers(events)
    assert events[-1]["response"]["error"]["code"] == "request_queue_timeout"
    assert events[-1]["type"] == "response.failed"


def test_a_fault_in_the_middle_of_a_stream_ends_it_in_failed_and_the_server_goes_on(served: Served) -> None:
    served.engine.misbehaviour = Misbehaviour.RAISES_AFTER_THE_SCRIPT
    events = served.events("/v1/responses", input="x")
    check_numbers(events)
    assert events[-1]["type"] == "response.failed"
    assert "secret" not in json.dumps(events)
    served.engine.misbehaviour = None
    served.create()


def test_silence_is_broken_by_comments(quick: Served) -> None:
    quick.engine.misbehaviour = Misbehaviour.SILENT_UNTIL_RELEASED
    with quick.http.stream("POST", "/v1/responses", json={"model": "tiny", "input": "x", "stream": True}) as reply:
        comments, last = 0, ""
        for line in reply.iter_lines():
            if line == ": keep-alive":
                comments += 1
                if comments == 3:
                    quick.engine.release.set()
            last = line or last
    assert comments >= 3
    assert json.loads(last.removeprefix("data: "))["type"] == "response.completed"


@pytest.mark.parametrize("misbehaviour", [Misbehaviour.SILENT_UNTIL_RELEASED, Misbehaviour.TALKS_UNTIL_ENDED])
def test_a_client_that_leaves_a_stream_frees_its_slot(quick: Served, misbehaviour: Misbehaviour) -> None:
    quick.engine.misbehaviour = misbehaviour
    body = {"model": "tiny", "input": "x", "stream": True, "ninfer_request_id": "d" * 64, "max_output_tokens": 10**6}
    body["max_output_tokens"] = 90_000
    with quick.http.stream("POST", "/v1/responses", json=body) as reply:
        next(reply.iter_lines())
    assert quick.engine.ended.wait(10)
    assert quick.engine.cancelled == ["d" * 64]
    assert quick.engine.responses.of_session(SESSION) == []


@pytest.mark.parametrize("misbehaviour", [Misbehaviour.SILENT_UNTIL_RELEASED, Misbehaviour.TALKS_UNTIL_ENDED])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/completions"])
def test_a_client_that_leaves_a_whole_reply_frees_its_slot(
    served: Served, misbehaviour: Misbehaviour, path: str
) -> None:
    served.engine.misbehaviour = misbehaviour
    limit = "max_tokens" if "completions" in path else "max_output_tokens"
    prompt = "prompt" if "completions" in path else "input"
    body = json.dumps({"model": "tiny", prompt: "x", limit: 90_000}).encode()
    raw = served.socket()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    raw.sendall(head.encode() + body)
    assert served.engine.started.wait(10)
    raw.close()
    assert served.engine.ended.wait(10)
    assert len(served.engine.cancelled) == 1
    served.engine.misbehaviour = None
    served.create()
    [error] = [line for line in served.lines() if line["event"] == "request_error"]
    assert error["code"] == "client_disconnected"


def test_cancel_ends_a_stream_in_cancelled_and_nothing_is_stored(quick: Served) -> None:
    quick.engine.misbehaviour = Misbehaviour.TALKS_UNTIL_ENDED
    body = {"model": "tiny", "input": "x", "stream": True, "ninfer_session": SESSION, "max_output_tokens": 90_000}
    events: list[dict[str, Any]] = []
    with quick.http.stream("POST", "/v1/responses", json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: "):
                continue
            events.append(json.loads(line[6:]))
            if len(events) == 1:
                url = f"/v1/responses/{events[0]['response']['id']}/cancel"
                assert quick.http.post(url).status_code == 404, "another session"
                done = quick.http.post(url, headers={"x-ninfer-session": SESSION})
                assert done.json()["status"] == "cancelled"
    check_numbers(events)
    assert events[-1]["type"] == "response.cancelled"
    assert quick.engine.responses.of_session(SESSION) == []


def test_cancelling_a_complete_response_returns_it(served: Served) -> None:
    reply = served.create()
    assert served.http.post(f"/v1/responses/{reply['id']}/cancel").json() == reply


def test_status_and_health_answer_while_requests_wait(served: Served) -> None:
    served.engine.misbehaviour = Misbehaviour.SILENT_UNTIL_RELEASED
    waiting = threading.Thread(target=served.create)
    waiting.start()
    assert served.engine.started.wait(10)
    assert served.http.get("/v1/ninfer/status").status_code == 200
    assert served.http.get("/health").json() == {"status": "ok"}
    served.engine.release.set()
    waiting.join(10)
    assert not waiting.is_alive()
