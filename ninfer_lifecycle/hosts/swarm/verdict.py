"""What a swarm makes of a change, from its documents: pure. The orchestrator judges; here its judgement is read.

A service is updated and rolled back by the managers. What a person has to know is which of the ends it came to, and the
words of the task that brought it there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ninfer_lifecycle.hosts.swarm.cluster import BROKEN, Service, Task
from ninfer_lifecycle.hosts.swarm.service import template_of

_SETTLED = frozenset({None, "completed", "rollback_completed"})
"""No change is under way."""
BROKEN_BEFORE_GIVING_UP = 3
"""A first deployment has nothing to roll back to, and the orchestrator would try for ever."""


class Outcome(StrEnum):
    """WAITING is no end yet; UNPLACED may still end otherwise, when a node comes."""

    CONVERGED = "converged"
    ROLLED_BACK = "rolled back"
    PAUSED = "paused"
    FAILING = "failing"
    UNPLACED = "not placed"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, in words, and the task that it hangs on."""

    outcome: Outcome
    reason: str
    task: Task | None = None


def judge(service: Service, tasks: Sequence[Task], wanted: str, replicas: int) -> Verdict:
    """What became of the service since it was asked to run the template `wanted` with so many replicas.

    tasks: of the service, oldest first; those of other templates are counted as what is being replaced.
    """
    ours = [task for task in tasks if task.template == wanted]
    broken = [task for task in ours if task.state in BROKEN]
    worst = broken[-1] if broken else None
    if (judged := _judged(service, wanted, worst)) is not None:
        return judged
    running, current = sum(task.runs for task in ours), [task for task in tasks if task.desired == "running"]
    only_ours = len(current) == replicas and all(task.template == wanted for task in current)
    if running >= replicas and only_ours and service.update_state in _SETTLED:
        return Verdict(Outcome.CONVERGED, f"{running} of {replicas} tasks run")
    pending = [task for task in current if task.template == wanted and task.state == "pending" and task.error]
    if pending:
        return Verdict(Outcome.UNPLACED, pending[0].error, pending[0])
    if service.update_state in _SETTLED and len(broken) >= BROKEN_BEFORE_GIVING_UP:
        return Verdict(Outcome.FAILING, told(worst, ""), worst)
    return Verdict(Outcome.WAITING, f"{running} of {replicas} tasks run", worst)


def _judged(service: Service, wanted: str, worst: Task | None) -> Verdict | None:
    """The orchestrator's own word, where it has one. A way back that led to what is wanted was an earlier change's."""
    words, is_wanted = told(worst, service.update_message), template_of(service.spec) == wanted
    match service.update_state:
        case "rollback_paused":
            return Verdict(Outcome.PAUSED, f"the way back failed too: {words}", worst)
        case "paused":
            return Verdict(Outcome.PAUSED, words, worst)
        case "rollback_started":
            return Verdict(Outcome.WAITING, f"it is being rolled back: {words}", worst)
        case _:
            return None if is_wanted else Verdict(Outcome.ROLLED_BACK, words, worst)


def told(task: Task | None, otherwise: str) -> str:
    """The words of a task that did not go well."""
    if task is None:
        return otherwise or "the orchestrator does not say why"
    words = task.error or task.message
    code = f" (exit code {task.exit_code})" if task.exit_code and str(task.exit_code) not in words else ""
    return f"task {task.id[:12]} {task.state}: {words}{code}"
