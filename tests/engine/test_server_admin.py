"""Health, models, status, checkpoints, keys, metrics, the request log, and how the server stops."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from fake_engine import INSTANCE, Misbehaviour
from server_harness import OTHER, SESSION, Served, running

from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.serve import bind

KEY = "key-0123456789"


def test_models_name_the_longest_context(served: Served) -> None:
    [model] = served.http.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 100_000)
    assert served.http.get("/v1/models/tiny").json() == model


def test_a_dead_engine_is_not_healthy(served: Served) -> None:
    served.engine.misbehaviour = Misbehaviour.DEAD
    for path in ("/health", "/v1/ninfer/status"):
        assert served.http.get(path).status_code == 503
    assert served.http.get("/health").json()["status"] == "unavailable"


def test_the_status_document_is_the_contracts(served: Served) -> None:
    document = served.http.get("/v1/ninfer/status").json()
    assert (document["artifact_type"], document["schema_version"]) == ("ninfer_server_status", 1)
    assert document["identity"]["server_instance_id"] == INSTANCE


@pytest.mark.parametrize("by_path", [False, True])
def test_checkpoints_are_saved_told_of_and_deleted_in_both_spellings(served: Served, by_path: bool) -> None:
    base, header = "/v1/ninfer/checkpoints", {"x-ninfer-session": SESSION}
    status = (f"{base}/{SESSION}/status", {}) if by_path else (f"{base}/status", header)
    nothing = served.http.post(base, json={"session_sha256": SESSION})
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (409, "nothing_to_save")
    served.create(ninfer_session=SESSION)
    assert served.http.post(base, json={"session_sha256": SESSION}, headers=header).json()["mode"] == "explicit"
    told = served.http.get(status[0], headers=status[1]).json()
    assert (told["state"], told["response_records"]) == ("available", 1)
    gone = (
        served.http.delete(f"{base}/{SESSION}")
        if by_path
        else served.http.request("DELETE", base, json={"session_sha256": SESSION})
    )
    assert gone.json() == {"session_sha256": SESSION, "deleted": True}
    assert served.http.get(status[0], headers=status[1]).json()["state"] == "missing"


@pytest.mark.parametrize(
    ("body", "code"),
    [({}, "invalid_request"), ({"session_sha256": "x"}, "invalid_request"),
     ({"session_sha256": SESSION, "more": 1}, "unknown_parameter"),
     ({"session_sha256": OTHER}, "invalid_ninfer_identity")],
)
def test_a_save_takes_exactly_one_session(served: Served, body: dict[str, object], code: str) -> None:
    reply = served.http.post("/v1/ninfer/checkpoints", json=body, headers={"x-ninfer-session": SESSION})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


def test_checkpoint_status_needs_a_session(served: Served) -> None:
    assert served.http.get("/v1/ninfer/checkpoints/status").status_code == 400
    assert served.http.get("/v1/ninfer/checkpoints/nonsense/status").status_code == 400


def test_every_route_but_health_needs_the_key(tmp_path: Path) -> None:
    with running(tmp_path, api_key=KEY) as served:
        assert served.http.get("/health").status_code == 200
        for path in ("/v1/models", "/v1/ninfer/status", "/metrics", "/nowhere", "/v1/responses/x"):
            reply = served.http.get(path)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
        good = [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"x-api-key": KEY}]
        bad = [{"authorization": KEY}, {"authorization": f"Basic {KEY}"}, {"x-api-key": KEY + "0"}, {"x-api-key": ""}]
        assert [served.http.get("/v1/models", headers=headers).status_code for headers in good] == [200] * 3
        assert [served.http.get("/v1/models", headers=headers).status_code for headers in bad] == [401] * 4
        odd = served.raw(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: \xff\xfe\r\n\r\n")
        assert b" 401 " in odd
        served.post("/v1/responses", 200, good[0], input="x")
        assert KEY not in json.dumps(served.lines())


def test_metrics_count_requests_hits_misses_and_pools(served: Served) -> None:
    base = served.create()
    served.create(previous_response_id=base["id"])
    served.create("hello", 400, colour=1)
    served.http.get("/nowhere")
    text = served.http.get("/metrics").text
    for line in (
        'ninfer_http_requests_total{route="/v1/responses",status="200"} 2.0',
        'ninfer_http_requests_total{route="/v1/responses",status="400"} 1.0',
        'ninfer_http_requests_total{route="unknown",status="404"} 1.0',
        'ninfer_prefix_selections_total{path="root"} 1.0',
        'ninfer_prefix_selections_total{path="private_endpoint"} 1.0',
        'ninfer_prefix_misses_total{reason="never_seen"} 1.0',
        "ninfer_ttft_seconds_count 2.0",
        'ninfer_pool_capacity{pool="device_state"} 0.0',
    ):
        assert line in text.splitlines()


def test_the_request_log_tells_each_request_once_and_no_text(served: Served) -> None:
    served.says.text = "confidential answer"
    first = served.create("confidential question", ninfer_session=SESSION)
    served.create("more", previous_response_id=first["id"], ninfer_session=SESSION)
    served.create("hello", 400, colour=1)
    served.engine.misbehaviour = Misbehaviour.OVERLOADED
    served.create("hello", 429)
    served.engine.misbehaviour = Misbehaviour.RAISES
    served.create("hello", 500)
    lines = served.lines()
    assert [line["event"] for line in lines] == [
        "server_start", "request_start", "request_done", "request_start", "request_done", "request_rejected",
        "request_start", "request_rejected", "request_start", "request_error",
    ]
    assert {line["server_instance_id"] for line in lines} == {INSTANCE}
    assert all(isinstance(line["timestamp_unix_ms"], int) for line in lines)
    assert [line["code"] for line in lines if "code" in line] == [
        "unknown_parameter", "server_overloaded", "internal_error"
    ]
    start, done = lines[3], lines[4]
    assert start["parent_response_id"] == first["id"]
    assert start["request_id"] == done["request_id"]
    assert done["result"]["prompt_tokens"] == start["prompt_tokens"]
    assert set(done) >= {"result", "timings_seconds", "materialization"}
    for secret in ("confidential", "secret", "colour"):
        assert secret not in served.log_path.read_text()


def test_a_log_without_a_path_does_nothing() -> None:
    log = RequestLog(None, INSTANCE)
    log.server_start()
    log.flush()
    log.close()


def test_a_full_disk_costs_log_lines_and_nothing_else() -> None:
    log = RequestLog(Path("/dev/full"), INSTANCE)
    log.server_start(model_id="tiny")
    log.flush()
    log.close()


def test_connections_do_not_hold_back_the_second_write_of_a_reply() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_port_that_is_taken_is_an_error() -> None:
    with bind("127.0.0.1", 0) as listener, pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", listener.getsockname()[1])


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fake_engine import FakeEngine, Misbehaviour
from server_harness import Says, tiny_model
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.server.app import create_app
from ninfer_engine.server.logs import configure_logging
from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.serve import Patience, serve
configure_logging("info")
model = tiny_model()
engine = FakeEngine(Says(model))
engine.misbehaviour = getattr(Misbehaviour, sys.argv[3], None)
app = create_app(engine, model, EngineFlags(), None, RequestLog(Path(sys.argv[2]), "i"))
serve(app, "127.0.0.1", 0, close=lambda: print("closed", flush=True),
      patience=Patience(drain_s=float(sys.argv[4]), died_s=0.2))
"""


