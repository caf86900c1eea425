"""What a service of ours is asked to be, as a document of the Engine API (v1.41). Pure; equal inputs, equal documents.

A task gets what a container of the docker host gets, as far as a swarm can say it: no new-privileges flag before API
1.44, no seccomp profile and no runtime of a service's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ninfer_engine.contract.base import canonical_json, sha256_hex
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import Limits
from ninfer_lifecycle.hosts.container import ENGINE_PORT, TMPFS_BYTES, BoundPath, environment_of
from ninfer_lifecycle.hosts.ownership import LABEL

TEMPLATE_LABEL = f"{LABEL}.template"
"""On a task's container: the digest of the template it was made from, so that a task tells which version it is of."""
PIDS = 4096
_SECOND = 1_000_000_000
HEALTH_PROGRAM = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{ENGINE_PORT}/health', timeout=4)"
"""Run inside by python3, which every image of ours has."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A named volume of the node that a task runs on: each node has its own."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A secret or a config as a file in the container, of one user. mode: as in 0o400."""

    id: str
    name: str
    target: str
    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True)
class Health:
    """How the orchestrator learns that a task serves. every_s: between two looks, from the start on."""

    every_s: float = 5.0
    starts_within_s: float = 120.0


@dataclass(frozen=True, slots=True)
class ServiceAsked:
    """Everything that decides what a service is.

    entrypoint: in place of the image's, or empty. port: published on the node itself, 0 for one that the node chooses,
    None for none; mesh_port: published on every node through the routing mesh. one_per_node: since a store takes one
    engine. restart: whether the orchestrator begins the next life. health None: no look inside; who started it looks.
    order: stop-first where two tasks cannot share a node. gpu_resource: what nodes call a GPU.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    user: str
    limits: Limits
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...] = ()
    binds: tuple[BoundPath, ...] = ()
    volumes: tuple[Volume, ...] = ()
    secrets: tuple[GivenFile, ...] = ()
    configs: tuple[GivenFile, ...] = ()
    constraints: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    replicas: int = 1
    one_per_node: bool = True
    port: int | None = 0
    mesh_port: int | None = None
    restart: Literal["none", "any"] = "any"
    health: Health | None = None
    stop_s: float = 60.0
    monitor_s: float = 10.0
    order: Literal["stop-first", "start-first"] = "stop-first"
    gpu_resource: str = "NVIDIA-GPU"
    facts: Mapping[str, str] = field(default_factory=dict)


def refuse_what_a_swarm_cannot_say(limits: Limits) -> None:
    """Raises HostError for limits that a service has no field for, rather than to run without them."""
    if limits.seccomp is not None:
        raise HostError("a service of a swarm cannot carry a seccomp profile", "set seccomp-profile in daemon.json of "
                        "its nodes and leave host.seccomp out, or use --host docker")
    if limits.runtime is not None:
        raise HostError("a service of a swarm cannot choose a runtime", f"set default-runtime to {limits.runtime} in "
                        "daemon.json of the nodes that have GPUs and leave host.runtime out, or use --host docker")


def node_constraints(labels: Mapping[str, str], node_id: str | None = None) -> tuple[str, ...]:
    """Placement constraints: labels that a node must have, and the one node where there is only one."""
    return (*(f"node.labels.{name} == {value}" for name, value in sorted(labels.items())),
            *((f"node.id == {node_id}",) if node_id else ()))


def service_spec(asked: ServiceAsked) -> dict[str, Any]:
    """The service. Every task's container is labelled with the digest of the template. Raises HostError."""
    refuse_what_a_swarm_cannot_say(asked.limits)
    template = task_template(asked)
    digest = sha256_hex(canonical_json(template))
    template["ContainerSpec"]["Labels"][TEMPLATE_LABEL] = digest
    change = {"Parallelism": 1, "Order": asked.order, "Monitor": _nanos(asked.monitor_s), "MaxFailureRatio": 0.0}
    return {
        "Name": asked.name,
        "Labels": {**asked.labels, TEMPLATE_LABEL: digest},
        "TaskTemplate": template,
        "Mode": {"Replicated": {"Replicas": asked.replicas}},
        "UpdateConfig": {**change, "FailureAction": "rollback"},
        "RollbackConfig": {**change, "FailureAction": "pause"},
        # Without addresses of the service's own: names resolve to tasks, and nothing stands between.
        "EndpointSpec": {"Mode": "vip" if asked.mesh_port else "dnsrr", "Ports": _ports(asked)},
    }


def template_of(spec: Mapping[str, Any]) -> str | None:
    """The digest that a service's template was labelled with."""
    found = ((spec.get("TaskTemplate") or {}).get("ContainerSpec") or {}).get("Labels") or {}
    return found.get(TEMPLATE_LABEL)


