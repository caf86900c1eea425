"""Deploy: create or update the services of a deployment, and wait for what the orchestrator makes of it.

The change itself is the swarm's: one task after another, each healthy before the next, and back by itself when one is
not. Nothing here undoes an update; it is read how it ended. A first deployment that never comes up is taken away again,
since there is nothing to go back to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.readiness import SYSTEM_CLOCK, Clock
from ninfer_lifecycle.hosts.swarm.cluster import Service, Swarm, Task
from ninfer_lifecycle.hosts.swarm.service import ServiceAsked, service_spec, template_of
from ninfer_lifecycle.hosts.swarm.verdict import Outcome, Verdict, judge
from ninfer_lifecycle.replicas.bundle import front_bundle
from ninfer_lifecycle.replicas.plan import (
    DEPLOYMENT_LABEL,
    Wanted,
    bundle_file,
    configuration_file,
    engine_service,
    front_service,
    key_file,
)

UNPLACED_S = 20.0
"""A task that no node takes may find one when another is stopped; so long it is given."""
LAST_LINES = 40
_POLL_S = 0.5
_SLACK_S = 60.0
_UNDEPLOY_SLACK_S = 30.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """What became of one service. changed: whether anything was asked of the orchestrator. last_lines: of the task that
    the verdict hangs on. restored: it was rolled back, and all that ran before runs again.
    """

    service: str
    verdict: Verdict
    changed: bool
    created: bool
    tasks: tuple[Task, ...] = ()
    last_lines: str = ""
    restored: bool = False


@dataclass(frozen=True, slots=True)
class Removed:
    """What an undeploy took away, as kind and name, and what it could not, with the reason."""

    things: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deployer:
    """Carries deployments out on a swarm. say: one line of prose."""

    swarm: Swarm
    say: Callable[[str], None] = lambda _: None
    clock: Clock = SYSTEM_CLOCK

    def deploy(self, wanted: Wanted) -> tuple[Rollout, ...]:
        """Engines first, then fronts. Stops at the first service that did not converge. Raises HostError.

        Effects: secrets, configs and a network of the deployment; what no service uses any more is removed at the end.
        """
        network = self.swarm.ensure_network(wanted.service_name, wanted.labels("network"))
        document = wanted.lock.configuration.canonical()
        key_name, document_name = wanted.object_name("key", wanted.key), wanted.object_name("configuration", document)
        key_id = self.swarm.create("secret", key_name, wanted.key, wanted.labels("key"))
        document_id = self.swarm.create("config", document_name, document, wanted.labels("configuration"))
        engine = engine_service(wanted, network, key_file(key_id, key_name),
                                configuration_file(document_id, document_name))
        host = wanted.profile.host
        rollouts = [self.roll_out(engine, host.ready_seconds + host.stop_seconds)]
        first = rollouts[-1]
        if first.verdict.outcome is Outcome.CONVERGED:
            rollouts += self._fronts(wanted, network)
        if first.created and first.verdict.outcome is not Outcome.CONVERGED:
            removed = self.undeploy(wanted.name, host.stop_seconds)
            self.say(f"{wanted.name} is taken away again, since nothing of it ever ran well")
            for reason in removed.kept:
                self.say(f"could not be removed: {reason}")
        else:
            self._tidy(wanted.name)
        return tuple(rollouts)

    def _fronts(self, wanted: Wanted, network: str) -> list[Rollout]:
        if wanted.fronts == 0:
            if (old := self.swarm.find_service(wanted.front_name)) is not None:
                self.swarm.remove("service", old.id)
            return []
        bundle = front_bundle()
        name = wanted.object_name("front", bundle)
        bundle_id = self.swarm.create("config", name, bundle, wanted.labels("front"))
        return [self.roll_out(front_service(wanted, network, bundle_file(bundle_id, name)), 120.0)]

    def roll_out(self, asked: ServiceAsked, task_s: float) -> Rollout:
        """Create or update one service and wait for the verdict. task_s: the longest that one task may take to be
        replaced. Raises HostError, OutOfSequenceError when somebody else changes the service meanwhile.
        """
        spec = service_spec(asked)
        old = self.swarm.find_service(asked.name)
        changed = old is None or template_of(old.spec) != template_of(spec) or old.replicas != asked.replicas \
            or old.spec.get("EndpointSpec", {}).get("Ports") != spec["EndpointSpec"]["Ports"]
        if old is None:
            service_id = self.swarm.create_service(spec)
            self.say(f"service {asked.name}: created, {asked.replicas} wanted")
        else:
            service_id = old.id
            if changed:
                self.swarm.update_service(old, spec)
                self.say(f"service {asked.name}: updated, {asked.replicas} wanted")
        wanted = str(template_of(spec))
        within = (task_s + asked.monitor_s) * max(asked.replicas, old.replicas if old else 0) + _SLACK_S
        verdict, tasks = self._wait(service_id, wanted, asked.replicas, within)
        ran = verdict.task is not None and verdict.task.container and verdict.outcome is not Outcome.CONVERGED
        lines = self.swarm.task_log(verdict.task.id, LAST_LINES) if verdict.task and ran else ""
        if old is None and verdict.outcome is not Outcome.CONVERGED:
            self.swarm.remove("service", service_id)
        restored = verdict.outcome is Outcome.ROLLED_BACK and self._is_back(service_id, within)
        return Rollout(asked.name, _with_constraints(verdict, asked), changed, old is None,
                       tuple(task for task in tasks if task.runs and task.template == wanted), lines, restored)

    def _is_back(self, service_id: str, within_s: float) -> bool:
        """Whether what ran before runs again in full: the managers call a rollback complete a moment before it does."""
        service = self.swarm.service(service_id)
        verdict, _ = self._wait(service_id, str(template_of(service.spec)), service.replicas, within_s)
        return verdict.outcome is Outcome.CONVERGED

    def _wait(self, service_id: str, wanted: str, replicas: int, within_s: float) -> tuple[Verdict, tuple[Task, ...]]:
        began, unplaced_since, said = self.clock.now(), None, ""
        while True:
            service, tasks = self.swarm.service(service_id), self.swarm.tasks(service_id)
            verdict, now = judge(service, tasks, wanted, replicas), self.clock.now()
            if verdict.reason != said:
                said = verdict.reason
                self.say(f"service {service.name}: {verdict.outcome.value}: {verdict.reason}")
            unplaced_since = (unplaced_since or now) if verdict.outcome is Outcome.UNPLACED else None
            waits = verdict.outcome is Outcome.WAITING or (
                unplaced_since is not None and now - unplaced_since < UNPLACED_S)
            if not waits:
                return verdict, tasks
            if now - began >= within_s:
                return Verdict(Outcome.WAITING, f"not done after {within_s:g} s: {verdict.reason}", verdict.task), tasks
            self.clock.sleep(_POLL_S)

    def undeploy(self, name: str, stop_s: float) -> Removed:
        """Remove services, secrets, configs and the network of a deployment. Volumes stay on their nodes: they hold
        sessions. What is in use for longer than its tasks may take to stop is kept and told. Raises HostError.
        """
        label = f"{DEPLOYMENT_LABEL}={name}"
        ours = self.swarm.labelled(label)
        gone: list[str] = []
        for thing in ours:
            if thing.kind == "service":
                self.swarm.remove("service", thing.id)
                gone.append(f"service {thing.name}")
        ends, left = self.clock.now() + stop_s + _UNDEPLOY_SLACK_S, [one for one in ours if one.kind != "service"]
        while left:
            refused: dict[str, str] = {}
            for thing in left:
                try:
                    self.swarm.remove(thing.kind, thing.id)
                    gone.append(f"{thing.kind} {thing.name}")
                except HostError as error:
                    if "in use" not in error.message and "active endpoints" not in error.message:
                        raise
                    refused[thing.id] = f"{thing.kind} {thing.name}: {error.message}"
            left = [one for one in left if one.id in refused]
            if left and self.clock.now() >= ends:
                return Removed(tuple(gone), tuple(refused.values()))
            if left:
                self.clock.sleep(_POLL_S)
        # The managers answer before nodes have let go of a network; a deployment that came now would be given it.
        while any(one.kind == "network" for one in self.swarm.labelled(label)) and self.clock.now() < ends:
            self.clock.sleep(_POLL_S)
        return Removed(tuple(gone), ())

    def _tidy(self, name: str) -> None:
        """Remove keys, configurations and programs that neither a service nor the way back from it uses."""
        ours = self.swarm.labelled(f"{DEPLOYMENT_LABEL}={name}")
        used: set[str] = set()
        for thing in ours:
            if thing.kind == "service":
                used |= _files_of(self.swarm.service(thing.id))
        for thing in ours:
            if thing.kind in {"secret", "config"} and thing.id not in used:
                try:
                    self.swarm.remove(thing.kind, thing.id)
                except HostError:
                    continue  # a task that is still stopping has it; the next deployment finds it again


def _files_of(service: Service) -> set[str]:
    """Ids of secrets and configs of a service, and of what it would be rolled back to."""
    specs: list[Mapping[str, Any]] = [service.spec, *((service.previous_spec,) if service.previous_spec else ())]
    containers = [spec["TaskTemplate"]["ContainerSpec"] for spec in specs]
    return {str(one[f"{kind}ID"]) for container in containers for kind in ("Secret", "Config")
            for one in container.get(f"{kind}s") or ()}


def _with_constraints(verdict: Verdict, asked: ServiceAsked) -> Verdict:
    """Of a task that no node takes: what the node would have to be."""
    if verdict.outcome is not Outcome.UNPLACED:
        return verdict
    where = " and ".join(asked.constraints) or "any node"
    return Verdict(verdict.outcome, f"{verdict.reason}; asked for is: {where}"
                   f"{', one task a node' if asked.one_per_node else ''}", verdict.task)