def start_process(log: Path, misbehaviour: str, drain_s: float) -> tuple[subprocess.Popen[str], str]:
    argv = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(log), misbehaviour, str(drain_s)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    assert line["event"] == "listening"
    return process, line["url"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_and_then_closes_the_engine(tmp_path: Path, number: signal.Signals) -> None:
    process, url = start_process(tmp_path / "log", "NONE", 5)
    assert httpx.post(f"{url}/v1/responses", json={"model": "tiny", "input": "x"}).status_code == 200
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "closed\n")
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert events == ["server_start", "request_start", "request_done"]


def stop_once_running(process: subprocess.Popen[str], log: Path) -> None:
    while "request_start" not in log.read_text():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_cancels_what_does_not_finish_within_its_limit(tmp_path: Path, stream: bool) -> None:
    process, url = start_process(tmp_path / "log", "TALKS_UNTIL_ENDED", 0.3)
    body = {"model": "tiny", "input": "x", "stream": stream, "max_output_tokens": 99_000}
    with httpx.Client(timeout=20) as client:
        if stream:
            with client.stream("POST", f"{url}/v1/responses", json=body) as reply:
                lines = reply.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                assert [line for line in lines if line.startswith("event")][-1] == "event: response.cancelled"
        else:
            threading.Thread(target=stop_once_running, args=(process, tmp_path / "log")).start()
            reply = client.post(f"{url}/v1/responses", json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "closed\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_lets_what_runs_finish_and_takes_nothing_new(tmp_path: Path, stream: bool) -> None:
    process, url = start_process(tmp_path / "log", "TALKS_UNTIL_ENDED", 60)
    body = {"model": "tiny", "input": "x", "stream": stream, "max_output_tokens": 20_000}
    refused = threading.Event()

    def stop_and_knock() -> None:
        stop_once_running(process, tmp_path / "log")
        while not refused.is_set():
            try:
                httpx.get(f"{url}/health")
            except httpx.ConnectError:
                refused.set()
            except httpx.TransportError:
                pass  # it was in the listener's queue when that closed

    knocking = threading.Thread(target=stop_and_knock)
    knocking.start()
    with httpx.Client(timeout=60) as client:
        said = client.post(f"{url}/v1/responses", json=body).text
    knocking.join(30)
    made = json.loads(said.splitlines()[-2].removeprefix("data: "))["response"] if stream else json.loads(said)
    assert made["usage"]["output_tokens"] == 20_000
    assert refused.is_set()
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "closed\n")


def test_a_dead_engine_ends_the_process_with_a_fault_of_its_own(tmp_path: Path) -> None:
    process, _ = start_process(tmp_path / "log", "DEAD", 30)
    out, _ = process.communicate(timeout=20)
    assert process.returncode not in (0, -signal.SIGTERM)
    assert out == "", "a dead engine is not asked to save"
