"""From a profile to everything that must be settled before an engine starts: model, configuration, lock, plan, spec."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, Host, HostKind, Limits
from ninfer_lifecycle.probes.plans import Planned, make_plan, require_plan
from ninfer_lifecycle.profiles.configuration import (
    Configuration,
    ProfileLock,
    build_configuration,
    build_lock,
    configured_flags,
    public_model_id,
)
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import HostSection, ModelSection, Profile
from ninfer_lifecycle.qualify.identity import engine_tree_sha256
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.qualify.overrides import overridden
from ninfer_lifecycle.qualify.rundir import RunDirectory, create_run_directory

MakeModel = Callable[[ModelSection], ModelOnDisk]


@runtime_checkable
class ResolvesImages(Protocol):
    """A host that runs images by their id."""

    def image_id(self, reference: str) -> str:
        """sha256:<64 hex>. Raises HostError when the image is not there."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for. Empty sizes, no host, no plan: the profile's own."""

    profile: str
    runs_dir: Path
    host: HostKind | None = None
    sizes: tuple[int, ...] = ()
    plan: str | None = None
    engine_flags: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """What a host and this machine hold ready. image: sha256:<64 hex>, None outside containers."""

    host_kind: HostKind
    image: str | None
    model: ModelOnDisk


@dataclass(frozen=True, slots=True)
class Prepared:
    """A qualification that could start now."""

    profile: Profile
    host_kind: HostKind
    model: ModelOnDisk
    configuration: Configuration
    lock: ProfileLock
    planned: Planned
    run: RunDirectory
    spec: EngineSpec

    @property
    def model_name(self) -> str:
        """The model's name in requests."""
        return public_model_id(self.profile)


def resolve(wanted: Wanted) -> Profile:
    """The profile with what the command line changes. Raises UsageError and ProfileError."""
    profile = load_profile(wanted.profile).profile
    if not (wanted.sizes or wanted.engine_flags or wanted.plan):
        return profile
    plan = require_plan(wanted.plan) if wanted.plan else profile.probes.plan
    return overridden(profile, wanted.engine_flags, {"sizes": wanted.sizes or profile.probes.sizes, "plan": plan})


def run_id_of(profile: Profile, now: datetime) -> str:
    """Sorts by time, names the profile, never twice the same."""
    return f"{now:%Y%m%dT%H%M%SZ}-{profile.name}-{secrets.token_hex(3)}"


def prepare(wanted: Wanted, profile: Profile, parts: Parts, now: datetime) -> Prepared:
    """Settle everything and write it down. Effects: makes the run directory with plan, lock, command and API key."""
    model, image = parts.model, parts.image
    configuration = build_configuration(profile, model.sha256, image, None if image else engine_tree_sha256())
    lock = build_lock(profile, configuration)
    planned = make_plan(profile.probes, secrets.token_hex(16))
    run = create_run_directory(wanted.runs_dir, run_id_of(profile, now))
    run.write_json("plan.json", planned.schedule.model_dump(mode="json"))
    run.write_bytes("lock.json", lock.canonical())
    run.write_command(wanted.command)
    spec = EngineSpec(
        run_id=run.run_id, flags=configured_flags(profile, model.sha256), model_dir=model.path, run_dir=run.path,
        expected=ExpectedIdentity(configuration.identity_sha256, model.sha256), store_dir=run.store,
        key_file=_write_api_key(run), image=image, limits=limits_of(profile.host), ready_s=profile.host.ready_seconds)
    return Prepared(profile, parts.host_kind, model, configuration, lock, planned, run, spec)


def limits_of(section: HostSection) -> Limits:
    """What a profile lets an engine take."""
    gpus = {"none": (), "all": ("all",)}.get(section.gpus) if isinstance(section.gpus, str) else section.gpus
    return Limits(section.memory, section.cpus, section.shm, gpus or ())


def image_of(profile: Profile, host: Host) -> str | None:
    """The id of the image that this host would run; None where it runs none. Raises HostError when it is not there."""
    if host.kind == "process":
        return None
    if not isinstance(host, ResolvesImages):
        raise HostError(f"host {host.kind} cannot tell the id of an image", "choose --host process or --host docker")
    return host.image_id(profile.image.reference)


def _write_api_key(run: RunDirectory) -> Path:
    """A key for this run alone, readable by its owner alone; it leaves with the run."""
    path = run.path / "api.key"
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
    return path
