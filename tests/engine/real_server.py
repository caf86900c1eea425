"""A server on a real socket over the real engine and the four-layer tiny model. When it stops, it must be idle and have
lost nothing."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
from engine_cases import COSTS
from model_cases import tiny_of_four_layers
from server_harness import MODEL, Reached, serving
from session_cases import audit

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.runtime.build import build_engine
from ninfer_engine.runtime.engine import Engine
from ninfer_engine.server.app import create_app
from ninfer_engine.server.context import Limits
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.request_log import RequestLog


@dataclass
class RealServed(Reached):
    """A running server over the real engine."""

    engine: Engine
    model: ServedModel


@contextlib.contextmanager
def real_server(limits: Limits | None = None, **changes: Any) -> Iterator[RealServed]:
    """Small pools, and the invariant check after every step."""
    flags = EngineFlags.model_validate({
        "model": str(tiny_of_four_layers()), "model_id": MODEL, "port": 0, "max_context": 4096, "kv_capacity": 16384,
        "host_kv_mib": 32, "device": "cpu", "max_concurrency": 3, "context_cost_presets": str(COSTS),
        "check_invariants": True, **changes})
    built = build_engine(flags)
    built.engine.start()
    model = ServedModel(MODEL, built.model.tokenizer, built.model.chat)
    app = create_app(built.engine, model, flags, None, RequestLog(None, "x"), limits=limits)
    with serving(app, built.engine.close) as address:
        url = f"http://{address[0]}:{address[1]}"
        with httpx.Client(base_url=url, timeout=60) as client:
            served = RealServed(client, address, built.engine, model)
            yield served
            until_idle(served)
            assert client.get("/health").json() == {"status": "ok"}
            audit(built.engine)


def until_idle(served: RealServed) -> None:
    """Wait until nothing runs or waits and every slot is given back: that a client has left may take a step to tell."""
    deadline = time.monotonic() + 60
    while left := _load(served):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def _load(served: RealServed) -> dict[str, int]:
    """What is not idle, by where it shows."""
    scheduler = served.http.get("/v1/ninfer/status").json()["scheduler"]
    told = {name: scheduler[name] for name in ("running", "prefilling", "decode_ready", "waiting", "materializing")}
    held = {"requests": served.engine._load, "slots": served.engine._driver.running}
    return {name: count for name, count in (told | held).items() if count}
