"""May this lock file be released? Receipts are verified, then held to a release policy; every refusal is explained."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.release import ReleasePolicy, held_to, is_allowed, plan_shortfalls, verdict_shortfalls
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.attachments import Files
from ninfer_lifecycle.receipts.store import payload_of
from ninfer_lifecycle.receipts.times import parse_span
from ninfer_lifecycle.receipts.trust import RoleTrust
from ninfer_lifecycle.receipts.verify import Expectations, Step, VerifiedReceipt, verify

_ANY_RESULT = frozenset(Result)


@dataclass(frozen=True)
class Candidate:
    """A receipt file that might fit, and what lies beside it."""

    name: str
    raw: bytes
    files: Files


@dataclass(frozen=True)
class Refusal:
    """Why one candidate, or a lane as a whole (name = its lane), does not let the release pass. step: None where it was
    verified and did not fit the policy.
    """

    name: str
    reason: str
    advice: str = ""
    step: Step | None = None


@dataclass(frozen=True)
class Chosen:
    """The receipt that a lane's release stands on."""

    name: str
    receipt: VerifiedReceipt


@dataclass(frozen=True)
class Decision:
    """Whether the lock may be released. missing: what it would take, a reason a lane; empty when allowed.

    refusals: candidates that were passed over, for the record; they may be there beside a fitting one.
    """

    lock_sha256: str
    chosen: tuple[Chosen, ...]
    refusals: tuple[Refusal, ...]
    missing: tuple[Refusal, ...]

    @property
    def allowed(self) -> bool:
        """Every lane has a fitting receipt."""
        return bool(self.chosen) and not self.missing

    def require(self) -> tuple[Chosen, ...]:
        """What the release stands on. Raises RefusedError with the first reason."""
        if not self.allowed:
            first = (*self.missing, *self.refusals)[0]
            raise RefusedError(f"{first.name}: {first.reason}", first.advice)
        return self.chosen


def decide(
    lock: bytes, candidates: Iterable[Candidate], policy: ReleasePolicy, trust: RoleTrust, now: datetime
) -> Decision:
    """Verify every candidate that names `lock`, choose the newest fitting one of each lane.

    A receipt that is authentic, newer and FAILED stands in the way of older ones that passed: the configuration is
    known to fail. One that is INCONCLUSIVE, expired or cannot be verified is passed over with its reason.
    """
    expected = Expectations(
        trust=trust, now=now, lock=lock, results=_ANY_RESULT,
        max_age=parse_span(policy.max_age) if policy.max_age else None,
    )
    verified: list[Chosen] = []
    refusals: list[Refusal] = []
    others = 0
    for candidate in candidates:
        if _names_other_lock(candidate, expected):
            others += 1
            continue
        outcome = verify(candidate.raw, candidate.files, expected)
        if outcome.receipt is not None:
            verified.append(Chosen(candidate.name, outcome.receipt))
        elif outcome.refusal is not None:
            refusal = outcome.refusal
            refusals.append(Refusal(candidate.name, f"{refusal.step}: {refusal.detail}", refusal.advice, refusal.step))
    chosen, missing = [], []
    refusals += _forks(verified)
    for lane in policy.lanes or ("",):
        of_lane = [item for item in verified if lane in ("", item.receipt.predicate.lane)]
        best, passed_over = _newest_fitting(of_lane, policy)
        refusals += passed_over
        if best is None:
            missing.append(_nothing_fits(lane, passed_over or refusals, others))
        else:
            chosen.append(best)
    return Decision(sha256_hex(lock), tuple(chosen), tuple(refusals), tuple(missing))


def shortfalls(policy: ReleasePolicy, receipt: VerifiedReceipt) -> list[str]:
    """Everything that keeps a verified receipt from fitting a policy; empty when it fits."""
    faults = plan_shortfalls(policy, receipt.policy)
    verdict = evaluate(receipt.policy.plan, held_to(policy, receipt.policy), receipt.evidence)
    faults += verdict_shortfalls(policy, verdict)
    faults += [f"limitation {text!r} is not allowed by the policy" for text in receipt.predicate.limitations
               if not is_allowed(policy, text)]
    return faults


def _newest_fitting(verified: Sequence[Chosen], policy: ReleasePolicy) -> tuple[Chosen | None, list[Refusal]]:
    """Newest first; stops at one that fits, or at one that says FAILED."""
    refusals: list[Refusal] = []
    for item in sorted(verified, key=_age_order, reverse=True):
        faults = shortfalls(policy, item.receipt)
        if not faults:
            return item, refusals
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        refusals.append(Refusal(item.name, f"{faults[0]}{more}", "Mend what it names, and qualify again."))
        if item.receipt.predicate.result is Result.FAILED:
            return None, refusals
    return None, refusals


def _age_order(item: Chosen) -> tuple[str, int]:
    return item.receipt.predicate.finished_on, item.receipt.predicate.sequence


def _forks(verified: Sequence[Chosen]) -> list[Refusal]:
    """Two different receipts at one place of a chain: someone signed two histories."""
    seen: dict[tuple[str, str, int], Chosen] = {}
    refusals = []
    for item in verified:
        stated = item.receipt.predicate
        other = seen.setdefault((stated.profile, stated.lane, stated.sequence), item)
        if other.receipt.payload_sha256 != item.receipt.payload_sha256:
            refusals.append(Refusal(item.name, f"it has the same place in the chain as {other.name}",
                                    "Find out which of the two histories is true."))
    return refusals


def _nothing_fits(lane: str, because: Sequence[Refusal], others: int) -> Refusal:
    where = f"lane {lane}" if lane else "no receipt"
    if because:
        first = because[0]
        return Refusal(where, f"nothing fits; {first.name}: {first.reason}", first.advice, first.step)
    beside = f" ({others} receipts here are about other configurations)" if others else ""
    return Refusal(where, f"there is none for this lock file{beside}", "Qualify it: ninfer qualify PROFILE")


def _names_other_lock(candidate: Candidate, expected: Expectations) -> bool:
    """Whether a file, unverified, claims to be about another lock. Claiming this one gains it nothing but a look."""
    try:
        payload = payload_of(candidate.raw)
    except RefusedError:
        return False  # verification will say what is wrong with it
    subjects = payload.get("subject") if isinstance(payload, dict) else None
    if not isinstance(subjects, list) or expected.lock is None:
        return False
    digests = [item.get("digest") for item in subjects if isinstance(item, dict)]
    named = [digest.get("sha256") for digest in digests if isinstance(digest, dict)]
    return bool(named) and sha256_hex(expected.lock) not in named
