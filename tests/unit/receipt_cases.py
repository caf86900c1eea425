"""Evidence, keys and receipts for tests: an honest run of a small plan, and ways to spoil it."""

import dataclasses
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ninfer_lifecycle.evidence import EpochEvidence, RequestEvidence, SaveEvidence, Step
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds
from ninfer_lifecycle.receipts.attachments import MemoryFiles
from ninfer_lifecycle.receipts.build import ChainHead, ReceiptFiles, ReceiptInputs, build_receipt
from ninfer_lifecycle.receipts.keys import FileSigner
from ninfer_lifecycle.receipts.statement import ConfigurationPart, Digest, Environment, Qualifier
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verify import Expectations, Verification, verify

NOW = datetime(2026, 9, 5, 12, 0, 0, tzinfo=UTC)
LOCK = b'{"artifact_type":"test_lock","schema_version":1}'
PLAN = PlanSummary(template_tokens=(480, 1000), epochs=2, forks=4, saves=3, controls_never_seen=2,
                   controls_exact_repeat=2)
POLICY = QualificationPolicy(plan=PLAN, thresholds=Thresholds())


def signer(seed: int = 1) -> FileSigner:
    """A test key made of its seed; never used outside tests."""
    return FileSigner(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"test key %d" % seed).digest()))


def request(step: Step, tokens: int, epoch: int, order: int, **more: Any) -> RequestEvidence:
    """An honest answer: `reused` of `prompt` tokens reused, everything adds up."""
    reused, prompt = more.pop("reused"), more.pop("prompt")
    ident = hashlib.sha256(f"{step}/{tokens}/{epoch}/{order}".encode()).hexdigest()
    values = {
        "request_id": ident, "epoch": epoch, "order": order, "step": step, "template_tokens": tokens,
        "http_status": 200, "reply_status": "completed", "response_id": f"resp_{ident[:16]}",
        "server_instance_id": f"instance-{epoch}", "prompt_tokens": prompt, "cached_tokens": reused,
        "reused_tokens": reused, "computed_tokens": prompt - reused, "counter_computed_tokens": prompt - reused,
        "path": "private_long_anchor" if reused else "root", "completion_tokens": 8,
        "wall_us": 20_000 + 100 * (prompt - reused), "engine_ttft_us": 10_000 + 100 * (prompt - reused),
        "predicted_now_us": 9_000 + 100 * (prompt - reused),
    }
    return RequestEvidence.model_validate(values | more)


def honest_evidence(plan: PlanSummary = PLAN) -> Evidence:
    """What a run of `plan` observes on an engine that does as it claims."""
    requests, saves, order = [], [], 0
    for tokens in plan.template_tokens:
        for _ in range(plan.repeats):
            order += 100
            base = request(Step.BASE, tokens, 0, order, reused=0, prompt=tokens + 10)
            requests.append(base)
            saves += [SaveEvidence(epoch=0, order=order + 50 + n, template_tokens=tokens, http_status=200, generation=n)
                      for n in range(plan.saves)]
            for epoch in range(plan.epochs):
                if epoch:
                    requests += [request(Step.RESUME, tokens, epoch, order + 20 + epoch + n, reused=tokens + 18,
                                         prompt=tokens + 60) for n in range(plan.resumes)]
                requests += [
                    request(Step.FORK, tokens, epoch, order + 1 + n, sibling=n, parent_response_id=base.response_id,
                            reused=tokens + 18, prompt=tokens + 58)
                    for n in range(plan.forks)
                ]
    for n in range(plan.controls_never_seen):
        requests.append(request(Step.CONTROL_NEVER_SEEN, 700, 0, 9001 + 2 * n, reused=3, prompt=710))
        requests.append(request(Step.CONTROL_EXACT_REPEAT, 700, 0, 9002 + 2 * n, reused=709, prompt=710))
    epochs = [
        EpochEvidence(epoch=n, server_instance_id=f"instance-{n}", started_at="2026-09-05T11:00:00Z", exit_code=0,
                      oom_killed=False, prefill_counter_before=5, prefill_counter_after=9000, identity_sha256="ab" * 32)
        for n in range(plan.epochs)
    ]
    return Evidence(tuple(requests), tuple(saves), tuple(epochs))


def spoil(evidence: Evidence, where: Callable[[RequestEvidence], bool], **change: Any) -> Evidence:
    """`evidence` with `change` made to the first request that `where` picks."""
    picked = next(record for record in evidence.requests if where(record))
    spoiled = picked.model_copy(update=change)
    return dataclasses.replace(
        evidence, requests=tuple(spoiled if record is picked else record for record in evidence.requests)
    )


def is_fork(tokens: int, epoch: int, sibling: int) -> Callable[[RequestEvidence], bool]:
    """Picks one fork."""
    return lambda r: (r.step, r.template_tokens, r.epoch, r.sibling) == (Step.FORK, tokens, epoch, sibling)


def inputs(evidence: Evidence | None = None, **more: Any) -> ReceiptInputs:
    """Inputs of a receipt about LOCK, an hour old, valid for 90 days."""
    values: dict[str, Any] = {
        "profile": "tiny-cpu", "lane": "default", "lock": LOCK, "policy": POLICY,
        "qualifier": Qualifier(id="https://example.org/qualifier", version="0.1.0",
                               source_digest=Digest(sha256="0" * 64)),
        "configuration": (ConfigurationPart(name="model", digest=Digest(sha256="1" * 64)),),
        "environment": Environment(host="process", architecture="x86_64", cpu="Test CPU", cpu_count=2,
                                   memory_bytes=2**33),
        "evidence": honest_evidence() if evidence is None else evidence,
        "started_on": NOW - timedelta(hours=2), "finished_on": NOW - timedelta(hours=1),
        "valid_until": NOW + timedelta(days=90),
    }
    return ReceiptInputs(**(values | more))


def receipt(evidence: Evidence | None = None, key: int = 1, **more: Any) -> ReceiptFiles:
    """A signed receipt."""
    return build_receipt(inputs(evidence, **more), signer(key))


def expectations(*keys: int, **more: Any) -> Expectations:
    """Trust in the test keys (the first by default), LOCK in hand, at NOW."""
    trust = trust_keys(Role.QUALIFIER, *(signer(key).public_key for key in keys or (1,)))
    values: dict[str, Any] = {"trust": trust, "now": NOW, "lock": LOCK}
    return Expectations(**(values | more))


def check(made: ReceiptFiles, *, raw: bytes | None = None, files: dict[str, bytes] | None = None,
          expected: Expectations | None = None) -> Verification:
    """Verify the envelope of `made`, or `raw` in its place, with changed `files` beside it."""
    return verify(made.files[made.receipt_name] if raw is None else raw,
                  MemoryFiles({**made.files, **(files or {})}), expected or expectations())


def chained(made: ReceiptFiles) -> ChainHead:
    """`made` as the receipt before the next."""
    return ChainHead(made.sequence, made.payload_sha256)
