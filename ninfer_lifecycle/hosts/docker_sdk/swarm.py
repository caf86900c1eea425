"""`Swarm` through the Docker SDK for Python, on the connection of a `SdkDaemon`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from docker.errors import NotFound

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.daemon import NoDaemonError
from ninfer_lifecycle.hosts.docker_sdk.client import Api
from ninfer_lifecycle.hosts.docker_sdk.told import told
from ninfer_lifecycle.hosts.swarm.cluster import (
    Document,
    Labelled,
    Node,
    NodeHere,
    NoManagerError,
    NoQuorumError,
    OutOfSequenceError,
    Service,
    Task,
    Thing,
    ThingGoneError,
)
from ninfer_lifecycle.hosts.swarm.service import TEMPLATE_LABEL

_NO_QUORUM = ("does not have a leader", "no leader", "lost quorum", "context deadline exceeded", "raft")


class SdkSwarm:
    """The swarm of the daemon behind `api`. Closing is the daemon's business. Safe to share between threads."""

    def __init__(self, api: Api, where: object) -> None:
        self._api, self._where = api, where

    def here(self) -> NodeHere:
        """See Swarm. Raises NoManagerError for a daemon that is in no swarm or a worker in one."""
        with self._asked("ask the daemon for its swarm"):
            swarm = dict(self._api.info().get("Swarm") or {})
        if (words := no_manager(swarm)) is not None:
            if "manager" in str(swarm.get("Error")) or any(one in str(swarm.get("Error")) for one in _NO_QUORUM):
                raise NoQuorumError(str(swarm.get("Error")))
            raise NoManagerError(words)
        return NodeHere(str(swarm["NodeID"]), manages=True, address=str(swarm.get("NodeAddr") or ""))

    def nodes(self) -> tuple[Node, ...]:
        """See Swarm."""
        with self._asked("list the swarm's nodes"):
            return tuple(_node(one) for one in self._api.nodes())

    def find_service(self, name: str) -> Service | None:
        """See Swarm."""
        with self._asked(f"look for service {name}"):
            found = [one for one in self._api.services(filters={"name": name}) if one["Spec"]["Name"] == name]
        return _service(found[0]) if found else None

    def service(self, service_id: str) -> Service:
        """See Swarm."""
        try:
            with self._asked("inspect the service"):
                return _service(self._api.inspect_service(service_id))
        except NotFound:
            raise ThingGoneError("service", service_id) from None

    def create_service(self, spec: Document) -> str:
        """See Swarm."""
        with self._asked(f"create service {spec['Name']}"):
            return str(self._api.create_service(
                dict(spec["TaskTemplate"]), name=spec["Name"], labels=dict(spec["Labels"]), mode=dict(spec["Mode"]),
                update_config=spec.get("UpdateConfig"), rollback_config=spec.get("RollbackConfig"),
                endpoint_spec=spec.get("EndpointSpec"))["ID"])

    def update_service(self, service: Service, spec: Document) -> None:
        """See Swarm."""
        try:
            with self._asked(f"update service {service.name}"):
                self._api.update_service(
                    service.id, service.version, dict(spec["TaskTemplate"]), name=spec["Name"],
                    labels=dict(spec["Labels"]), mode=dict(spec["Mode"]), update_config=spec.get("UpdateConfig"),
                    rollback_config=spec.get("RollbackConfig"), endpoint_spec=spec.get("EndpointSpec"))
        except NotFound:
            raise ThingGoneError("service", service.name) from None
        except HostError as error:
            if "out of sequence" in error.message:
                raise OutOfSequenceError(service.name) from error
            raise

    def tasks(self, service_id: str) -> tuple[Task, ...]:
        """See Swarm."""
        try:
            with self._asked("list the service's tasks"):
                found = [_task(one) for one in self._api.tasks(filters={"service": service_id})]
        except NotFound:
            return ()
        return tuple(sorted(found, key=lambda task: (task.created_at, task.id)))

    def task_log(self, task_id: str, lines: int) -> str:
        """See Swarm."""
        try:
            with self._asked("read the task's log"):
                return self._api.output_of_task(task_id, lines).decode("utf-8", errors="replace")
        except (NotFound, HostError):
            return ""

    def create(self, kind: Literal["secret", "config"], name: str, data: bytes, labels: Mapping[str, str]) -> str:
        """See Swarm."""
        try:
            with self._asked(f"create {kind} {name}"):
                make = self._api.create_secret if kind == "secret" else self._api.create_config
                return str(make(name, data, dict(labels))["ID"])
        except HostError as error:
            if "already exists" not in error.message and "name conflicts" not in error.message:
                raise
        with self._asked(f"look for {kind} {name}"):
            listed = self._api.secrets if kind == "secret" else self._api.configs
            return next(str(one["ID"]) for one in listed(filters={"name": name}) if one["Spec"]["Name"] == name)

    def ensure_network(self, name: str, labels: Mapping[str, str]) -> str:
        """See Swarm."""
        with self._asked(f"make network {name}"):
            for one in self._api.networks(names=[name]):
                if one["Name"] == name and one.get("Driver") == "overlay":
                    return str(one["Id"])
            return str(self._api.create_network(name, driver="overlay", attachable=True, labels=dict(labels),
                                                scope="swarm")["Id"])

    def labelled(self, label: str) -> tuple[Labelled, ...]:
        """See Swarm."""
        wanted = {"label": [label]}
        with self._asked("list what is ours in the swarm"):
            kinds: tuple[tuple[Thing, Any], ...] = (
                ("service", self._api.services(filters=wanted)), ("secret", self._api.secrets(filters=wanted)),
                ("config", self._api.configs(filters=wanted)))
            networks = [one for one in self._api.networks(filters=wanted) if one.get("Scope") == "swarm"]
        return (*(Labelled(kind, str(one["ID"]), str(one["Spec"]["Name"]), one["Spec"].get("Labels") or {})
                  for kind, listed in kinds for one in listed),
                *(Labelled("network", str(one["Id"]), str(one["Name"]), one.get("Labels") or {}) for one in networks))

    def remove(self, kind: Thing, thing_id: str) -> None:
        """See Swarm."""
        try:
            with self._asked(f"remove the {kind}"):
                match kind:
                    case "service":
                        self._api.remove_service(thing_id)
                    case "secret":
                        self._api.remove_secret(thing_id)
                    case "config":
                        self._api.remove_config(thing_id)
                    case "network":
                        self._api.remove_network(thing_id)
        except NotFound:
            return

    @contextmanager
    def _asked(self, action: str) -> Iterator[None]:
        """What a manager refuses because of the swarm's own state, as the error that says so."""
        try:
            with told(self._where, action):
                yield
        except NoDaemonError:
            raise
        except HostError as error:
            words = error.message.partition(": ")[2]
            if "not a swarm manager" in words or "not part of a swarm" in words:
                raise NoManagerError(words) from error
            if any(one in words for one in _NO_QUORUM):
                raise NoQuorumError(words) from error
            raise


