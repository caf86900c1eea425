"""The steps of a verification, one method each. A method returns what it found, or raises RefusedError with advice."""

from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import QualificationPolicy
from ninfer_lifecycle.receipts import bundle, dsse, strict_json
from ninfer_lifecycle.receipts.attachments import Files, first_error, read_evidence, read_named
from ninfer_lifecycle.receipts.build import epoch_summaries, step_summaries
from ninfer_lifecycle.receipts.canonical import is_canonical
from ninfer_lifecycle.receipts.errors import MalformedError, UntrustedError
from ninfer_lifecycle.receipts.keys import PublicKey
from ninfer_lifecycle.receipts.lock import refuse_other_policy
from ninfer_lifecycle.receipts.statement import PREDICATE_TYPE, STATEMENT_TYPE, Statement, refuse_unsettled
from ninfer_lifecycle.receipts.times import parse_time
from ninfer_lifecycle.receipts.verification import Expectations, Step, VerifiedReceipt

MAX_POLICY_BYTES = 1024 * 1024
CLOCK_SKEW = timedelta(minutes=5)


class Walk:
    """One receipt on its way: each attribute exists once the step that makes it has passed."""

    _envelope_raw: dsse.RawEnvelope
    _envelope: dsse.Envelope
    _signers: tuple[PublicKey, ...]
    _value: dict[str, Any]
    _statement: Statement
    _policy: QualificationPolicy
    _evidence: Evidence

    def __init__(self, raw: bytes, files: Files, expected: Expectations) -> None:
        self._raw, self._files, self._expected = raw, files, expected
        self._steps = {
            Step.SIZE: self._size, Step.ENVELOPE: self._envelope_shape, Step.BASE64: self._base64,
            Step.PAE: self._pae, Step.SIGNATURE: self._signature, Step.THRESHOLD: self._threshold,
            Step.PAYLOAD_TYPE: self._payload_type, Step.STRICT_JSON: self._strict_json,
            Step.CANONICAL: self._canonical, Step.TYPES: self._types, Step.SUBJECT: self._subject,
            Step.POLICY: self._policy_digest, Step.RECOMPUTED: self._recompute, Step.RESULT: self._result,
            Step.FRESHNESS: self._freshness, Step.SEQUENCE: self._sequence,
        }

    def take(self, step: Step) -> str:
        """Do one step; its detail. Raises RefusedError."""
        return self._steps[step]()

    def receipt(self) -> VerifiedReceipt:
        """The typed value, after the last step."""
        return VerifiedReceipt(self._statement, self._evidence, self._policy, self._signers,
                               sha256_hex(self._envelope.payload), self._expected.now)

    def _size(self) -> str:
        if len(self._raw) > dsse.MAX_ENVELOPE_BYTES:
            raise MalformedError(f"more than {dsse.MAX_ENVELOPE_BYTES} bytes", "No receipt is that large.")
        return f"{len(self._raw)} bytes"

    def _envelope_shape(self) -> str:
        self._envelope_raw = bundle.parse_file(self._raw)
        return "sigstore bundle" if self._envelope_raw.hint is not None else "DSSE envelope"

    def _base64(self) -> str:
        self._envelope = dsse.decode(self._envelope_raw)
        return f"payload of {len(self._envelope.payload)} bytes"

    def _pae(self) -> str:
        return f"sha256 {sha256_hex(self._envelope.pae())[:16]}"

    def _signature(self) -> str:
        trust, hint = self._expected.trust, self._envelope.hint
        found = dsse.verifying_keys(self._envelope, trust.usable())
        if hint is not None:
            found = tuple(key for key in found if key.hint == hint)
        if not found:
            raise UntrustedError(
                f"no key of the role {trust.role} made a signature over these bytes",
                "The file was changed, or signed by a key that you do not trust; get the keyring or key from a source "
                "other than the receipt's.")
        self._signers = found
        return ", ".join(key.keyid[:16] for key in found)

    def _threshold(self) -> str:
        have, need = len(self._signers), self._expected.trust.threshold
        if have < need:
            raise UntrustedError(f"{have} of {need} keys signed", "Have another key of the role sign it.")
        return f"{have} of {need}"

    def _payload_type(self) -> str:
        if self._envelope.payload_type != dsse.IN_TOTO:
            raise MalformedError(f"payload type {self._envelope.payload_type[:60]!r} is not {dsse.IN_TOTO}",
                                 "This was signed as something other than a receipt.")
        return dsse.IN_TOTO

    def _strict_json(self) -> str:
        self._value = strict_json.parse_object(self._envelope.payload, max_bytes=dsse.MAX_ENVELOPE_BYTES)
        return "one reading"

    def _canonical(self) -> str:
        if not is_canonical(self._envelope.payload, self._value):
            raise MalformedError("the payload is not canonical JSON", "It was signed by another kind of tool.")
        return "RFC 8785"

    def _types(self) -> str:
        for name, wanted in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
            if self._value.get(name) != wanted:
                raise MalformedError(f"{name} is {str(self._value.get(name))[:80]!r}, not {wanted}",
                                     "This is no receipt of a qualification, or one of a newer major version.")
        refuse_unsettled(self._value)
        try:
            self._statement = Statement.model_validate_json(self._envelope.payload, strict=True)
        except ValidationError as error:
            raise MalformedError(first_error(error), "It was signed by a tool that breaks the format.") from None
        return PREDICATE_TYPE

    def _subject(self) -> str:
        subject, lock = self._statement.subject[0], self._expected.lock
        if lock is None:
            raise MalformedError("there is no lock file to compare the subject with", "Give it: --lock FILE.")
        if sha256_hex(lock) != subject.digest.sha256:
            raise MalformedError(f"the receipt is about {subject.digest.sha256[:16]}, the lock file in hand is "
                                 f"{sha256_hex(lock)[:16]}", "It is a receipt for another configuration.")
        return f"{subject.name} sha256 {subject.digest.sha256[:16]}"

    def _policy_digest(self) -> str:
        named = self._statement.predicate.policy
        wanted = self._expected.policy_sha256
        if wanted is not None and wanted != named.digest.sha256:
            raise MalformedError(f"it was qualified under policy {named.digest.sha256[:16]}, wanted is {wanted[:16]}",
                                 "Qualify again under the wanted policy.")
        raw = read_named(self._files, named.uri, named.digest.sha256)
        value = strict_json.parse_object(raw, max_bytes=MAX_POLICY_BYTES)
        if not is_canonical(raw, value):
            raise MalformedError("the policy is not canonical JSON")
        try:
            self._policy = QualificationPolicy.model_validate_json(raw, strict=True)
        except ValidationError as error:
            raise MalformedError(f"the policy: {first_error(error)}") from None
        return f"sha256 {named.digest.sha256[:16]}{refuse_other_policy(self._expected.lock or b'', self._policy)}"

    def _recompute(self) -> str:
        stated = self._statement.predicate
        self._evidence = read_evidence(stated.evidence, self._files)
        verdict = evaluate(self._policy.plan, self._policy.thresholds, self._evidence)
        if verdict.result is not stated.result:
            raise UntrustedError(f"the evidence gives {verdict.result}, the receipt states {stated.result}", _FORGED)
        for found, said in zip((*verdict.checks, *verdict.controls), (*stated.checks, *stated.controls), strict=False):
            if found != said:
                raise UntrustedError(f"check {found.title}: the evidence gives other figures than stated", _FORGED)
        if verdict != stated.verdict:
            raise UntrustedError("the receipt states other checks than its policy calls for", _FORGED)
        if epoch_summaries(self._evidence) != stated.epochs or step_summaries(self._evidence) != stated.steps:
            raise UntrustedError("the receipt states other epochs or steps than the evidence has", _FORGED)
        return (f"{len(verdict.checks)} checks and {len(verdict.controls)} controls, "
                f"from {len(self._evidence.requests)} requests")

    def _result(self) -> str:
        result = self._statement.predicate.result
        if result not in self._expected.results:
            failing = self._statement.predicate.verdict.not_passed
            first = f": {failing[0].title}: {failing[0].reason}" if failing else ""
            raise UntrustedError(f"the receipt is authentic and says {result}{first}",
                                 "Mend what did not pass, and qualify again.")
        return result

    def _freshness(self) -> str:
        stated, now = self._statement.predicate, self._expected.now
        finished, until = parse_time(stated.finished_on), parse_time(stated.valid_until)
        if finished > now + CLOCK_SKEW:
            raise UntrustedError(f"it finished at {stated.finished_on}, which has not come yet", "Check both clocks.")
        if now >= until and not self._expected.allow_expired:
            raise UntrustedError(f"it expired at {stated.valid_until}", "Qualify again.")
        if self._expected.max_age is not None and now - finished > self._expected.max_age:
            raise UntrustedError(f"it is older than {self._expected.max_age}", "Qualify again.")
        counting = self._expected.trust.counting(self._signers, finished)
        if len(counting) < self._expected.trust.threshold:
            raise UntrustedError(f"its key was revoked before {stated.finished_on}", "Qualify again with a valid key.")
        self._signers = counting
        return f"valid until {stated.valid_until}"

    def _sequence(self) -> str:
        stated, previous = self._statement.predicate, self._expected.previous
        if stated.sequence < self._expected.minimum_sequence:
            raise UntrustedError(f"sequence {stated.sequence}, but {self._expected.minimum_sequence} was seen before",
                                 "An old receipt was put in place of a newer one.")
        if previous is None:
            return f"{stated.sequence}, the receipt before it was not given"
        named = stated.previous_receipt
        if stated.sequence != previous.sequence + 1 or named is None or named.sha256 != previous.payload_sha256:
            raise UntrustedError("it does not follow the receipt before it", "The chain has a gap or a fork.")
        return f"{stated.sequence}, follows {previous.payload_sha256[:16]}"


_FORGED = "Whoever signed it stated what was not found. Do not use it, and ask the holder of the key."
