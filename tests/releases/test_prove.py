"""The proof of a switch: given by the lane's own router, for the very release, by a request that is answered."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_engine import FaultEngine

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, RunningEngine
from ninfer_lifecycle.releases.checks import prove
from ninfer_lifecycle.releases.records import LaneState, Release

CONFIG, MODEL, KEY = "c" * 64, "1" * 64, "the-key"


@pytest.fixture
def engine() -> Iterator[FaultEngine]:
    with FaultEngine(api_key=KEY, config_sha256=CONFIG, model_sha256=MODEL) as made:
        yield made


def proof(tmp_path: Path, engine: FaultEngine, answers: Iterator[int], config: str = CONFIG) -> None:
    """Ask for it at the engine's address as if that were the lane's. answers: what the router says it has answered."""
    key = tmp_path / "key"
    key.write_text(KEY)
    spec = EngineSpec("r", EngineFlags(), tmp_path, tmp_path, expected=ExpectedIdentity(config, MODEL))
    release = Release(release_id="r", profile="p", model="pretend", lock_sha256="", configuration_sha256=config,
                      receipt_sha256="", kind="process", run_dir=tmp_path, stop_seconds=1.0,
                      engine=RunningEngine(spec, "process", "1", engine.base_url, "then"))
    prove(LaneState(name="a", port=int(engine.base_url.rpartition(":")[2])), release, key, lambda: next(answers))


def test_a_lane_that_answers_by_its_router_is_proven(tmp_path: Path, engine: FaultEngine) -> None:
    proof(tmp_path, engine, iter([5, 7]))
    assert len(engine.seen) == 1, "it was asked to generate"


def test_what_answers_and_is_not_the_router_proves_nothing(tmp_path: Path, engine: FaultEngine) -> None:
    with pytest.raises(EngineError, match="is not the router of lane a") as caught:
        proof(tmp_path, engine, iter([5, 6]))
    assert "ss -ltnp" in caught.value.advice


def test_a_lane_that_leads_to_another_engine_proves_nothing(tmp_path: Path, engine: FaultEngine) -> None:
    with pytest.raises(EngineError, match=f"answers as another engine: its configuration is {CONFIG}"):
        proof(tmp_path, engine, iter([5, 7]), config="d" * 64)
    assert not engine.seen, "it was not asked to generate"


def test_a_request_that_is_not_answered_proves_nothing(
    tmp_path: Path, engine: FaultEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = engine.handle

    def failing(method: str, path: str, headers: dict[str, str], raw: bytes) -> object:
        status, body, *more = handle(method, path, headers, raw)
        return (status, {**body, "status": "failed"}, *more) if path == "/v1/responses" else (status, body, *more)

    monkeypatch.setattr(engine, "handle", failing)
    with pytest.raises(EngineError, match="a request through lane a ended as failed"):
        proof(tmp_path, engine, iter([5, 7]))
