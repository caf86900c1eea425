"""What a verification is held to and what it returns."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import QualificationPolicy
from ninfer_lifecycle.gates.verdict import Result, Verdict
from ninfer_lifecycle.receipts.build import ChainHead
from ninfer_lifecycle.receipts.keys import PublicKey
from ninfer_lifecycle.receipts.statement import Qualification, Statement
from ninfer_lifecycle.receipts.times import parse_time
from ninfer_lifecycle.receipts.trust import RoleTrust


class Step(StrEnum):
    """The steps, in their order."""

    SIZE = "size"
    ENVELOPE = "envelope"
    BASE64 = "base64"
    PAE = "pre-authentication encoding"
    SIGNATURE = "signature"
    THRESHOLD = "threshold"
    PAYLOAD_TYPE = "payload type"
    STRICT_JSON = "strict JSON"
    CANONICAL = "canonical bytes"
    TYPES = "types"
    SUBJECT = "subject"
    POLICY = "policy"
    RECOMPUTED = "verdict recomputed"
    RESULT = "result"
    FRESHNESS = "freshness"
    SEQUENCE = "sequence"


class StepState(StrEnum):
    """What became of a step."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True)
class StepReport:
    """A step with what it found, and advice where it refused."""

    step: Step
    state: StepState
    detail: str = ""
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """What the verifier holds against a receipt. now: aware, read once.

    lock: the bytes of the lock file in hand; without them nothing says what the receipt is about, so None refuses.
    policy_sha256: digest of the only policy that will do, None for whichever the receipt (and the lock) names.
    results: results that will do; reports want all of them, gates only PASSED. max_age: since finishedOn.
    allow_expired: for archives and indexes, which tell of a receipt's age instead of refusing it.
    previous: the receipt before this one; minimum_sequence: highest sequence seen of this profile and lane.
    """

    trust: RoleTrust
    now: datetime
    lock: bytes | None
    policy_sha256: str | None = None
    results: frozenset[Result] = frozenset({Result.PASSED})
    max_age: timedelta | None = None
    allow_expired: bool = False
    previous: ChainHead | None = None
    minimum_sequence: int = 1


@dataclass(frozen=True)
class VerifiedReceipt:
    """A receipt that went through every step. Made by `verify` alone; whoever holds one need not ask again."""

    statement: Statement
    evidence: Evidence
    policy: QualificationPolicy
    signers: tuple[PublicKey, ...]
    payload_sha256: str
    verified_at: datetime

    @property
    def predicate(self) -> Qualification:
        """What was stated."""
        return self.statement.predicate

    @property
    def verdict(self) -> Verdict:
        """The verdict, as stated and as recomputed: they are equal."""
        return self.statement.predicate.verdict

    @property
    def valid_until(self) -> datetime:
        """When it expires."""
        return parse_time(self.predicate.valid_until)

    @property
    def head(self) -> ChainHead:
        """This receipt as the one before the next."""
        return ChainHead(self.predicate.sequence, self.payload_sha256)


@dataclass(frozen=True)
class Verification:
    """Every step with its state, and the receipt when all of them passed."""

    steps: tuple[StepReport, ...]
    receipt: VerifiedReceipt | None

    @property
    def refusal(self) -> StepReport | None:
        """The step that refused."""
        return next((report for report in self.steps if report.state is StepState.FAILED), None)

    def require(self) -> VerifiedReceipt:
        """The receipt. Raises RefusedError with the step that refused."""
        if self.receipt is None:
            refusal = self.refusal
            raise RefusedError(f"{refusal.step}: {refusal.detail}" if refusal else "refused",
                               refusal.advice if refusal else "")
        return self.receipt
