"""The receipt of a lane that gave none: INCONCLUSIVE, with the reason, so that every lane of a fleet has one.

Its subject is the lane's lock as far as it can be made here: the image is the profile's pinned digest, or none. Its
evidence is one step that failed and the one attempt to ask, without an answer. Nothing in it can pass: the gates find
none of the plan's requests.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ninfer_lifecycle import __version__
from ninfer_lifecycle.errors import NinferError
from ninfer_lifecycle.evidence import RequestEvidence, Step, StepEvidence, printable
from ninfer_lifecycle.fleet.schema import FleetLane
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import QualificationPolicy
from ninfer_lifecycle.probes.plans import make_plan
from ninfer_lifecycle.profiles.locking import lock_profile
from ninfer_lifecycle.profiles.schema import ModelSection, Profile
from ninfer_lifecycle.qualify.identity import engine_tree_sha256, tool_tree_sha256
from ninfer_lifecycle.qualify.issue import QUALIFIER_ID
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.receipts.build import ReceiptInputs, build_receipt
from ninfer_lifecycle.receipts.keys import Signer
from ninfer_lifecycle.receipts.statement import ConfigurationPart, Digest, Environment, Qualifier
from ninfer_lifecycle.receipts.store import ReceiptStore

_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Attempt:
    """When a lane was tried, and why it gave nothing."""

    started: datetime
    finished: datetime
    reason: str


def inconclusive_receipt(
    lane: FleetLane, profile: Profile, attempt: Attempt, signer: Signer, receipts_dir: Path,
    make_model: Callable[[ModelSection], ModelOnDisk], validity: timedelta,
) -> Path | None:
    """Write the receipt; its path. None where the model's digest is not known here: a receipt is about one model."""
    try:
        model = profile.model.sha256 or make_model(profile.model).sha256
    except NinferError:
        return None
    boxed = (lane.host or profile.host.kind) != "process"
    lock = lock_profile(profile, model, profile.image.digest if boxed else None,
                        None if boxed else engine_tree_sha256())
    store = ReceiptStore(receipts_dir)
    reason = printable(attempt.reason)[:_LONGEST_REASON]
    step = StepEvidence(epoch=0, order=0, name="reach the lane", outcome="failed", detail=reason, wall_us=max(
        0, int((attempt.finished - attempt.started).total_seconds() * 1_000_000)), prober_us=0)
    attempted = RequestEvidence(request_id=secrets.token_hex(32), epoch=0, order=0, step=Step.OTHER, template_tokens=0,
                                purpose="reach the lane", error=reason)
    plan = make_plan(profile.probes, "0" * 32, profile.gates).summary
    return store.write(build_receipt(ReceiptInputs(
        profile=profile.name, lane=lane.name, lock=lock.canonical(),
        qualifier=Qualifier(id=QUALIFIER_ID, version=__version__, source_digest=Digest(sha256=tool_tree_sha256())),
        policy=QualificationPolicy(plan=plan, thresholds=profile.gates),
        configuration=(ConfigurationPart(name="model", digest=Digest(sha256=model)),
                       ConfigurationPart(name="lock", digest=Digest(sha256=lock.sha256))),
        environment=Environment(host=lane.host or profile.host.kind, architecture="unknown"),
        evidence=Evidence((attempted,), steps=(step,)), started_on=attempt.started, finished_on=attempt.finished,
        valid_until=attempt.finished + validity, head=store.head(profile.name, lane.name),
        limitations=(f"the lane gave no receipt of its own: {reason}",)), signer))
