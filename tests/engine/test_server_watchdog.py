"""Health that tells the truth: an engine thread that hangs or dies turns /health to 503 and ends the process with a
code of its own; clients hear of it, and nothing but the fault ends it."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from model_cases import tiny_of_four_layers
from server_harness import Served

from ninfer_engine.server.main import EXIT_ENGINE_DIED, EXIT_ENGINE_WEDGED


@pytest.mark.parametrize(("how", "code"), [("hangs", EXIT_ENGINE_WEDGED), ("dies", EXIT_ENGINE_DIED)])
def test_an_engine_that_hangs_or_dies_is_told_and_ends_the_process(how: str, code: int) -> None:
    script = Path(__file__).parent / "wedged_server.py"
    process = subprocess.Popen([sys.executable, str(script), how, str(tiny_of_four_layers())],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = json.loads(process.stdout.readline())["url"]
        with httpx.Client(base_url=url, timeout=60) as client:
            assert client.get("/health").status_code == 200
            model = client.get("/v1/models").json()["data"][0]["id"]
            body = {"model": model, "prompt": [70] * 50, "max_tokens": 2}
            assert client.post("/v1/completions", json=body).status_code == 200
            try:
                reply = client.post("/v1/completions", json=body | {"prompt": [71] * 600})
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
            except httpx.TransportError:
                assert how == "hangs", "the process ended while the client waited"
            saw_503 = _last_health(client)
        assert process.wait(60) == code
        assert saw_503 or how == "hangs"
    finally:
        process.kill()
        _, errors = process.communicate()
    assert "Traceback" not in errors, "faults are told by type and place"


def _last_health(client: httpx.Client) -> bool:
    """Ask until the process is gone; whether it said 503 before."""
    saw = False
    while True:
        try:
            saw = client.get("/health").status_code == 503 or saw
        except httpx.TransportError:
            return saw


def test_the_metrics_have_what_dashboards_need(served: Served) -> None:
    served.create()
    assert served.http.post("/v1/ninfer/checkpoints", json={"session_sha256": "c" * 64}).status_code == 409
    text = served.http.get("/metrics").text
    for line in (
        'ninfer_requests_ended_total{how="completed"} 1.0', 'ninfer_token_gap_seconds_bucket{le="0.001"} 3.0',
        'ninfer_token_gap_seconds_bucket{le="0.01"} 5.0', 'ninfer_token_gap_seconds_bucket{le="+Inf"} 6.0',
        "ninfer_token_gap_seconds_sum 0.5", 'ninfer_checkpoints_total{outcome="nothing_to_save",what="save"} 1.0',
        'ninfer_prefix_selections_total{path="root"} 1.0', 'ninfer_prefix_misses_total{reason="never_seen"} 1.0',
        "ninfer_ttft_seconds_count 1.0", "ninfer_plan_seconds_count 1.0", "ninfer_restore_seconds_count 1.0",
        'ninfer_evictions_total{catalog="private"} 0.0', 'ninfer_evictions_total{catalog="shared"} 0.0',
        "ninfer_queue_seconds_count 1.0", "ninfer_request_seconds_count 1.0", "ninfer_backfilled_requests_total 4.0",
        'ninfer_save_seconds_bucket{le="0.01",mode="automatic"} 5.0', 'ninfer_save_seconds_sum{mode="automatic"} 0.5',
        'ninfer_save_session_bytes_total{mode="automatic"} 700.0',
        'ninfer_save_written_bytes_total{mode="automatic"} 70.0',
        'ninfer_save_stall_seconds_total{mode="automatic"} 0.25',
        'ninfer_saves_refused_total{mode="explicit",reason="nothing_to_save"} 2.0',
        'ninfer_session_restores_total{outcome="restored"} 6.0', 'ninfer_session_restores_total{outcome="failed"} 1.0',
        "ninfer_session_restore_bytes_total 900.0", "ninfer_session_restore_seconds_count 6.0",
        'ninfer_pool_occupied{pool="device_state"}', 'ninfer_pool_occupied{pool="host_state"}',
        'ninfer_pool_occupied{pool="host_kv_bytes"}', 'ninfer_pool_occupied{pool="private_catalog"}',
        'ninfer_pool_capacity{pool="device_kv"}', 'ninfer_requests_in_state{state="waiting"} 0.0',
    ):
        assert line in text, line
