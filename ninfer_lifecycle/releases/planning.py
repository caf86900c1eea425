"""What a promotion is about to start: the release to be, its run directory and its spec."""

import secrets
from dataclasses import dataclass

from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity
from ninfer_lifecycle.hosts.doctor_room import computed_need
from ninfer_lifecycle.hosts.orphans import KEY_NAME
from ninfer_lifecycle.hosts.ownership import kept_labels
from ninfer_lifecycle.profiles.configuration import configured_flags, public_model_id
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.prepare import limits_of
from ninfer_lifecycle.releases.admission import Admitted
from ninfer_lifecycle.releases.change import Wiring
from ninfer_lifecycle.releases.records import Owner, Release
from ninfer_lifecycle.releases.room import Choice, Need

LANE_LABEL = "dev.ninfer.lane"


@dataclass(frozen=True, slots=True)
class Planned:
    """A promotion that could start now."""

    profile: Profile
    release: Release
    spec: EngineSpec
    choice: Choice
    owner: Owner


def plan_release(admitted: Admitted, lane: str, wiring: Wiring) -> tuple[Release, EngineSpec]:
    """The release to be, and what to start; nothing is made of it yet."""
    profile, configuration = admitted.profile, admitted.lock.configuration_sha256
    release_id = f"{lane}-{wiring.now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    folder = wiring.files.folder(lane)
    run_dir = folder / "runs" / release_id
    limits = limits_of(profile.host)
    spec = EngineSpec(
        run_id=release_id, flags=configured_flags(profile, admitted.model.sha256),
        model_dir=admitted.model.path.resolve(), run_dir=run_dir,
        expected=ExpectedIdentity(configuration, admitted.model.sha256),
        store_dir=folder / "stores" / configuration[:16], key_file=run_dir / KEY_NAME, image=admitted.image,
        limits=limits, labels={LANE_LABEL: lane, **kept_labels(wiring.files.path)}, ready_s=profile.host.ready_seconds)
    return Release(
        release_id=release_id, profile=profile.name, model=public_model_id(profile), lock_sha256=admitted.lock.sha256,
        configuration_sha256=configuration, receipt_sha256=admitted.receipt_sha256, kind=admitted.kind, run_dir=run_dir,
        stop_seconds=profile.host.stop_seconds, memory_bytes=limits.memory_bytes or computed_need(profile),
        gpus=limits.gpus), spec


def need_of(release: Release) -> Need:
    """What a release may take."""
    return Need(release.memory_bytes, release.gpus)
