"""Probing task by task: each at its own address, evidence of its own, and a deployment is as good as its worst task."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from fault_engine import FaultEngine
from fault_model import Fault
from rich.console import Console

from ninfer_lifecycle.commands import deploy as command
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.hosts.base import ExpectedIdentity
from ninfer_lifecycle.hosts.readiness import EngineEndedError, ForeignServerError
from ninfer_lifecycle.hosts.swarm.cluster import Node, Swarm, Task
from ninfer_lifecycle.probes.run import Effects
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.progress import Fan
from ninfer_lifecycle.replicas.probing import NoFrontError, Probed, TaskProber, worst
from ninfer_lifecycle.replicas.proving import Proven

CONFIG, MODEL, KEY = "c" * 64, "1" * 64, "the-key"


@dataclass
class TwoNodes:
    """A swarm as far as a prober asks it: what it says of nodes and tasks is what a test sets."""

    running: list[Task] = field(default_factory=list)
    places: list[Node] = field(default_factory=lambda: [
        Node(f"n{number}", f"node{number}", "127.0.0.1", ready=True, active=True, availability="active")
        for number in (1, 2)])

    def tasks(self, service_id: str) -> Sequence[Task]:
        return tuple(self.running)

    def nodes(self) -> Sequence[Node]:
        return tuple(self.places)

    def task_log(self, task_id: str, lines: int) -> str:
        return f"the last words of {task_id}\n"

    def add(self, engine: FaultEngine) -> Task:
        number = len(self.running) + 1
        port = int(engine.base_url.rpartition(":")[2])
        self.running.append(Task(f"task{number}", "s", number, f"n{number}", "running", "running",
                                 "2026-01-01T00:00:00Z", container_id=f"{number}" * 64, ports=(port,)))
        return self.running[-1]


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    path = tmp_path / "p.yaml"
    path.write_text("schemaVersion: 1\nname: p\n"
                    f'model: {{source: path, path: {tmp_path}, id: pretend, sha256: "{MODEL}"}}\n'
                    "flags: {max-context: 131072}\nprobes: {plan: fanout, sizes: [200], forks: 2}\n")
    return load_profile(str(path)).profile


def prober(swarm: TwoNodes, config: str = CONFIG) -> TaskProber:
    return TaskProber(cast("Swarm", swarm), KEY, ExpectedIdentity(config, MODEL))


def probe_all(swarm: TwoNodes, profile: Profile, runs: Path) -> list[Probed]:
    asked = prober(swarm)
    return [asked.probe(at, profile, runs, Fan(()), Effects()) for at in asked.where(swarm.running)]


def test_each_task_has_evidence_of_its_own_and_one_that_fails_fails_the_deployment(
    tmp_path: Path, profile: Profile
) -> None:
    swarm = TwoNodes()
    with FaultEngine(api_key=KEY) as good, FaultEngine({Fault.ALTERNATE_ANCHOR_ROOT}, api_key=KEY) as bad:
        swarm.add(good)
        swarm.add(bad)
        probed = probe_all(swarm, profile, tmp_path / "runs")
    assert [one.result for one in probed] == [Result.PASSED, Result.FAILED] and worst(probed) is Result.FAILED
    assert worst(probed[:1]) is Result.PASSED and worst([]) is Result.INCONCLUSIVE
    for number, one in enumerate(probed, start=1):
        assert one.run is not None
        life = json.loads((one.run / "evidence" / "epochs.jsonl").read_text())
        told = json.loads((one.run / "task.json").read_text())
        assert life["container_id"] == told["containerId"] == f"{number}" * 64
        assert (told["task"], told["node"]) == (f"task{number}", f"node{number}")
    assert probed[0].run != probed[1].run


def test_a_task_that_is_taken_away_is_inconclusive_whatever_it_answered(tmp_path: Path, profile: Profile) -> None:
    swarm = TwoNodes()
    with FaultEngine(api_key=KEY) as engine:
        task = swarm.add(engine)
        at = prober(swarm).where([task])[0]
        swarm.running = [replace(task, state="shutdown", desired="shutdown")]
        swarm.places[0] = replace(swarm.places[0], active=False, availability="drain")
        probed = prober(swarm).probe(at, profile, tmp_path / "runs", Fan(()), Effects())
    assert probed.result is Result.INCONCLUSIVE
    assert "taken away while it was probed: task task1 shutdown" in probed.reason
    assert "node node1 was set to drain" in probed.reason


class InterruptedAt:
    """A display whose user presses Ctrl-C at a request."""

    def __init__(self, at: int) -> None:
        self.left = at

    def request_done(self, record: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


def test_an_interrupted_probing_leaves_a_record_in_which_nothing_passed(
    tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, displays = TwoNodes(), [Fan(()), InterruptedAt(3)]
    monkeypatch.setattr(command, "PlainDisplay", lambda *_: nullcontext(displays.pop(0)))
    with FaultEngine(api_key=KEY) as first, FaultEngine(api_key=KEY) as second, FaultEngine(api_key=KEY) as third:
        for engine in (first, second, third):
            swarm.add(engine)
        swarm.places.append(Node("n3", "node3", "127.0.0.1", ready=True, active=True, availability="active"))
        proven = Proven(prober(swarm), prober(swarm).where(swarm.running), ())
        with pytest.raises(KeyboardInterrupt):
            command.probe_each(proven, profile, tmp_path / "runs", {"name": "x"}, Console(stderr=True))
    run = next((tmp_path / "runs").iterdir())
    record = json.loads((run / "deployment.json").read_text())
    assert (record["signed"], record["result"], record["notProbed"]) == (False, "INCONCLUSIVE", ["task2", "task3"])
    assert [one["result"] for one in record["tasks"]] == ["PASSED"]
    partial = json.loads(next(run.glob("task-2-*/partial.json")).read_text())
    assert partial == {"signed": False, "reason": "KeyboardInterrupt"}


def test_an_engine_that_goes_is_inconclusive_with_its_nodes_state(tmp_path: Path, profile: Profile) -> None:
    swarm = TwoNodes()
    with FaultEngine(api_key=KEY) as engine:
        task = swarm.add(engine)
    at = prober(swarm).where([task])[0]
    swarm.running, swarm.places[0] = [], replace(swarm.places[0], ready=False)
    probed = prober(swarm).probe(at, profile, tmp_path / "runs", Fan(()), Effects())
    assert probed.result is Result.INCONCLUSIVE
    assert "the managers have forgotten it; node node1 does not answer" in probed.reason


def test_a_task_is_proven_by_its_identity_and_not_by_its_port(tmp_path: Path) -> None:
    swarm = TwoNodes()
    with FaultEngine(api_key=KEY) as engine:
        at = prober(swarm).where([swarm.add(engine)])[0]
        prober(swarm).prove(at, 10.0)
        with pytest.raises(ForeignServerError, match="configuration"):
            prober(swarm, "d" * 64).prove(at, 30.0)


def test_a_task_that_ended_is_told_with_its_last_words(tmp_path: Path) -> None:
    swarm = TwoNodes()
    with FaultEngine(api_key=KEY) as engine:
        at = prober(swarm).where([swarm.add(engine)])[0]
    swarm.running[0] = replace(at.task, state="failed", desired="shutdown", exit_code=4)
    with pytest.raises(EngineEndedError, match=r"(?s)exit code 4.*the last words of task1"):
        prober(swarm).prove(at, 30.0)


def test_a_task_without_an_address_of_its_own_is_refused(tmp_path: Path) -> None:
    swarm = TwoNodes()
    with FaultEngine(api_key=KEY) as engine:
        task = swarm.add(engine)
    with pytest.raises(HostError, match="no address of its own") as caught:
        prober(swarm).where([replace(task, ports=())])
    assert "--advertise-addr" in caught.value.advice


@pytest.mark.parametrize(("on_mesh", "advice"), [(True, "IPVS"), (False, "firewall")])
def test_a_front_that_leads_nowhere_is_told_with_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, on_mesh: bool, advice: str
) -> None:
    monkeypatch.setattr("ninfer_lifecycle.replicas.probing._FRONT_S", 0.2)
    swarm = TwoNodes()
    with FaultEngine(api_key=KEY) as engine:
        task = swarm.add(engine)
        found = prober(swarm).prove_front([task], task.ports[0], on_mesh)
        assert found == (engine.base_url,) * (2 if on_mesh else 1)
    with pytest.raises(NoFrontError, match=r"the front does not answer at .* on node1") as caught:
        prober(swarm).prove_front([task], task.ports[0], on_mesh)
    assert advice in caught.value.advice
