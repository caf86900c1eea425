"""What a container of ours is asked to be, and whether what runs is that: reads inspect documents, no docker-py."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, Limits
from ninfer_lifecycle.hosts.facts import boot_id, process_start_ticks

ENGINE_PORT = 8080
MODEL_AT = "/model"
STORE_AT = "/var/lib/ninfer/store"
LOG_AT = "/var/lib/ninfer/log"
KEY_AT = "/run/secrets/ninfer-key"
LABEL = "dev.ninfer"
_NEVER = "0001-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class BoundPath:
    """A path of this machine inside the container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that decides what a container may do and what it runs. user: "uid:gid". command: after entrypoint."""

    image_id: str
    command: tuple[str, ...]
    user: str
    mounts: tuple[BoundPath, ...]
    limits: Limits
    port: int


def create_options(spec: EngineSpec, asked: Asked) -> dict[str, Any]:
    """The arguments of docker-py's containers.create for what is asked."""
    limits = asked.limits
    return {
        "image": asked.image_id,
        "command": list(asked.command),
        "name": f"ninfer-{spec.run_id}-{uuid4().hex[:6]}",
        "user": asked.user,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "tmpfs": {"/tmp": f"rw,nosuid,nodev,size=1g,mode=1777{',exec' if limits.gpus else ''}"},  # noqa: S108  # inside
        "mounts": [{"Type": "bind", "Source": item.source, "Target": item.target, "ReadOnly": item.read_only}
                   for item in asked.mounts],
        "ports": {f"{ENGINE_PORT}/tcp": ("127.0.0.1", asked.port) if asked.port else ("127.0.0.1",)},
        "environment": _environment(limits),
        "labels": {**spec.labels, **owner_labels(spec.run_id)},
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "nano_cpus": limits.milli_cpus * 1_000_000 if limits.milli_cpus else None,
        "shm_size": limits.shm_bytes,
        "pids_limit": 4096,
        "device_requests": _device_requests(limits),
        "log_config": {"type": "json-file", "config": {"max-size": "64m", "max-file": "2"}},
        "detach": True,
    }


def _environment(limits: Limits) -> dict[str, str]:
    environment = {"HOME": "/tmp", "PYTHONUNBUFFERED": "1"}  # noqa: S108  # the only writable path without a store
    if limits.milli_cpus:
        environment["OMP_NUM_THREADS"] = str(max(1, limits.milli_cpus // 1000))
    return environment


def _device_requests(limits: Limits) -> list[dict[str, Any]] | None:
    if not limits.gpus:
        return None
    if limits.gpus == ("all",):
        return [{"count": -1, "capabilities": [["gpu"]]}]
    return [{"device_ids": list(limits.gpus), "capabilities": [["gpu"]]}]


def owner_labels(run_id: str) -> dict[str, str]:
    """Labels that say whose a container is: what a dead tool left behind can be told from what a live one runs."""
    pid = os.getpid()
    return {f"{LABEL}.tool": "ninfer", f"{LABEL}.run": run_id, f"{LABEL}.owner-pid": str(pid),
            f"{LABEL}.owner-start": str(process_start_ticks(pid) or 0), f"{LABEL}.owner-boot": boot_id()}


def drift(asked: Asked, attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs between the container asked for and its `docker inspect`, in words; empty when nothing does."""
    wanted, found = _wanted(asked), _found(attrs)
    return tuple(f"{name} is {found[name]!r} and {value!r} was asked for"
                 for name, value in wanted.items() if found[name] != value)


def _wanted(asked: Asked) -> dict[str, Any]:
    return {
        "image": asked.image_id,
        "command": list(asked.command),
        "user": asked.user,
        "mounts": sorted((mount.source, mount.target, not mount.read_only) for mount in asked.mounts),
        "read-only root": True,
        "dropped capabilities": ["ALL"],
        "added capabilities": [],
        "privileged": False,
        "no-new-privileges": True,
        "memory": asked.limits.memory_bytes or 0,
        "cpus (billionths)": (asked.limits.milli_cpus or 0) * 1_000_000,
        "gpus": bool(asked.limits.gpus),
        "published address": ["127.0.0.1"],
    }


def _found(attrs: Mapping[str, Any]) -> dict[str, Any]:
    host, config = attrs["HostConfig"], attrs["Config"]
    bindings = (host.get("PortBindings") or {}).values()
    return {
        "image": attrs["Image"],
        "command": list(config.get("Cmd") or []),
        "user": config.get("User", ""),
        "mounts": sorted((mount["Source"], mount["Destination"], bool(mount["RW"]))
                         for mount in attrs.get("Mounts", ()) if mount.get("Type") != "tmpfs"),
        "read-only root": bool(host.get("ReadonlyRootfs")),
        "dropped capabilities": list(host.get("CapDrop") or []),
        "added capabilities": list(host.get("CapAdd") or []),
        "privileged": bool(host.get("Privileged")),
        "no-new-privileges": any(option.startswith("no-new-privileges") and not option.endswith("false")
                                 for option in host.get("SecurityOpt") or ()),
        "memory": host.get("Memory") or 0,
        "cpus (billionths)": host.get("NanoCpus") or 0,
        "gpus": bool(host.get("DeviceRequests")),
        "published address": sorted({entry.get("HostIp", "") for binding in bindings for entry in binding or ()}),
    }


def published_port(attrs: Mapping[str, Any]) -> int | None:
    """The port of 127.0.0.1 that leads to the engine; None while it is not bound."""
    entries = (attrs.get("NetworkSettings", {}).get("Ports") or {}).get(f"{ENGINE_PORT}/tcp") or ()
    return next((int(entry["HostPort"]) for entry in entries if entry.get("HostIp") == "127.0.0.1"), None)


def is_running(attrs: Mapping[str, Any]) -> bool:
    """Whether the container runs; one that is created and not yet started does not."""
    return bool(attrs["State"].get("Running"))


def has_ended(attrs: Mapping[str, Any]) -> bool:
    """Whether the container ran and ended. `created` is not ended."""
    return attrs["State"].get("Status") in {"exited", "dead"}


def oom_killed(attrs: Mapping[str, Any]) -> bool:
    """Whether memory ran out, by the daemon's own flag, or by a SIGKILL that a memory limit explains."""
    state = attrs["State"]
    limited = bool(attrs["HostConfig"].get("Memory"))
    return bool(state.get("OOMKilled")) or (limited and not state.get("Running") and state.get("ExitCode") == 137
                                            and "oom" in str(state.get("Error", "")).lower())


def facts_of(attrs: Mapping[str, Any], environment: Mapping[str, str]) -> HostFacts:
    """HostFacts of a `docker inspect` document."""
    state = attrs["State"]
    running = is_running(attrs)
    ended = has_ended(attrs)
    finished = state.get("FinishedAt", _NEVER)
    return HostFacts(
        kind="docker", handle=attrs["Id"], running=running, started_at=state.get("StartedAt", _NEVER),
        finished_at=finished if ended and finished != _NEVER else None,
        container_id=attrs["Id"], image_id=attrs["Image"], pid=state.get("Pid") or None,
        exit_code=state.get("ExitCode") if ended else None, oom_killed=oom_killed(attrs) if ended else None,
        environment=environment,
    )
