"""Probing a deployed service task by task, each at its own address: the mesh would give any of them.

Each task is an engine of its own, with evidence of its own: one directory a task, named by it. A task that goes while
it is probed makes its evidence inconclusive, with what the swarm says of it; the others are still probed.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_lifecycle.client import EngineClient
from ninfer_lifecycle.errors import HostError, NinferError
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.hosts.base import ExpectedIdentity
from ninfer_lifecycle.hosts.readiness import (
    SYSTEM_CLOCK,
    Clock,
    Ended,
    first_reply,
    identity_difference,
    wait_until_ready,
)
from ninfer_lifecycle.hosts.signals import shielded
from ninfer_lifecycle.hosts.swarm.cluster import ENDED, Node, Swarm, Task
from ninfer_lifecycle.hosts.swarm.verdict import told
from ninfer_lifecycle.probes.plans import make_plan
from ninfer_lifecycle.probes.run import Effects, Watcher
from ninfer_lifecycle.probes.subject import LifeFacts, RemoteSubject
from ninfer_lifecycle.profiles.configuration import public_model_id
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.measure import judge_run, probe_running
from ninfer_lifecycle.qualify.progress import Fan
from ninfer_lifecycle.qualify.rundir import RunDirectory, create_run_directory

_FRONT_S, _POLL_S = 15.0, 0.5
_ORDER = (Result.FAILED, Result.INCONCLUSIVE, Result.PASSED)


class TaskGoneError(HostError):
    """A task ended, or was ended, while it was asked."""


class NoFrontError(HostError):
    """The replicas run, and the address that clients use does not lead to them."""

    def __init__(self, url: str, node: str, reason: str, on_mesh: bool) -> None:
        mesh = ("the routing mesh needs IPVS in the kernel of every node (modprobe ip_vs) and ports 7946 and 4789 open "
                "between them; --publish host needs neither")
        super().__init__(f"the front does not answer at {url} on {node}: {reason}",
                         mesh if on_mesh else "look at what else listens there, and at the node's firewall")


@dataclass(frozen=True, slots=True)
class At:
    """A task and where it is reached."""

    task: Task
    node: Node

    @property
    def url(self) -> str:
        """Its own address: its node's, and the port that it has there."""
        return f"http://{self.node.address}:{self.task.ports[0]}"


@dataclass(frozen=True, slots=True)
class Probed:
    """One task's evidence and what the gates make of it."""

    at: At
    result: Result
    reason: str
    run: Path | None

    def document(self) -> dict[str, Any]:
        """For --json and for the record of the deployment."""
        task = self.at.task
        return {"task": task.id, "slot": task.slot, "node": self.at.node.hostname, "nodeId": self.at.node.id,
                "containerId": task.container_id, "address": self.at.url, "result": self.result.value,
                "reason": self.reason, "evidence": None if self.run is None else str(self.run)}


