"""Making a receipt: evidence in, files out. The verdict is computed here, by the code that every verifier runs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.evidence import EpochEvidence
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.tally import Evidence, is_failed
from ninfer_lifecycle.gates.thresholds import QualificationPolicy
from ninfer_lifecycle.gates.verdict import Verdict
from ninfer_lifecycle.receipts import dsse
from ninfer_lifecycle.receipts.attachments import evidence_files
from ninfer_lifecycle.receipts.bundle import encode_bundle
from ninfer_lifecycle.receipts.canonical import canonical
from ninfer_lifecycle.receipts.keys import Signer
from ninfer_lifecycle.receipts.statement import (
    ConfigurationPart,
    Digest,
    Environment,
    EpochSummary,
    PolicyReference,
    Qualification,
    Qualifier,
    Statement,
    StepSummary,
    Subject,
)
from ninfer_lifecycle.receipts.times import format_time


@dataclass(frozen=True)
class ChainHead:
    """The newest receipt of a profile and lane: its sequence and the SHA-256 of its payload."""

    sequence: int
    payload_sha256: str


@dataclass(frozen=True, kw_only=True)
class ReceiptInputs:
    """Everything that a receipt says. lock: the bytes of the lock file, the subject. Times are aware.

    head: the chain's newest receipt, None for the first of a profile and lane.
    """

    profile: str
    lane: str
    lock: bytes
    qualifier: Qualifier
    policy: QualificationPolicy
    configuration: tuple[ConfigurationPart, ...]
    environment: Environment
    evidence: Evidence
    started_on: datetime
    finished_on: datetime
    valid_until: datetime
    head: ChainHead | None = None
    limitations: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReceiptFiles:
    """A receipt as files by name. `receipt_name` is the envelope, written last: where it is, all of it is."""

    profile: str
    lane: str
    sequence: int
    receipt_name: str
    bundle_name: str
    files: Mapping[str, bytes]
    statement: Statement
    verdict: Verdict
    payload_sha256: str


def build_receipt(inputs: ReceiptInputs, signer: Signer) -> ReceiptFiles:
    """Evaluate, state and sign. Effects: one call of `signer`. Raises ValueError for values the schema refuses."""
    sequence = inputs.head.sequence + 1 if inputs.head else 1
    stem = f"{inputs.profile}.{inputs.lane}.{sequence:06d}"
    policy = canonical(inputs.policy.to_json())
    evidence = evidence_files(inputs.evidence, stem)
    verdict = evaluate(inputs.policy.plan, inputs.policy.thresholds, inputs.evidence)
    predicate = Qualification(
        result=verdict.result, profile=inputs.profile, lane=inputs.lane,
        started_on=format_time(inputs.started_on), finished_on=format_time(inputs.finished_on),
        valid_until=format_time(inputs.valid_until), qualifier=inputs.qualifier,
        policy=PolicyReference(uri=f"{stem}.policy.json", digest=Digest(sha256=sha256_hex(policy))),
        configuration=inputs.configuration, environment=inputs.environment,
        epochs=epoch_summaries(inputs.evidence), checks=verdict.checks, controls=verdict.controls,
        steps=step_summaries(inputs.evidence), evidence=tuple(named for named, _ in evidence),
        sequence=sequence, limitations=inputs.limitations,
        previous_receipt=Digest(sha256=inputs.head.payload_sha256) if inputs.head else None,
    )
    subject = Subject(name=f"{stem}.lock.json", digest=Digest(sha256=sha256_hex(inputs.lock)))
    statement = Statement(subject=(subject,), predicate=predicate)
    payload = canonical(statement.to_json())
    envelope = dsse.sign(dsse.IN_TOTO, payload, [signer])
    files = {named.name: data for named, data in evidence} | {
        predicate.policy.uri: policy,
        subject.name: inputs.lock,
        f"{stem}.sigstore.json": encode_bundle(envelope),
        f"{stem}.intoto.json": dsse.encode(envelope),
    }
    return ReceiptFiles(
        profile=inputs.profile, lane=inputs.lane, sequence=sequence, receipt_name=f"{stem}.intoto.json",
        bundle_name=f"{stem}.sigstore.json", files=files, statement=statement, verdict=verdict,
        payload_sha256=sha256_hex(payload),
    )


def epoch_summaries(evidence: Evidence) -> tuple[EpochSummary, ...]:
    """The epochs as the predicate states them, in order."""
    return tuple(_epoch(record) for record in sorted(evidence.epochs, key=lambda record: record.epoch))


def _epoch(record: EpochEvidence) -> EpochSummary:
    return EpochSummary(
        epoch=record.epoch, server_instance_id=record.server_instance_id, started_at=record.started_at,
        container_id=record.container_id, image_id=record.image_id, exit_code=record.exit_code,
        oom_killed=record.oom_killed, stop_reason=record.stop_reason,
        prefill_counter_before=record.prefill_counter_before, prefill_counter_after=record.prefill_counter_after,
        identity_sha256=record.identity_sha256,
    )


def step_summaries(evidence: Evidence) -> tuple[StepSummary, ...]:
    """Requests by epoch and step, sorted."""
    requests = Counter((record.epoch, record.step.value) for record in evidence.requests)
    failed = Counter((record.epoch, record.step.value) for record in evidence.requests if is_failed(record))
    return tuple(
        StepSummary(step=step, epoch=epoch, requests=count, failed=failed[epoch, step])
        for (epoch, step), count in sorted(requests.items())
    )
