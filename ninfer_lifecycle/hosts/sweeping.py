"""`ninfer sweep`: what dead runs left on a daemon. Removes only what is ours and whose owner certainly ended."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.daemon import Daemon, Owned
from ninfer_lifecycle.hosts.ownership import LABEL, TOOL_LABEL, Fate, Here, fate_of, here

Done = Literal["removed", "would be removed", "kept", "could not be removed"]
_SERVICE_OF_TASK = "com.docker.swarm.service.id"
_ORDER = {"service": 0, "container": 1, "secret": 2, "config": 3, "network": 4, "volume": 5}
"""What uses something goes before what it uses, and a service before its containers: it would make new ones."""


@dataclass(frozen=True, slots=True)
class Swept:
    """One thing of ours, what became of it and why."""

    thing: Owned
    fate: Fate
    done: Done
    reason: str

    @property
    def run(self) -> str:
        """The run that it was made for."""
        return self.thing.labels.get(f"{LABEL}.run", "")


def sweep(daemon: Daemon, dry_run: bool, now: Here | None = None,
          say: Callable[[Swept], None] = lambda _: None) -> tuple[Swept, ...]:
    """Look at everything of ours on the daemon and remove what is dead-owned. say: told of each as it is done.

    Raises HostError only when the daemon cannot be asked; what it refuses to remove is in the result.
    """
    now, results = now or here(), []
    for thing in sorted(daemon.owned(TOOL_LABEL), key=lambda one: (_ORDER[one.kind], one.name)):
        result = _one(daemon, thing, fate_of(thing.labels, _handle_of(thing), now), dry_run)
        say(result)
        results.append(result)
    return tuple(results)


def _handle_of(thing: Owned) -> str:
    """The id that a file of what was left running would hold: of a swarm's task its service, of a secret or a config
    the run that it was made for.
    """
    if thing.kind in {"secret", "config"}:
        return thing.labels.get(f"{LABEL}.run", thing.id)
    return thing.labels.get(_SERVICE_OF_TASK, thing.id)


def _one(daemon: Daemon, thing: Owned, fate: Fate, dry_run: bool) -> Swept:
    if fate is not Fate.DEAD:
        return Swept(thing, fate, "kept", fate.value)
    if dry_run:
        return Swept(thing, fate, "would be removed", fate.value)
    try:
        daemon.remove_owned(thing)
    except HostError as error:
        return Swept(thing, fate, "could not be removed", error.message)
    return Swept(thing, fate, "removed", fate.value)
