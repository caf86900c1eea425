"""A deployment is proven task by task, and at every address that clients use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer_lifecycle.hosts.base import ExpectedIdentity
from ninfer_lifecycle.hosts.swarm.cluster import Swarm
from ninfer_lifecycle.hosts.swarm.verdict import Outcome
from ninfer_lifecycle.replicas.deploy import Rollout
from ninfer_lifecycle.replicas.plan import Publish, Wanted
from ninfer_lifecycle.replicas.probing import At, TaskProber
from ninfer_lifecycle.replicas.settling import DidNotConvergeError


@dataclass(frozen=True, slots=True)
class Proven:
    """A deployment that runs, is what was deployed, and has answered. fronts: addresses."""

    prober: TaskProber
    tasks: tuple[At, ...]
    fronts: tuple[str, ...]


def prove(swarm: Swarm, wanted: Wanted, rollouts: Sequence[Rollout], say: Callable[[str], None]) -> Proven:
    """Every task and every address answers as what was deployed. Raises DidNotConvergeError where the orchestrator did
    not bring a service to run, and HostError for what does not answer.
    """
    for one in rollouts:
        if one.verdict.outcome is not Outcome.CONVERGED:
            raise DidNotConvergeError(one)
    prober = TaskProber(swarm, wanted.key.decode().strip(), ExpectedIdentity(
        wanted.lock.configuration_sha256, wanted.lock.configuration.model_sha256))
    tasks = prober.where(rollouts[0].tasks)
    for at in tasks:
        prober.prove(at, wanted.profile.host.ready_seconds)
        say(f"task {at.task.id[:12]} on {at.node.hostname} is what was deployed, and answers at {at.url}")
    on_mesh = wanted.publish is Publish.MESH
    fronts = prober.prove_front(rollouts[1].tasks, wanted.port, on_mesh) if len(rollouts) > 1 else ()
    return Proven(prober, tasks, fronts)
