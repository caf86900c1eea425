"""A swarm as this tool asks it: a typed protocol of ours. `docker_sdk` speaks it through docker-py; nothing else does.

Every call goes to one manager. What a service looks like is an Engine API document (v1.41), made by `service`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import GoneError

Document = Mapping[str, Any]
"""A document of the Engine API."""

Thing = Literal["service", "secret", "config", "network"]

ENDED = frozenset({"complete", "shutdown", "failed", "rejected", "remove", "orphaned"})
"""States that no task leaves any more."""
BROKEN = frozenset({"failed", "rejected"})


class NoManagerError(HostError):
    """The daemon is no manager of a swarm."""

    def __init__(self, words: str) -> None:
        super().__init__(f"this Docker daemon is no swarm manager: {words}", "make a swarm of it with `docker swarm "
                         "init`, or point DOCKER_HOST at a manager of the one that you have")


class NoQuorumError(HostError):
    """The managers cannot agree on anything: too few of them are left."""

    def __init__(self, words: str) -> None:
        super().__init__(f"the swarm has no leader: {words}", "what runs goes on running and nothing can be changed: "
                         "bring managers back until more than half of them live, or, when they are lost for good, "
                         "`docker swarm init --force-new-cluster` on one that is left")


class OutOfSequenceError(HostError):
    """Somebody else changed the service since it was read."""

    def __init__(self, name: str) -> None:
        super().__init__(f"service {name} was changed by somebody else in the same moment", "see what it runs now "
                         "(docker service inspect), and deploy again")


class ThingGoneError(GoneError):
    """A service, secret, config or network that is not there (any more)."""

    def __init__(self, kind: Thing, name: str) -> None:
        super().__init__(f"{kind} {name} is not in this swarm", "somebody else removed it; deploy again")


@dataclass(frozen=True, slots=True)
class NodeHere:
    """The node that answers. manages: whether it is a manager. address: as it advertises itself."""

    node_id: str
    manages: bool
    address: str


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ready: the manager hears of it. active: it takes new tasks."""

    id: str
    hostname: str
    address: str
    ready: bool
    active: bool
    availability: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One task: a slot's container, past or present. message, error: the orchestrator's and the node's words.

    ports: published on its node, in host mode; where there are two the first is that of IPv4. addresses: on overlay
    networks, by network id. template: the digest of the template that it was made from (`service.TEMPLATE_LABEL`), None
    for a foreign one.
    """

    id: str
    service_id: str
    slot: int
    node_id: str | None
    state: str
    desired: str
    created_at: str
    message: str = ""
    error: str = ""
    container_id: str | None = None
    exit_code: int | None = None
    ports: tuple[int, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None

    @property
    def container(self) -> str:
        """The id of its container; empty while it has none."""
        return self.container_id or ""

    @property
    def runs(self) -> bool:
        """Whether it runs, was healthy once, and is meant to go on."""
        return self.state == "running" and self.desired == "running"


@dataclass(frozen=True, slots=True)
class Service:
    """A service as the managers hold it. update_state: as in the Engine API, None before its first update."""

    id: str
    name: str
    version: int
    spec: Document
    previous_spec: Document | None = None
    update_state: str | None = None
    update_message: str = ""
    update_started: str = ""

    @property
    def labels(self) -> Mapping[str, str]:
        """The service's own labels."""
        return self.spec.get("Labels") or {}

    @property
    def replicas(self) -> int:
        """How many tasks are wanted; 0 for a global service, which is none of ours."""
        return int(((self.spec.get("Mode") or {}).get("Replicated") or {}).get("Replicas") or 0)

    @property
    def template(self) -> Document:
        """What its tasks are made from."""
        found: Document = self.spec["TaskTemplate"]
        return found


class Labelled(NamedTuple):
    """Something of the swarm that carries a label of ours."""

    kind: Thing
    id: str
    name: str
    labels: Mapping[str, str]


class Swarm(Protocol):
    """The calls that the swarm host, `deploy` and `sweep` make. Each answers or raises within the daemon's deadline.

    Raises NoDaemonError where no daemon answers, NoManagerError, NoQuorumError, ThingGoneError, OutOfSequenceError, and
    HostError with the daemon's words for everything that it refuses.
    """

    def here(self) -> NodeHere: ...

    def nodes(self) -> tuple[Node, ...]: ...

    def find_service(self, name: str) -> Service | None:
        """The service of exactly this name."""

    def service(self, service_id: str) -> Service: ...

    def create_service(self, spec: Document) -> str:
        """Its id."""

    def update_service(self, service: Service, spec: Document) -> None:
        """Change it from the version that `service` was read at."""

    def tasks(self, service_id: str) -> tuple[Task, ...]:
        """All that the managers remember, oldest first; none of a service that is gone."""

    def task_log(self, task_id: str, lines: int) -> str:
        """The last lines of one task, wherever it ran. Empty where its node does not answer."""

    def create(self, kind: Literal["secret", "config"], name: str, data: bytes, labels: Mapping[str, str]) -> str:
        """Its id; that of the one which has the name already, since a name holds a digest of what is in it."""

    def ensure_network(self, name: str, labels: Mapping[str, str]) -> str:
        """The id of an attachable overlay network of this name, made where there is none."""

    def labelled(self, label: str) -> "tuple[Labelled, ...]":
        """Every service, secret, config and overlay network with this label (`name=value`)."""

    def remove(self, kind: Thing, thing_id: str) -> None:
        """Remove it. One that is gone is no error. Secrets, configs and networks are refused while a task uses them."""
