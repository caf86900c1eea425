"""What a lock file pins of a qualification: its gates and its probe plan, where it is a profile's lock."""

import json
from typing import Any

from pydantic import ValidationError

from ninfer_lifecycle.gates.plans import Asked, summary_of
from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds
from ninfer_lifecycle.receipts import strict_json
from ninfer_lifecycle.receipts.errors import MalformedError, UntrustedError

MAX_LOCK_BYTES = 4 * 1024 * 1024
_ARTIFACT = "ninfer_profile_lock"
_ADVICE = "The run was held to something other than what its profile pins; qualify the profile as it is."


def refuse_other_policy(lock: bytes, policy: QualificationPolicy) -> str:
    """Raise UntrustedError when `policy` is weaker than, or just other than, what `lock` pins; else what was compared.

    A lock that is not a profile's pins nothing here: then the policy is only as good as its signer.
    """
    pinned = _pinned(lock)
    if pinned is None:
        return ", the lock pins no policy"
    try:
        thresholds = Thresholds.model_validate(pinned.get("gates"))
    except ValidationError:
        raise MalformedError("the gates of the lock file cannot be read", "Make the lock again with this version.") \
            from None
    if thresholds != policy.thresholds:
        raise UntrustedError("the policy has other thresholds than the lock pins", _ADVICE)
    expected, plan = _pinned_plan(pinned.get("probes")).to_json(), policy.plan.to_json()
    for name in sorted(expected.keys() | plan.keys()):
        if expected.get(name) != plan.get(name):
            raise UntrustedError(f"the plan has other {name} than the lock pins", _ADVICE)
    return ", as the lock pins it"


def _pinned_plan(probes: object) -> PlanSummary:
    """What a run of the lock's probe plan has to show."""
    try:
        return summary_of(Asked.model_validate_json(json.dumps(probes)))
    except (ValidationError, KeyError):
        raise MalformedError("the probe plan of the lock file cannot be read",
                             "Make the lock again with this version.") from None


def _pinned(lock: bytes) -> dict[str, Any] | None:
    try:
        value = strict_json.parse_object(lock, max_bytes=MAX_LOCK_BYTES)
    except MalformedError:
        return None
    return value if value.get("artifact_type") == _ARTIFACT else None
