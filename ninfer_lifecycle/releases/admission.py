"""Before anything is touched: is this exactly what was qualified, and does its receipt let it onto this lane?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.gates.release import ReleasePolicy
from ninfer_lifecycle.hosts.base import Host, HostKind
from ninfer_lifecycle.profiles.configuration import ProfileLock
from ninfer_lifecycle.profiles.differences import differences
from ninfer_lifecycle.profiles.locking import lock_profile
from ninfer_lifecycle.profiles.schema import ModelSection, Profile
from ninfer_lifecycle.qualify.identity import engine_tree_sha256
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.qualify.prepare import image_of
from ninfer_lifecycle.receipts.release_gate import Candidate, decide
from ninfer_lifecycle.receipts.sources import candidates, read_receipt, receipt_paths
from ninfer_lifecycle.receipts.trust import RoleTrust

_SHOWN = 5
_DERIVED = {"configuration_sha256", "probes_sha256", "gates_sha256"}


@dataclass(frozen=True, slots=True)
class Papers:
    """What a person brings: receipts, whom they trust, and the policy of the release."""

    receipts: tuple[Path, ...]
    policy: ReleasePolicy
    trust: RoleTrust
    now: datetime


@dataclass(frozen=True, slots=True)
class Admitted:
    """A profile that may go live on a lane. receipt: the file; receipt_sha256: of its payload."""

    profile: Profile
    kind: HostKind
    model: ModelOnDisk
    image: str | None
    lock: ProfileLock
    receipt: str
    receipt_sha256: str


def admit(
    profile: Profile, lane: str, place: Host, papers: Papers, make_model: Callable[[ModelSection], ModelOnDisk],
    engine_tree: Callable[[], str] = engine_tree_sha256,
) -> Admitted:
    """Lock the profile as it would run on `place`, and ask the release gate about exactly that lock and this lane.

    Raises RefusedError with the gate's reason; where the receipt is about another configuration, with what differs.
    """
    image = image_of(profile, place)
    model = make_model(profile.model)
    lock = lock_profile(profile, model.sha256, image, None if image else engine_tree())
    policy = papers.policy.model_copy(update={"lanes": (lane,)})
    given: Sequence[Candidate] = list(candidates(papers.receipts))
    decision = decide(lock.canonical(), given, policy, papers.trust, papers.now)
    if not decision.allowed and not decision.refusals and (lines := _what_differs(papers.receipts, lock)):
        raise RefusedError("the receipt is about another configuration than the one that would run:\n"
                           + "\n".join(f"    {line}" for line in lines), "qualify this one: ninfer qualify PROFILE")
    chosen = decision.require()[0]
    return Admitted(profile, place.kind, model, image, lock, chosen.name, chosen.receipt.payload_sha256)


def _what_differs(receipts: Sequence[Path], lock: ProfileLock) -> list[str]:
    """How the lock in hand differs from the one beside a receipt, of the receipt that is nearest; for people only, and
    nothing is verified here. Digests of parts are left out: what differs inside the parts says more.
    """
    found = []
    for path in receipt_paths(receipts):
        try:
            other = ProfileLock.model_validate_json(read_receipt(path).own_lock() or b"")
        except (ValidationError, RefusedError):
            continue
        lines = differences(other.model_dump(mode="json"), lock.model_dump(mode="json"))
        found.append([line for line in lines if line.partition(":")[0] not in _DERIVED] or lines)
    lines = min(found, key=len, default=[])
    return lines[:_SHOWN] + ([f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])
