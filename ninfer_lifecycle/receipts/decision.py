"""The release decision: a second attestation, by another key, over the same subject, as an in-toto SVR v0.2.

It says that a lock file was held to a policy and allowed, by whom and when. It is written for allowed releases only.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.receipts import bundle, dsse, strict_json
from ninfer_lifecycle.receipts.attachments import first_error
from ninfer_lifecycle.receipts.canonical import canonical, is_canonical
from ninfer_lifecycle.receipts.errors import MalformedError, UntrustedError
from ninfer_lifecycle.receipts.keys import PublicKey, Signer
from ninfer_lifecycle.receipts.release_gate import Decision
from ninfer_lifecycle.receipts.statement import STATEMENT_TYPE, Digest, StatementType, Subject
from ninfer_lifecycle.receipts.times import Timestamp, format_time, parse_time
from ninfer_lifecycle.receipts.trust import RoleTrust
from ninfer_lifecycle.receipts.walk import CLOCK_SKEW

SvrType = Literal["https://in-toto.io/attestation/svr/v0.2"]
SVR_TYPE: SvrType = "https://in-toto.io/attestation/svr/v0.2"
ALLOWED = "NINFER_RELEASE_ALLOWED"
_RECEIPT = "NINFER_RECEIPT_SHA256_"


class _Svr(BaseModel):
    """in-toto asks readers to ignore fields that they do not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)


class PolicyDescriptor(_Svr):
    """The release policy by digest."""

    uri: str
    digest: Digest


class Verifier(_Svr):
    """Who decided, under which policies."""

    id: str
    policies: tuple[PolicyDescriptor, ...] = Field(min_length=1)


class SimpleVerificationResult(_Svr):
    """The SVR predicate. properties: what was found to hold, and the receipts that it rests on."""

    verifier: Verifier
    time_created: Timestamp = Field(alias="timeCreated")
    properties: tuple[str, ...]


class DecisionStatement(_Svr):
    """The statement. One subject: the lock file."""

    type: StatementType = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[Subject, ...] = Field(min_length=1, max_length=1)
    predicate_type: SvrType = Field(default=SVR_TYPE, alias="predicateType")
    predicate: SimpleVerificationResult


@dataclass(frozen=True)
class DecisionInputs:
    """What a decision names besides the decision itself. policy: the bytes of the release policy file."""

    lock_name: str
    policy_uri: str
    policy: bytes
    verifier_id: str
    now: datetime


@dataclass(frozen=True)
class VerifiedDecision:
    """An ALLOW for exactly one lock file."""

    lock_sha256: str
    policy_sha256: str
    receipts: tuple[str, ...]
    verifier_id: str
    decided_on: datetime
    signers: tuple[PublicKey, ...]


def build_decision(decision: Decision, inputs: DecisionInputs, signer: Signer) -> bytes:
    """The file of an ALLOW. Raises RefusedError when the decision is not one."""
    chosen = decision.require()
    receipts = sorted({f"{_RECEIPT}{item.receipt.payload_sha256}" for item in chosen})
    verifier = Verifier(id=inputs.verifier_id, policies=(
        PolicyDescriptor(uri=inputs.policy_uri, digest=Digest(sha256=sha256_hex(inputs.policy))),))
    statement = DecisionStatement(
        subject=(Subject(name=inputs.lock_name, digest=Digest(sha256=decision.lock_sha256)),),
        predicate=SimpleVerificationResult(
            verifier=verifier, timeCreated=format_time(inputs.now), properties=(ALLOWED, *receipts)),
    )
    payload = canonical(statement.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dsse.encode(dsse.sign(dsse.IN_TOTO, payload, [signer]))


def verify_decision(
    raw: bytes, lock: bytes, trust: RoleTrust, now: datetime, max_age: timedelta | None = None
) -> VerifiedDecision:
    """The decision in `raw`, when the release role allowed exactly `lock`. Raises RefusedError.

    An ALLOW for another digest, of a role without the threshold, from the future or too old is refused.
    """
    envelope = dsse.decode(bundle.parse_file(raw))
    signers = dsse.verifying_keys(envelope, trust.usable())
    if len(signers) < trust.threshold:
        raise UntrustedError(f"{len(signers)} of {trust.threshold} keys of the role {trust.role} signed the decision",
                             "Run the gate again with the release key.")
    statement = _parse(envelope)
    decided = parse_time(statement.predicate.time_created)
    if len(trust.counting(signers, decided)) < trust.threshold:
        raise UntrustedError("its key was revoked before the decision", "Run the gate again with a valid key.")
    subject = statement.subject[0].digest.sha256
    if subject != sha256_hex(lock):
        raise UntrustedError(f"the decision is about {subject[:16]}, not the lock file in hand", "Run the gate for it.")
    if ALLOWED not in statement.predicate.properties:
        raise RefusedError("the decision does not allow the release", "Run the gate again.")
    if decided > now + CLOCK_SKEW or (max_age is not None and now - decided > max_age):
        raise UntrustedError("the decision is too old, or from a time to come", "Run the gate again.")
    return VerifiedDecision(
        lock_sha256=subject, policy_sha256=statement.predicate.verifier.policies[0].digest.sha256,
        receipts=tuple(item.removeprefix(_RECEIPT) for item in statement.predicate.properties
                       if item.startswith(_RECEIPT)),
        verifier_id=statement.predicate.verifier.id, decided_on=decided, signers=signers,
    )


def _parse(envelope: dsse.Envelope) -> DecisionStatement:
    if envelope.payload_type != dsse.IN_TOTO:
        raise MalformedError("not an in-toto statement", "This was signed as something other than a decision.")
    value: dict[str, Any] = strict_json.parse_object(envelope.payload, max_bytes=dsse.MAX_ENVELOPE_BYTES)
    if not is_canonical(envelope.payload, value):
        raise MalformedError("the decision is not canonical JSON")
    if value.get("_type") != STATEMENT_TYPE or value.get("predicateType") != SVR_TYPE:
        raise MalformedError(f"{str(value.get('predicateType'))[:80]!r} is not {SVR_TYPE}", "Not a release decision.")
    try:
        return DecisionStatement.model_validate_json(envelope.payload, strict=True)
    except ValidationError as error:
        raise MalformedError(f"decision: {first_error(error)}") from None
