"""Waiting for a service's next task: until it has a container, and until its port is known."""

from collections.abc import Callable

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.container import published_port
from ninfer_lifecycle.hosts.daemon import Daemon
from ninfer_lifecycle.hosts.readiness import Clock, Ended, ended_error
from ninfer_lifecycle.hosts.swarm.cluster import BROKEN, ENDED, Swarm, Task, Thing
from ninfer_lifecycle.hosts.swarm.verdict import told

EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - where a swarm publishes, whoever asks
PLACED_S = 15.0
"""A node that is fit takes a task in a second or two. One that is not there will not come during a qualification."""
_BEGUN_S = 60.0
_POLL_S = 0.1
_ADVICE = "the words of the node say why; `docker service ps` shows its tasks"


class NotPlacedError(HostError):
    """No node takes the task."""

    def __init__(self, words: str, constraints: tuple[str, ...]) -> None:
        super().__init__(f"no node takes the task: {words}; it must be one with {' and '.join(constraints) or 'room'}",
                         "label a node (docker node update --label-add NAME=VALUE NODE), activate a drained one "
                         "(--availability active), or ask for less memory, CPU or GPU; docker node ls shows them")


class TaskBrokenError(HostError):
    """The node could not run the task."""


def remove_when_free(swarm: Swarm, clock: Clock, kind: Thing, thing_id: str, within_s: float = 20.0) -> None:
    """Remove what tasks that are ending may still use. HostError when they still do after `within_s`."""
    ends = clock.now() + within_s
    while True:
        try:
            return swarm.remove(kind, thing_id)
        except HostError as error:
            if "in use" not in error.message or clock.now() >= ends:
                raise
        clock.sleep(_POLL_S)


def placed(swarm: Swarm, clock: Clock, service_id: str, seen: frozenset[str], constraints: tuple[str, ...]) -> Task:
    """The newest task that is none of `seen`, once it has a container. Raises NotPlacedError and TaskBrokenError."""
    began = clock.now()
    while True:
        fresh = [task for task in swarm.tasks(service_id) if task.id not in seen]
        task = fresh[-1] if fresh else None
        if task is not None and task.container:
            return task
        if task is not None and task.state in BROKEN:
            raise TaskBrokenError(f"the node could not run it: {told(task, '')}", _ADVICE)
        waited = clock.now() - began
        if waited >= PLACED_S and (task is None or task.state in {"new", "pending"}):
            words = task.error or task.message if task else "the orchestrator made no task"
            raise NotPlacedError(words, constraints)
        if waited >= _BEGUN_S:
            raise HostError(f"the task is {task.state if task else 'missing'} after {_BEGUN_S:g} s",
                            "look at the log of its node's daemon")
        clock.sleep(_POLL_S)


def port_of(swarm: Swarm, daemon: Daemon, clock: Clock, task: Task, ended: Callable[[], Ended | None]) -> int:
    """The port of this node that leads to a task of it, read until it is bound. The container tells it: to the managers
    a task has two ports, one for IPv4 and one for IPv6, and they do not say which is which.

    Raises EngineEndedError when its container ends before, and TaskBrokenError with the node's words.
    """
    began = clock.now()
    while True:
        if (end := ended()) is not None:
            raise ended_error(end)
        if (port := published_port(daemon.inspect(task.container), EVERY_ADDRESS)) is not None:
            return port
        now = next((one for one in swarm.tasks(task.service_id) if one.id == task.id), task)
        if now.state in ENDED:
            raise TaskBrokenError(f"the node could not run it: {told(now, '')}", _ADVICE)
        if clock.now() - began >= PLACED_S:
            raise HostError(f"the task publishes no port after {PLACED_S:g} s", "look at the log of its node's daemon "
                            "and at its iptables rules")
        clock.sleep(_POLL_S)
