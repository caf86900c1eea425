"""What a deployment file says of a profile, whatever its syntax: image, command line, limits, places. Pure."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from ninfer_engine.contract.flags import EngineFlags, to_argv
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.base import Limits
from ninfer_lifecycle.hosts.container import (
    ENGINE_PORT,
    KEY_AT,
    MODEL_AT,
    STORE_AT,
    TMPFS_BYTES,
    environment_of,
    tmpfs_of,
)
from ninfer_lifecycle.hosts.mounts import CONTAINER_UID
from ninfer_lifecycle.hosts.swarm.service import HEALTH_PROGRAM, PIDS
from ninfer_lifecycle.profiles.configuration import ProfileLock, configured_flags
from ninfer_lifecycle.profiles.differences import differences
from ninfer_lifecycle.profiles.locking import locked_as
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.prepare import limits_of

PROGRAM = "/opt/ninfer/bin/ninfer-engine"
LOCK_AT = "/etc/ninfer/profile.lock.json"
LANE_LABEL = "ninfer.lane"
"""What a node of a swarm is labelled with to serve a lane, where a profile names no labels of its own."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie on the machine that will run it. lock_file: None where no lock goes along.

    program: the engine's executable, for a unit without a container. address: what the port is published on.
    Raises UsageError for a path that is not absolute, and for an address that is none.
    """

    model_dir: str
    key_file: str = "/etc/ninfer/api.key"
    lock_file: str | None = None
    port: int = ENGINE_PORT
    address: str = "127.0.0.1"
    program: str = PROGRAM
    replicas: int = 1

    def __post_init__(self) -> None:
        for word, path in (("model", self.model_dir), ("key file", self.key_file)):
            if not path.startswith("/"):
                raise UsageError(f"the {word} at {path}: not an absolute path", "give its path on the machine that "
                                 "will run it, from the root on")
        try:
            ip_address(self.address)
        except ValueError:
            raise UsageError(f"{self.address} is no address", "give an IP address of the machine that will run it, "
                             "such as 127.0.0.1") from None

    @property
    def published(self) -> str:
        """Address and port, as a container's port is published on them."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that the templates may use. image: by digest where profile or lock has one. limits: as `--host
    docker` gives them.

    node_labels: what a node of a swarm must be labelled with. argv: what follows the program in a container; unit_argv:
    the same for a unit of systemd, where credentials and the state directory have other paths.
    """

    name: str
    lane: str
    image: str
    image_pinned: bool
    user: str
    argv: tuple[str, ...]
    unit_argv: tuple[str, ...]
    environment: dict[str, str]
    limits: Limits
    gpu_resource: str
    node_labels: dict[str, str]
    ready_seconds: int
    stop_seconds: int
    configuration_sha256: str | None
    lock_sha256: str | None
    places: Places

    @property
    def cpus(self) -> str | None:
        """CPUs as a decimal fraction: 1500 thousandths are 1.5."""
        if self.limits.milli_cpus is None:
            return None
        whole, rest = divmod(self.limits.milli_cpus, 1000)
        return f"{whole}.{rest:03d}".rstrip("0").rstrip(".")

    @property
    def all_gpus(self) -> bool:
        """Whether it takes every GPU that there is."""
        return self.limits.gpus == ("all",)

    @property
    def gpus_by_request(self) -> bool:
        """Whether devices are asked for; the nvidia runtime is told them by the environment."""
        return bool(self.limits.gpus) and self.limits.runtime != "nvidia"

    def to_template(self) -> dict[str, Any]:
        """The names that a template knows."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "places"}
        return {**fields, "cpus": self.cpus, "all_gpus": self.all_gpus, "gpus_by_request": self.gpus_by_request,
                "tmpfs": tmpfs_of(self.limits), "tmpfs_bytes": self.limits.tmpfs_bytes or TMPFS_BYTES, "pids": PIDS,
                "places": self.places,
                "engine_port": ENGINE_PORT, "model_at": MODEL_AT, "store_at": STORE_AT, "key_at": KEY_AT,
                "lock_at": LOCK_AT, "health_program": HEALTH_PROGRAM}


def deployment_of(profile: Profile, places: Places, lock: ProfileLock | None = None) -> Deployment:
    """Settle what the files say. With a lock, image, model and configuration are pinned to it.

    Raises UsageError when the lock is not of this profile: rendering one thing under another's identity.
    """
    if lock is not None:
        _refuse_other(profile, lock)
    model_sha256 = lock.configuration.model_sha256 if lock else profile.model.sha256
    configuration = lock.configuration_sha256 if lock else None
    digest = profile.image.digest
    image = profile.image.reference
    if digest is None and lock is not None and lock.configuration.image is not None:
        image = lock.configuration.image
    flags = configured_flags(profile, model_sha256) if model_sha256 else profile.flags.model_copy(
        update={"model_id": configured_flags(profile, "0" * 64).model_id})
    limits = limits_of(profile.host)
    return Deployment(
        name=profile.name, lane=profile.lane, image=image, image_pinned=image.startswith("sha256:") or "@" in image,
        user=f"{CONTAINER_UID}:{CONTAINER_UID}",
        argv=_argv(flags, configuration, host="0.0.0.0", port=ENGINE_PORT,  # noqa: S104 - in a network of its own
                   model=MODEL_AT, key=KEY_AT, store=STORE_AT),
        unit_argv=_argv(flags, configuration, host=places.address, port=places.port, model=places.model_dir,
                        key="%d/ninfer-key", store=f"%S/ninfer-{profile.name}/store"),
        environment=environment_of(limits), limits=limits, gpu_resource=profile.host.gpu_resource,
        node_labels=dict(profile.host.node_labels) or {LANE_LABEL: profile.lane},
        ready_seconds=profile.host.ready_seconds, stop_seconds=profile.host.stop_seconds,
        configuration_sha256=configuration, lock_sha256=lock.sha256 if lock else None, places=places)


def _argv(flags: EngineFlags, configuration: str | None, *, host: str, port: int, model: str, key: str, store: str
          ) -> tuple[str, ...]:
    placed = EngineFlags.model_validate({
        **flags.model_dump(), "host": host, "port": port, "model": model, "api_key_file": key,
        "session_checkpoint_dir": store, "config_sha256": configuration})
    return ("serve", *to_argv(placed))


def _refuse_other(profile: Profile, lock: ProfileLock) -> None:
    lines = differences(lock.model_dump(mode="json"), locked_as(profile, lock).model_dump(mode="json"))
    # The digests of parts differ too; what differs inside them says more.
    shown = [line for line in lines if not line.partition(":")[0].endswith("sha256")] or lines
    if shown:
        raise UsageError(f"the lock is not of profile {profile.name}: {shown[0]}", "make it anew: ninfer profile lock")
