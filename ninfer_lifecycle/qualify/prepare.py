"""From a profile to everything that must be settled before an engine starts: model, configuration, lock, plan, spec."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol, runtime_checkable

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, Host, HostKind, Limits, Ulimit
from ninfer_lifecycle.hosts.facts import machine_facts
from ninfer_lifecycle.hosts.mounts import forget_keys
from ninfer_lifecycle.probes.plans import Planned, make_plan, require_plan
from ninfer_lifecycle.probes.pressure import reduced_flags
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
from ninfer_lifecycle.qualify.budget import Estimate, estimate
from ninfer_lifecycle.qualify.identity import engine_tree_sha256, tool_tree_sha256
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.qualify.overrides import overridden
from ninfer_lifecycle.qualify.resume import Kept, keep, require_same_identity, schedule_of
from ninfer_lifecycle.qualify.rundir import RunDirectory, create_run_directory, open_run_directory

MakeModel = Callable[[ModelSection], ModelOnDisk]


@runtime_checkable
class ResolvesImages(Protocol):
    """A host that runs images by their id."""

    def image_id(self, reference: str) -> str:
        """sha256:<64 hex>. Raises HostError when the image is not there."""


@runtime_checkable
class Reaps(Protocol):
    """A host that can remove what a killed tool left running."""

    def reap(self, run_dir: Path) -> int:
        """Remove the engines of that run; how many they were."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for. Empty sizes, no host, no plan, no baseline, no soak_seconds: the profile's own.

    fail_fast: leave out the rest once a check has failed for certain. resume: directory of the run to take up again.
    """

    profile: str
    runs_dir: Path
    host: HostKind | None = None
    sizes: tuple[int, ...] = ()
    plan: str | None = None
    engine_flags: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()
    baseline: str | None = None
    soak_seconds: int | None = None
    fail_fast: bool = False
    resume: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """What it takes to ask for the same again."""
        return {"profile": self.profile, "host": self.host, "sizes": list(self.sizes), "plan": self.plan,
                "engineFlags": dict(self.engine_flags), "baseline": self.baseline, "soakSeconds": self.soak_seconds,
                "failFast": self.fail_fast}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a host and this machine hold ready. image: sha256:<64 hex>, None outside containers."""

    host_kind: HostKind
    image: str | None
    model: ModelOnDisk
    baseline: "BaselineParts | None" = None


@dataclass(frozen=True, slots=True)
class BaselineParts:
    """The profile to compare with, on the same host."""

    profile: Profile
    image: str | None
    model: ModelOnDisk


@dataclass(frozen=True, slots=True)
class Baseline:
    """The engine to compare with, ready to start."""

    configuration_sha256: str
    spec: EngineSpec
    model_name: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A qualification that could start now, or go on.

    others: engines that a part runs in the place of the one under test, by name. kept: of the run that is taken up
    again; started_on: when that one began.
    """

    profile: Profile
    host_kind: HostKind
    model: ModelOnDisk
    configuration: Configuration
    lock: ProfileLock
    planned: Planned
    run: RunDirectory
    spec: EngineSpec
    baseline: Baseline | None = None
    others: Mapping[str, EngineSpec] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)
    started_on: datetime | None = None
    estimate: Estimate = field(default_factory=Estimate)
    fail_fast: bool = False

    @property
    def model_name(self) -> str:
        """The model's name in requests."""
        return public_model_id(self.profile)


def resolve(wanted: Wanted) -> Profile:
    """The profile with what the command line changes. Raises UsageError and ProfileError."""
    profile = load_profile(wanted.profile).profile
    changes: dict[str, Any] = {
        "sizes": wanted.sizes or None, "plan": require_plan(wanted.plan) if wanted.plan else None,
        "baseline": wanted.baseline, "soakSeconds": wanted.soak_seconds}
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes and not wanted.engine_flags:
        return profile
    return overridden(profile, wanted.engine_flags, changes)


def run_id_of(profile: Profile, now: datetime) -> str:
    """Sorts by time, names the profile, never twice the same."""
    return f"{now:%Y%m%dT%H%M%SZ}-{profile.name}-{secrets.token_hex(3)}"