@dataclass(frozen=True, slots=True)
class TaskProber:
    """Asks the tasks of one service. key: of the API."""

    swarm: Swarm
    key: str
    expected: ExpectedIdentity
    clock: Clock = SYSTEM_CLOCK

    def where(self, tasks: Sequence[Task]) -> tuple[At, ...]:
        """Every task with its node, by slot. HostError for one whose address nobody knows."""
        nodes = {node.id: node for node in self.swarm.nodes()}
        found = []
        for task in sorted(tasks, key=lambda one: (one.slot, one.id)):
            node = nodes.get(task.node_id or "")
            if node is None or not node.address or not task.ports:
                raise HostError(f"task {task.id[:12]} has no address of its own", "its node must tell one: join it "
                                "with --advertise-addr")
            found.append(At(task, node))
        return tuple(found)

    def prove(self, at: At, ready_s: float) -> None:
        """Return when this very task is ready, is what was deployed, and has answered. Raises HostError."""
        with EngineClient(at.url, self.key) as client:
            status = wait_until_ready(client, self.expected, lambda: self._ended(at), ready_s, self.clock)
            first_reply(client, status, lambda: self._ended(at), ready_s)

    def prove_front(self, tasks: Sequence[Task], port: int, on_every_node: bool) -> tuple[str, ...]:
        """The front's addresses, each of which has given a request to a replica and said to which: its own nodes', or
        those of all nodes that the routing mesh should be reached at. Raises NoFrontError. tasks: of the front.
        """
        own = {task.node_id for task in tasks}
        nodes = [node for node in self.swarm.nodes() if node.ready and node.address
                 and (on_every_node or node.id in own)]
        found = []
        for node in nodes:
            url = f"http://{node.address}:{port}"
            ends = self.clock.now() + _FRONT_S
            while (wrong := self._front_fault(url)) is not None:
                if self.clock.now() >= ends:
                    raise NoFrontError(url, node.hostname, wrong, on_every_node)
                self.clock.sleep(_POLL_S)
            found.append(url)
        return tuple(found)

    def _front_fault(self, url: str) -> str | None:
        try:
            with EngineClient(url, self.key) as client:
                difference = identity_difference(client.status(), self.expected)
        except NinferError as error:
            return error.message
        return difference

    def probe(self, at: At, profile: Profile, runs: Path, watcher: Watcher, effects: Effects) -> Probed:
        """Carry the profile's plan out on this task, without restarts: they are the orchestrator's to do.

        Effects: a run directory below `runs`, named by the task.
        """
        planned = make_plan(profile.probes.model_copy(update={"restarts": 0, "baseline": None}), secrets.token_hex(16),
                            profile.gates)
        run = create_run_directory(runs, f"task-{at.task.slot}-{at.task.id}")
        run.write_json("plan.json", planned.schedule.model_dump(mode="json"))
        try:
            with EngineClient(at.url, self.key) as client:
                evidence = probe_running(TaskSubject(client, at), public_model_id(profile), planned, run,
                                         Fan((watcher,)), effects)
            self._still_runs(at)
            verdict = judge_run(run, planned, profile.gates, evidence)
            first = verdict.not_passed[0] if verdict.not_passed else None
            probed = Probed(at, verdict.result, f"{first.title}: {first.reason}" if first else "every check passed",
                            run.path)
        except NinferError as error:
            reason = self._explained(at, error)
            run.write_json("partial.json", {"signed": False, "reason": reason})
            probed = Probed(at, Result.INCONCLUSIVE, reason, run.path)
        except BaseException as error:
            with shielded():
                run.write_json("partial.json", {"signed": False, "reason": type(error).__name__})
            raise
        run.write_json("task.json", probed.document())
        return probed

    def _still_runs(self, at: At) -> None:
        if (gone := self._gone(at)) is not None:
            raise TaskGoneError(gone)

    def _explained(self, at: At, error: NinferError) -> str:
        return self._gone(at) or error.message

    def _gone(self, at: At) -> str | None:
        """What the swarm says of a task that was asked and is meant to run no more; None while it is."""
        now = next((one for one in self.swarm.tasks(at.task.service_id) if one.id == at.task.id), None)
        if now is not None and now.runs:
            return None
        node = next((one for one in self.swarm.nodes() if one.id == at.node.id), None)
        place = "its node is gone" if node is None else f"node {node.hostname} {_how(node)}"
        what = "the managers have forgotten it" if now is None else told(now, "") if now.state in ENDED \
            else f"task {now.id[:12]} was told to stop"
        return f"the task was taken away while it was probed: {what}; {place}"

    def _ended(self, at: At) -> Ended | None:
        now = next((one for one in self.swarm.tasks(at.task.service_id) if one.id == at.task.id), None)
        if now is not None and now.state not in ENDED:
            return None
        lines = self.swarm.task_log(at.task.id, 40)
        return Ended(None if now is None else now.exit_code, None, lines)


def _how(node: Node) -> str:
    if not node.ready:
        return "does not answer"
    return "is well" if node.active else f"was set to {node.availability}"


class TaskSubject(RemoteSubject):
    """One task, as a probe holds it: asked, and never restarted from here."""

    def __init__(self, client: EngineClient, at: At) -> None:
        super().__init__(client)
        self._at = at

    def facts(self) -> LifeFacts:
        """See Subject. The container is named, and so the task."""
        return LifeFacts(started_at=self._at.task.created_at, container_id=self._at.task.container_id,
                         stop_reason=None)


def worst(probed: Sequence[Probed]) -> Result:
    """A deployment is as good as its worst task. Without any task nothing was shown."""
    found = {one.result for one in probed}
    return next((result for result in _ORDER if result in found), Result.INCONCLUSIVE)


def write_record(run: RunDirectory, deployment: Mapping[str, Any], tasks: Sequence[At], probed: Sequence[Probed]
                 ) -> None:
    """The record of one probing: the deployment, and every task with its result and the place of its evidence.

    Where not all of `tasks` were probed nothing passed.
    """
    missing = [at.task.id for at in tasks if at not in [one.at for one in probed]]
    result = worst(probed) if not missing or worst(probed) is Result.FAILED else Result.INCONCLUSIVE
    run.write_json("deployment.json", {"signed": False, **deployment, "result": result.value, "notProbed": missing,
                                       "tasks": [one.document() for one in probed]})
