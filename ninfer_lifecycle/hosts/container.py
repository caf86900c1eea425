"""What a container of ours is asked to be, and whether what runs is that: reads inspect documents, no docker-py."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, Limits
from ninfer_lifecycle.hosts.ownership import owner_labels
from ninfer_lifecycle.hosts.readiness import Ended

ENGINE_PORT = 8080
MODEL_AT = "/model"
STORE_AT = "/var/lib/ninfer/store"
LOG_AT = "/var/lib/ninfer/log"
KEY_AT = "/run/secrets/ninfer-key"
TMPFS_BYTES = 2**30
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
    """What a container is created with, by docker-py's names. Raises HostError for a seccomp file that is none."""
    limits = asked.limits
    return {
        "image": asked.image_id,
        "command": list(asked.command),
        "name": f"ninfer-{spec.run_id}-{uuid4().hex[:6]}",
        "user": asked.user,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": list(_security(limits)),
        "tmpfs": {"/tmp": tmpfs_of(limits)},  # noqa: S108  # inside
        "mounts": [{"Type": "bind", "Source": item.source, "Target": item.target, "ReadOnly": item.read_only}
                   for item in asked.mounts],
        "ports": {f"{ENGINE_PORT}/tcp": ("127.0.0.1", asked.port) if asked.port else ("127.0.0.1",)},
        "environment": environment_of(limits),
        "labels": {**spec.labels, **owner_labels(spec.run_id)},
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "nano_cpus": limits.milli_cpus * 1_000_000 if limits.milli_cpus else None,
        "shm_size": limits.shm_bytes,
        "ulimits": [{"Name": one.name, "Soft": one.soft, "Hard": one.hard} for one in limits.ulimits] or None,
        "pids_limit": 4096,
        "runtime": limits.runtime,
        "device_requests": _device_requests(limits),
        "log_config": {"type": "json-file", "config": {"max-size": "64m", "max-file": "2"}},
        "detach": True,
    }


def _security(limits: Limits) -> tuple[str, ...]:
    """Without a profile the daemon's own applies; the text of one travels with the request, not its path."""
    options = ("no-new-privileges:true",)
    return options if limits.seccomp is None else (*options, f"seccomp={seccomp_text(limits.seccomp)}")


def seccomp_text(file: Path) -> str:
    """The profile in a file, as the daemon takes it. HostError when it is none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        document["defaultAction"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostError(f"{file} is no seccomp profile: {error!r}",
                        "host.seccomp must name a profile in Docker's JSON form, with a defaultAction") from error
    return json.dumps(document, separators=(",", ":"))


def tmpfs_of(limits: Limits) -> str:
    """Options of the file system in memory that a container has at /tmp."""
    return f"rw,nosuid,nodev,size={limits.tmpfs_bytes or TMPFS_BYTES},mode=1777{',exec' if limits.gpus else ''}"


def environment_of(limits: Limits) -> dict[str, str]:
    """What every container of ours finds in its environment."""
    environment = {"HOME": "/tmp", "PYTHONUNBUFFERED": "1"}  # noqa: S108  # the only writable path without a store
    if limits.milli_cpus:
        environment["OMP_NUM_THREADS"] = str(max(1, limits.milli_cpus // 1000))
    if limits.gpus:
        # What the check inside needs beside what computing does; the toolkit gives no more than is named.
        environment["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
        if limits.runtime == "nvidia":  # this runtime reads the variable, and not the device request
            environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(limits.gpus)
    return environment


def _device_requests(limits: Limits) -> list[dict[str, Any]] | None:
    if not limits.gpus or limits.runtime == "nvidia":
        return None
    if limits.gpus == ("all",):
        return [{"count": -1, "capabilities": [["gpu"]]}]
    return [{"device_ids": list(limits.gpus), "capabilities": [["gpu"]]}]


def drift(asked: Asked, attrs: Mapping[str, Any], but: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """What differs between the container asked for and its `docker inspect`, in words; empty when nothing does.

    but: what was not asked for in these words, and so is not compared.
    """
    wanted, found = {name: value for name, value in _wanted(asked).items() if name not in but}, _found(attrs)
    if asked.limits.runtime is None:  # not asked for: the daemon's own choice stands
        wanted.pop("runtime", None)
    if asked.limits.shm_bytes is None:
        wanted.pop("shared memory", None)
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
        "restart policy": "no",  # a life that ends is an end: nobody but this tool begins the next
        "gpus": _device_requests(asked.limits) is not None,
        "runtime": asked.limits.runtime,
        "shared memory": asked.limits.shm_bytes,
        "ulimits": sorted((one.name, one.soft, one.hard) for one in asked.limits.ulimits),
        "size of /tmp": asked.limits.tmpfs_bytes or TMPFS_BYTES,
        "seccomp profile": [_digest(one) for one in _security(asked.limits) if one.startswith("seccomp=")],
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
        "restart policy": (host.get("RestartPolicy") or {}).get("Name") or "no",
        "gpus": bool(host.get("DeviceRequests")),
        "runtime": host.get("Runtime"),
        "shared memory": host.get("ShmSize"),
        "ulimits": sorted((one["Name"], one["Soft"], one["Hard"]) for one in host.get("Ulimits") or ()),
        "size of /tmp": _tmpfs_size(host),
        "seccomp profile": [_digest(one) for one in host.get("SecurityOpt") or () if one.startswith("seccomp=")],
        "published address": sorted({entry.get("HostIp", "") for binding in bindings for entry in binding or ()}),
    }


def published_port(attrs: Mapping[str, Any], address: str = "127.0.0.1") -> int | None:
    """The port of that address of the daemon's machine that leads to the engine; None while it is not bound."""
    entries = (attrs.get("NetworkSettings", {}).get("Ports") or {}).get(f"{ENGINE_PORT}/tcp") or ()
    return next((int(entry["HostPort"]) for entry in entries if entry.get("HostIp") == address), None)


def is_running(attrs: Mapping[str, Any]) -> bool:
    """Whether the container runs; one that is created and not yet started does not."""
    return bool(attrs["State"].get("Running"))


def has_ended(attrs: Mapping[str, Any]) -> bool:
    """Whether the container ran and ended. `created` is not ended."""
    return attrs["State"].get("Status") in {"exited", "dead"}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _tmpfs_size(host: Mapping[str, Any]) -> int | None:
    options = str((host.get("Tmpfs") or {}).get("/tmp", "")).split(",")  # noqa: S108  # inside
    return next((int(option.removeprefix("size=")) for option in options if option.startswith("size=")), None)


def facts_of(attrs: Mapping[str, Any], environment: Mapping[str, str], end: Ended | None) -> HostFacts:
    """HostFacts of a `docker inspect` document. end: how it ended, when it has."""
    state = attrs["State"]
    ended = has_ended(attrs)
    finished = state.get("FinishedAt", _NEVER)
    return HostFacts(
        kind="docker", handle=attrs["Id"], running=is_running(attrs), started_at=state.get("StartedAt", _NEVER),
        finished_at=finished if ended and finished != _NEVER else None,
        container_id=attrs["Id"], image_id=attrs["Image"], pid=state.get("Pid") or None,
        exit_code=state.get("ExitCode") if ended else None, oom_killed=end.oom_killed if end else None,
        environment=environment, memory_witnesses=end.witnesses if end else (),
    )
