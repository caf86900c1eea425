"""What a qualification makes of a host that fails by name: the reason, the code, a partial record, nothing left."""

import json
from pathlib import Path

import pytest
from fault_host import FaultHost, others_for, spec_for
from misbehaving_host import DIES_IN_MID_RUN, HostFault, MisbehavingHost
from test_qualify import Bench

from ninfer_lifecycle.errors import ExitCode, NinferError
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.probes.subject import HostedSubject, Others

REASONS = {
    HostFault.CANNOT_START: "no space left on device",
    HostFault.PORT_TAKEN: "port 4711 on 127.0.0.1 is taken",
    HostFault.NEVER_READY: "not ready after 1 s: /health answers 503",
    HostFault.FOREIGN: "another server answers",
    HostFault.CANNOT_RESTART: "device or resource busy",
    HostFault.ENDS_AT_RESTART: "exit code 1; its last lines:\n    the store does not open",
    HostFault.ENGINE_DIES_OF_MEMORY: "exit code 137, killed for memory (witnesses: State.OOMKilled, exit code 137)",
    HostFault.CONTAINER_VANISHES: "container 1 is gone",
    HostFault.DAEMON_GOES: "no Docker daemon answers",
    HostFault.CANNOT_STOP: "does not stop",
    HostFault.CANNOT_CLEAN_UP: "device or resource busy",
}
BEFORE_A_REQUEST = {HostFault.CANNOT_START, HostFault.PORT_TAKEN, HostFault.NEVER_READY, HostFault.FOREIGN}


pytestmark = pytest.mark.usefixtures("nothing_held")


@pytest.fixture(autouse=True)
def _engine_tree_is_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "2" * 64)


def test_each_fault_has_its_reason() -> None:
    assert set(REASONS) == set(HostFault)


@pytest.mark.parametrize("fault", list(HostFault))
def test_a_host_that_fails_is_told_with_its_reason_and_leaves_nothing(tmp_path: Path, fault: HostFault) -> None:
    bench = Bench(tmp_path, MisbehavingHost(fault))
    with pytest.raises(NinferError) as caught:
        bench.qualify()
    assert REASONS[fault] in caught.value.message and caught.value.advice
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE
    run = next((tmp_path / "runs").iterdir())
    assert not (run / "api.key").exists() and not (run / "store").exists()
    assert bench.host.engine is None
    if fault is HostFault.CANNOT_CLEAN_UP:  # the verdict stood by then; what was left is told all the same
        return
    partial = json.loads((run / "partial.json").read_text())
    assert partial["signed"] is False and REASONS[fault] in partial["reason"] and partial["advice"]
    assert (partial["requests"] == 0) == (fault in BEFORE_A_REQUEST)
    assert not (tmp_path / "receipts").exists()


@pytest.mark.parametrize("fault", sorted(DIES_IN_MID_RUN))
@pytest.mark.parametrize("after", [1, 5, 9])
def test_wherever_the_engine_goes_its_life_is_in_the_evidence(tmp_path: Path, fault: HostFault, after: int) -> None:
    bench = Bench(tmp_path, MisbehavingHost(fault, after))
    with pytest.raises(NinferError):
        bench.qualify()
    run = next((tmp_path / "runs").iterdir())
    lines = [line for file in sorted((run / "evidence").iterdir()) for line in file.read_text().splitlines()]
    lives = [one for one in map(json.loads, lines) if "prefill_counter_after" in one]
    assert len(lives) == 1
    assert lives[0].get("exit_code") == (137 if fault is HostFault.ENGINE_DIES_OF_MEMORY else None)


def test_a_broken_conversation_is_explained_by_the_engine_that_was_asked(tmp_path: Path) -> None:
    place = FaultHost()
    spec = spec_for(tmp_path)
    (tmp_path / "reduced").mkdir()
    with place:
        subject = HostedSubject(place, place.start(spec), lambda url: client_of(spec, url),
                                others=Others(others_for(spec), lambda url: client_of(spec, url)))
        assert subject.answering.handle == "1"
        subject.step_aside("reduced")
        assert subject.answering.handle == "3"
        subject.step_back()
        assert subject.answering.handle == "1"
        subject.close()