def no_manager(swarm: Mapping[str, Any]) -> str | None:
    """Why a daemon manages no swarm, from what it says of it; None when it does."""
    if swarm.get("ControlAvailable"):
        return None
    state = str(swarm.get("LocalNodeState") or "inactive")
    return "it is a worker" if state == "active" else f"its swarm is {state}"


def _node(one: Mapping[str, Any]) -> Node:
    spec, status = one.get("Spec") or {}, one.get("Status") or {}
    availability = str(spec.get("Availability", "active"))
    return Node(str(one["ID"]), str((one.get("Description") or {}).get("Hostname", "")), _address(one),
                status.get("State") == "ready", availability == "active", availability, spec.get("Labels") or {})


def _address(one: Mapping[str, Any]) -> str:
    """As the managers see it. A manager sees itself as 0.0.0.0 where it was not told an address."""
    seen = str((one.get("Status") or {}).get("Addr") or "")
    managing = str((one.get("ManagerStatus") or {}).get("Addr") or "").rpartition(":")[0]
    return managing if seen in {"", "0.0.0.0", "127.0.0.1"} and managing else seen  # noqa: S104 - compared, not bound


def _service(one: Mapping[str, Any]) -> Service:
    update = one.get("UpdateStatus") or {}
    return Service(str(one["ID"]), str(one["Spec"]["Name"]), int(one["Version"]["Index"]), one["Spec"],
                   one.get("PreviousSpec"), update.get("State") or None, str(update.get("Message") or ""),
                   str(update.get("StartedAt") or ""))


def _task(one: Mapping[str, Any]) -> Task:
    status = one.get("Status") or {}
    container = status.get("ContainerStatus") or {}
    spec = (one.get("Spec") or {}).get("ContainerSpec") or {}
    # Once for IPv4 and once for IPv6, in this order, and with other numbers where the node chose them.
    ports = dict.fromkeys(int(port["PublishedPort"]) for port in (status.get("PortStatus") or {}).get("Ports") or ())
    addresses = {str(attached["Network"]["ID"]): str(attached["Addresses"][0]).partition("/")[0]
                 for attached in one.get("NetworksAttachments") or () if attached.get("Addresses")}
    state = str(status.get("State") or "new")
    return Task(
        id=str(one["ID"]), service_id=str(one["ServiceID"]), slot=int(one.get("Slot") or 0),
        node_id=one.get("NodeID") or None, state=state, desired=str(one.get("DesiredState") or ""),
        created_at=str(one.get("CreatedAt") or ""), message=str(status.get("Message") or ""),
        error=str(status.get("Err") or ""), container_id=container.get("ContainerID") or None,
        exit_code=container.get("ExitCode") if state in {"complete", "shutdown", "failed"} else None,
        ports=tuple(ports), addresses=addresses, template=(spec.get("Labels") or {}).get(TEMPLATE_LABEL))
