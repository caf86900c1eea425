"""The fleet statement: in-toto, one subject (fleet.yaml), and for each lane its result and the receipt that shows it.

The result is that of the worst lane: FAILED before INCONCLUSIVE before PASSED. It follows from the lanes, so a
statement where it does not is refused. The receipts stand on their own; the statement pins which of them belong
together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.fleet.schema import MAX_LANES
from ninfer_lifecycle.gates.base import SignedDocument
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts import bundle, dsse, strict_json
from ninfer_lifecycle.receipts.attachments import first_error
from ninfer_lifecycle.receipts.canonical import canonical, is_canonical
from ninfer_lifecycle.receipts.errors import MalformedError, UntrustedError
from ninfer_lifecycle.receipts.keys import PublicKey, Signer
from ninfer_lifecycle.receipts.statement import STATEMENT_TYPE, Digest, Name, Qualifier, StatementType, Subject
from ninfer_lifecycle.receipts.times import Timestamp, parse_time
from ninfer_lifecycle.receipts.trust import RoleTrust
from ninfer_lifecycle.receipts.walk import CLOCK_SKEW

FleetType = Literal["https://ninfer.dev/attestations/fleet/v1"]
FLEET_TYPE: FleetType = "https://ninfer.dev/attestations/fleet/v1"
SUFFIX = ".fleet.json"
"""Not that of receipts: whoever gathers receipts passes it over."""


class LaneResult(SignedDocument):
    """One lane. receipt: digest of its receipt's payload, absent only where none could be written. reason: why it did
    not pass.
    """

    name: Name
    profile: str
    place: str
    labels: dict[str, str] = Field(default_factory=dict)
    result: Result
    receipt: Digest | None = None
    lock: Digest | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _results_are_shown(self) -> Self:
        if self.receipt is None and self.result is not Result.INCONCLUSIVE:
            raise ValueError(f"lane {self.name} is {self.result} without a receipt")
        return self


class FleetResult(SignedDocument):
    """The predicate."""

    result: Result
    fleet: Name
    started_on: Timestamp
    finished_on: Timestamp
    qualifier: Qualifier
    lanes: tuple[LaneResult, ...] = Field(min_length=1, max_length=MAX_LANES)

    @model_validator(mode="after")
    def _follows(self) -> Self:
        if self.result is not worst(lane.result for lane in self.lanes):
            raise ValueError(f"result {self.result} does not follow from the lanes")
        if len({lane.name for lane in self.lanes}) != len(self.lanes):
            raise ValueError("a lane stands twice")
        if parse_time(self.started_on) > parse_time(self.finished_on):
            raise ValueError("startedOn is after finishedOn")
        return self


class FleetStatement(SignedDocument):
    """The statement."""

    type: StatementType = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[Subject, ...] = Field(min_length=1, max_length=1)
    predicate_type: FleetType = FLEET_TYPE
    predicate: FleetResult


@dataclass(frozen=True)
class VerifiedFleet:
    """A statement by a trusted key, about exactly the fleet file in hand."""

    predicate: FleetResult
    signers: tuple[PublicKey, ...]
    payload_sha256: str


def worst(results: Iterable[Result]) -> Result:
    """FAILED if any, else INCONCLUSIVE if any, else PASSED."""
    found = set(results)
    return next((one for one in (Result.FAILED, Result.INCONCLUSIVE) if one in found), Result.PASSED)


def build_statement(result: FleetResult, fleet: bytes, name: str, signer: Signer) -> bytes:
    """The signed file. fleet: the bytes of fleet.yaml; name: its file name."""
    statement = FleetStatement(subject=(Subject(name=name, digest=Digest(sha256=sha256_hex(fleet))),), predicate=result)
    payload = canonical(statement.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dsse.encode(dsse.sign(dsse.IN_TOTO, payload, [signer]))


def verify_statement(raw: bytes, fleet: bytes, trust: RoleTrust, now: datetime) -> VerifiedFleet:
    """The statement in `raw`. Raises RefusedError with the first thing that is wrong."""
    envelope = dsse.decode(bundle.parse_file(raw))
    signers = dsse.verifying_keys(envelope, trust.usable())
    if len(signers) < trust.threshold:
        raise UntrustedError(f"{len(signers)} of {trust.threshold} keys of the role {trust.role} signed the statement",
                             "take it from its source again, or trust the key that signed it")
    if envelope.payload_type != dsse.IN_TOTO:
        raise MalformedError("not an in-toto statement", "this was signed as something else")
    value = strict_json.parse_object(envelope.payload, max_bytes=dsse.MAX_ENVELOPE_BYTES)
    if not is_canonical(envelope.payload, value):
        raise MalformedError("the statement is not canonical JSON")
    try:
        statement = FleetStatement.model_validate_json(envelope.payload, strict=True)
    except ValidationError as error:
        raise MalformedError(f"statement: {first_error(error)}", "it is no fleet statement of this version") from None
    predicate = statement.predicate
    if len(trust.counting(signers, parse_time(predicate.finished_on))) < trust.threshold:
        raise UntrustedError("its key was revoked before it was made", "qualify the fleet again")
    if parse_time(predicate.finished_on) > now + CLOCK_SKEW:
        raise UntrustedError("the statement is from a time to come", "compare the clocks")
    if statement.subject[0].digest.sha256 != sha256_hex(fleet):
        raise UntrustedError("the statement is about another fleet file than the one in hand", "give the file that was "
                             "qualified")
    return VerifiedFleet(predicate, signers, sha256_hex(envelope.payload))