def prepare(wanted: Wanted, profile: Profile, parts: Parts, now: datetime) -> Prepared:
    """Settle everything and write it down. Effects: makes the run directory with plan, lock, command and API key."""
    model, image = parts.model, parts.image
    configuration = build_configuration(profile, model.sha256, image, None if image else engine_tree_sha256())
    lock = build_lock(profile, configuration)
    identity = identity_of(parts, lock)
    run, nonce, kept, began = _run_of(wanted, profile, identity, now)
    planned = make_plan(profile.probes, nonce, profile.gates)
    run.write_json("plan.json", planned.schedule.model_dump(mode="json"))
    run.write_bytes("lock.json", lock.canonical())
    run.write_json("run.json", {"identity": identity, "wanted": wanted.to_json(), "startedOn": began.isoformat()})
    if not kept.steps:
        run.write_command(wanted.command)
    key_file = _write_api_key(run)
    spec = EngineSpec(
        run_id=run.run_id, flags=configured_flags(profile, model.sha256), model_dir=model.path, run_dir=run.path,
        expected=ExpectedIdentity(configuration.identity_sha256, model.sha256), store_dir=run.store,
        key_file=key_file, image=image, limits=limits_of(profile.host), ready_s=profile.host.ready_seconds)
    known = estimate(planned.schedule.estimated_tokens, wanted.runs_dir, lock.configuration_sha256)
    return Prepared(profile, parts.host_kind, model, configuration, lock, planned, run, spec,
                    _baseline_of(parts.baseline, spec), _others_of(profile, spec), kept, began, known, wanted.fail_fast)


def identity_of(parts: Parts, lock: ProfileLock) -> dict[str, Any]:
    """Everything that a run's evidence is about: what must not change when the run is taken up again."""
    baseline = parts.baseline
    return {
        "lock": lock.sha256, "configuration": lock.configuration_sha256, "model": parts.model.sha256,
        "image": parts.image, "probe plan": lock.probes_sha256, "gates": lock.gates_sha256,
        "tool": tool_tree_sha256(), "host": parts.host_kind, "machine": machine_facts(),
        "baseline": baseline and build_configuration(
            baseline.profile, baseline.model.sha256, baseline.image,
            None if baseline.image else engine_tree_sha256()).identity_sha256}


def _run_of(wanted: Wanted, profile: Profile, identity: Mapping[str, Any], now: datetime
            ) -> tuple[RunDirectory, str, Kept, datetime]:
    """A new run, or the one to take up again; its nonce, what is kept of it, and when it began."""
    if wanted.resume is None:
        return create_run_directory(wanted.runs_dir, run_id_of(profile, now)), secrets.token_hex(16), Kept(), now
    run = open_run_directory(wanted.resume)
    require_same_identity(run, identity)
    schedule = schedule_of(run)
    kept = keep(run, schedule)
    # What a killed tool could not remove: another life must not find the store of an earlier one.
    rmtree(run.store, ignore_errors=True)
    (run.path / "api.key").unlink(missing_ok=True)
    forget_keys(run.path)
    began = datetime.fromisoformat(json.loads((run.path / "run.json").read_text(encoding="utf-8"))["startedOn"])
    return run, schedule.nonce, kept, began


def _baseline_of(parts: "BaselineParts | None", own: EngineSpec) -> Baseline | None:
    """An engine of its own directory, store and container name, with the key of the run."""
    if parts is None:
        return None
    configuration = build_configuration(parts.profile, parts.model.sha256, parts.image,
                                        None if parts.image else engine_tree_sha256())
    directory = own.run_dir / "baseline"
    spec = EngineSpec(
        run_id=f"{own.run_id}-baseline", flags=configured_flags(parts.profile, parts.model.sha256),
        model_dir=parts.model.path, run_dir=directory,
        expected=ExpectedIdentity(configuration.identity_sha256, parts.model.sha256), store_dir=directory / "store",
        key_file=own.key_file, image=parts.image, limits=limits_of(parts.profile.host),
        ready_s=parts.profile.host.ready_seconds)
    return Baseline(configuration.identity_sha256, spec, public_model_id(parts.profile))


def _others_of(profile: Profile, own: EngineSpec) -> dict[str, EngineSpec]:
    """The engine of the profile with the smallest pools, and the very same on a copy of its store.

    They run one after another and never beside the one under test; each has a directory of its own.
    """
    flags = dict(reduced_flags(profile.flags.max_concurrency))
    smaller = overridden(profile, flags, {})
    configuration = build_configuration(smaller, own.expected.model_sha256 or "", own.image,
                                        None if own.image else engine_tree_sha256())
    made = {}
    for name, of, expected in (("reduced", smaller, configuration.identity_sha256),
                               ("copy", profile, own.expected.config_sha256)):
        directory = own.run_dir / name
        made[name] = replace(
            own, run_id=f"{own.run_id}-{name}", flags=configured_flags(of, own.expected.model_sha256 or ""),
            run_dir=directory, store_dir=directory / "store",
            expected=ExpectedIdentity(expected, own.expected.model_sha256))
    return made


def limits_of(section: HostSection) -> Limits:
    """What a profile lets an engine take."""
    gpus = {"none": (), "all": ("all",)}.get(section.gpus) if isinstance(section.gpus, str) else section.gpus
    return Limits(section.memory, section.cpus, section.shm, gpus or (), section.runtime,
                  tuple(Ulimit(name, value, value) for name, value in sorted(section.ulimits.items())), section.tmpfs,
                  Path(section.seccomp) if section.seccomp else None)


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