def task_template(asked: ServiceAsked) -> dict[str, Any]:
    """What each task is made from."""
    return {
        "ContainerSpec": _container(asked),
        "Resources": _resources(asked),
        "RestartPolicy": {"Condition": asked.restart, "Delay": 2 * _SECOND},
        "Placement": {"Constraints": list(asked.constraints), "MaxReplicas": 1 if asked.one_per_node else 0},
        "Networks": [{"Target": network} for network in asked.networks],
        "LogDriver": {"Name": "json-file", "Options": {"max-size": "64m", "max-file": "2"}},
        "ForceUpdate": 0,
    }


def _container(asked: ServiceAsked) -> dict[str, Any]:
    document: dict[str, Any] = {
        "Image": asked.image, "Args": list(asked.argv), "User": asked.user,
        "Labels": {**asked.labels, **asked.facts},
        "Env": [f"{name}={value}" for name, value in sorted(environment_of(asked.limits).items())],
        "ReadOnly": True, "CapabilityDrop": ["ALL"], "Init": False, "StopSignal": "SIGTERM",
        "StopGracePeriod": _nanos(asked.stop_s), "Mounts": _mounts(asked), "Secrets": _files(asked.secrets, "Secret"),
        "Configs": _files(asked.configs, "Config"), "Healthcheck": _health(asked.health),
        "Ulimits": [{"Name": one.name, "Soft": one.soft, "Hard": one.hard} for one in asked.limits.ulimits],
    }
    if asked.entrypoint:
        document["Command"] = list(asked.entrypoint)
    return document


def _health(health: Health | None) -> dict[str, Any]:
    if health is None:
        return {"Test": ["NONE"]}
    return {"Test": ["CMD", "python3", "-c", HEALTH_PROGRAM], "Interval": _nanos(health.every_s),
            "Timeout": 5 * _SECOND, "Retries": 3, "StartPeriod": _nanos(health.starts_within_s)}


def _mounts(asked: ServiceAsked) -> list[dict[str, Any]]:
    temporary = [("/tmp", asked.limits.tmpfs_bytes or TMPFS_BYTES)]  # noqa: S108 - inside
    if asked.limits.shm_bytes is not None:
        temporary.append(("/dev/shm", asked.limits.shm_bytes))  # noqa: S108 - inside
    return [
        *({"Type": "bind", "Source": one.source, "Target": one.target, "ReadOnly": one.read_only}
          for one in asked.binds),
        *({"Type": "volume", "Source": one.name, "Target": one.target, "ReadOnly": False,
           "VolumeOptions": {"Labels": dict(asked.labels)}} for one in asked.volumes),
        *({"Type": "tmpfs", "Target": target, "TmpfsOptions": {"SizeBytes": size, "Mode": 0o1777}}
          for target, size in temporary)]


def _files(files: tuple[GivenFile, ...], kind: Literal["Secret", "Config"]) -> list[dict[str, Any]]:
    return [{f"{kind}ID": one.id, f"{kind}Name": one.name,
             "File": {"Name": one.target, "UID": str(one.uid), "GID": str(one.gid), "Mode": one.mode}}
            for one in files]


def _resources(asked: ServiceAsked) -> dict[str, Any]:
    """What it may take is also kept for it: a node that cannot give it is not chosen."""
    limits = asked.limits
    taken = {**({"NanoCPUs": limits.milli_cpus * 1_000_000} if limits.milli_cpus else {}),
             **({"MemoryBytes": limits.memory_bytes} if limits.memory_bytes else {})}
    # A service asks for so many of a kind; which device of a node it gets is the node's choice.
    count = 1 if limits.gpus == ("all",) else len(limits.gpus)
    devices = [{"DiscreteResourceSpec": {"Kind": asked.gpu_resource, "Value": count}}] if count else []
    return {"Limits": {**taken, "Pids": PIDS},
            "Reservations": {**taken, **({"GenericResources": devices} if devices else {})}}


def _ports(asked: ServiceAsked) -> list[dict[str, Any]]:
    ports: list[dict[str, Any]] = []
    if asked.port is not None:
        ports.append({"Protocol": "tcp", "TargetPort": ENGINE_PORT, "PublishMode": "host",
                      **({"PublishedPort": asked.port} if asked.port else {})})
    if asked.mesh_port is not None:
        ports.append({"Protocol": "tcp", "TargetPort": ENGINE_PORT, "PublishMode": "ingress",
                      "PublishedPort": asked.mesh_port})
    return ports


def _nanos(seconds: float) -> int:
    return int(seconds * _SECOND)
