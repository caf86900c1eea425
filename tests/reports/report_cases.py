"""Receipts that reports have to bear: passed, failed, open, with 64 siblings, with hostile words."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import receipt_cases as cases

from ninfer_lifecycle.evidence import PoolEvidence, PoolUse, RequestEvidence, Step, StepEvidence
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.build import ReceiptFiles
from ninfer_lifecycle.receipts.keys import load_public_key
from ninfer_lifecycle.receipts.sources import read_receipt
from ninfer_lifecycle.receipts.statement import ConfigurationPart, Digest, Environment, Gpu, Qualifier
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verify import Expectations, VerifiedReceipt, verify

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "receipts/tiny-cpu-full/tiny-cpu-full.tiny.000001.intoto.json"
REAL_KEY = ROOT / "receipts/tiny-cpu-full/qualifier.pub"
ANY = frozenset(Result)
HEBREW = "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd"
OVERRIDE = "\u202egnp.exe\u202c"
MARKUP = "<script>window.injected=1</script>\"'><img src=x onerror=\"window.injected=1\"></svg></title></style>{{7*7}}"
LONG_ID = "id-" + "f0" * 2000
PLAN_64 = PlanSummary(template_tokens=(512, 28405, 57853), epochs=3, forks=64, saves=0)


def verified(made: ReceiptFiles) -> VerifiedReceipt:
    """A made receipt, through the verifier, of any result."""
    return cases.check(made, expected=cases.expectations(results=ANY)).require()


def real() -> VerifiedReceipt:
    """The receipt that the project publishes."""
    found = read_receipt(REAL)
    trust = trust_keys(Role.QUALIFIER, load_public_key(REAL_KEY))
    return verify(found.raw, found.files, Expectations(
        trust=trust, now=datetime(2026, 12, 2, tzinfo=UTC), lock=found.own_lock(), results=ANY, allow_expired=True)
    ).require()


def failing() -> ReceiptFiles:
    """A fork re-prefilled its template, in one epoch of one size."""
    evidence = cases.spoil(with_steps(cases.honest_evidence()), cases.is_fork(1000, 1, 2), cached_tokens=0,
                           reused_tokens=0, computed_tokens=1058, counter_computed_tokens=1058, path="root",
                           miss_reason="evicted", wall_us=125_800)
    return cases.receipt(evidence)


def open_one() -> ReceiptFiles:
    """A fork has no answer, and the reply of another does not report its cached tokens."""
    evidence = cases.spoil(with_steps(cases.honest_evidence()), cases.is_fork(480, 0, 1), error="connection reset",
                           http_status=None, cached_tokens=None, reused_tokens=None, computed_tokens=None, wall_us=None)
    return cases.receipt(cases.spoil(evidence, cases.is_fork(1000, 0, 3), cached_tokens=None, reused_tokens=None))


def siblings() -> ReceiptFiles:
    """64 siblings a template and epoch, with walls that spread."""
    evidence = cases.honest_evidence(PLAN_64)
    requests = tuple(spread(record) for record in evidence.requests)
    policy = QualificationPolicy(plan=PLAN_64, thresholds=Thresholds(max_slowest_fork_to_cold_ppm=500_000))
    return cases.receipt(with_pools(with_steps(dataclasses.replace(evidence, requests=requests))), policy=policy)


def hostile() -> ReceiptFiles:
    """Words of an engine and of a signer that want to be markup, to run, to be endless, to turn the page round."""
    def poisoned(record: RequestEvidence) -> RequestEvidence:
        if record.step is Step.FORK and record.sibling == 1:
            return record.model_copy(update={"error": f"{MARKUP} {HEBREW}", "request_id": LONG_ID + str(record.order),
                                             "http_status": None, "miss_reason": MARKUP})
        return record.model_copy(update={"request_id": f"{MARKUP}{record.order}", "path": MARKUP,
                                         "miss_reason": f"{OVERRIDE}{MARKUP}"})

    evidence = cases.honest_evidence()
    steps = (StepEvidence(epoch=0, order=1, name=f"1 {MARKUP}", outcome="failed", detail=f"{HEBREW} {OVERRIDE}",
                          wall_us=10**6, prober_us=1),
             StepEvidence(epoch=1, order=2, name=LONG_ID, outcome="done", wall_us=10**5, prober_us=1),
             StepEvidence(epoch=1, order=3, name=HEBREW, outcome="done", wall_us=10**5, prober_us=1))
    epochs = tuple(epoch.model_copy(update={"stop_reason": f"{HEBREW} {OVERRIDE} {MARKUP}",
                                            "server_instance_id": LONG_ID + str(epoch.epoch)})
                   for epoch in evidence.epochs)
    evidence = dataclasses.replace(evidence, requests=tuple(poisoned(record) for record in evidence.requests),
                                   steps=steps, epochs=epochs)
    return cases.receipt(
        evidence, limitations=(MARKUP, f"{HEBREW} ({OVERRIDE})", "\x1b[31mred\x07 and\nlines", LONG_ID),
        configuration=(ConfigurationPart(name=MARKUP, digest=Digest(sha256="1" * 64)),
                       ConfigurationPart(name=HEBREW, digest=Digest(sha256="2" * 64))),
        qualifier=Qualifier(id=MARKUP, version=HEBREW, source_digest=Digest(sha256="0" * 64)),
        environment=Environment(host=MARKUP, architecture=OVERRIDE, cpu=LONG_ID, kernel=MARKUP,
                                gpus=(Gpu(name=MARKUP, uuid=MARKUP),)))


def with_steps(evidence: Evidence) -> Evidence:
    """`evidence` with a step for each run of requests of one kind, template and epoch."""
    steps: list[StepEvidence] = []
    for number, (name, epoch, wall) in enumerate(_runs(evidence)):
        steps.append(StepEvidence(epoch=epoch, order=number, name=name, outcome="done", wall_us=wall, prober_us=900))
    return dataclasses.replace(evidence, steps=tuple(steps))


def with_pools(evidence: Evidence) -> Evidence:
    """`evidence` with the pools after each request: they fill up, and one of them does not exist."""
    instances = {record.epoch: record.server_instance_id for record in evidence.epochs}
    taken = dict.fromkeys(instances, 0)
    pools = []
    for record in sorted(evidence.requests, key=lambda record: record.order):
        taken[record.epoch] += 1
        filled = taken[record.epoch]
        pools.append(PoolEvidence(
            epoch=record.epoch, order=record.order, server_instance_id=instances[record.epoch],
            device_state=PoolUse(occupied=min(4, filled), capacity=4),
            host_state=PoolUse(occupied=min(24, filled // 3), capacity=24),
            device_kv=PoolUse(occupied=min(5120, 40 * filled), capacity=5120),
            host_kv_bytes=PoolUse(occupied=min(2 << 30, filled << 22), capacity=2 << 30),
            private_catalog=PoolUse(occupied=min(72, filled), capacity=72),
            shared_catalog=PoolUse(occupied=0, capacity=0)))
    return dataclasses.replace(evidence, pools=tuple(pools))


def _runs(evidence: Evidence) -> Iterator[tuple[str, int, int]]:
    sizes = sorted({record.template_tokens for record in evidence.of(Step.BASE)})
    for epoch in sorted({record.epoch for record in evidence.requests}):
        if epoch:
            yield "restart", epoch - 1, 380_000
        for tokens in sizes:
            for step in (Step.BASE, Step.FORK, Step.RESUME):
                records = evidence.of(step, tokens, epoch)
                if records:
                    many = f"{len(records)} forks of {tokens}" if step is Step.FORK else f"{step.value} {tokens}"
                    yield many, epoch, sum(record.wall_us or 0 for record in records)


def spread(record: RequestEvidence) -> RequestEvidence:
    """`record` with a wall up to three times as long, by its id: the same every time."""
    by = 1 + 2 * hashlib.sha256(record.request_id.encode()).digest()[0] / 255
    if record.step is not Step.FORK or record.wall_us is None:
        return record
    return record.model_copy(update={"wall_us": round(record.wall_us * by)})


RECEIPTS: dict[str, Callable[[], VerifiedReceipt]] = {
    "passing": real,
    "failing": lambda: verified(failing()),
    "inconclusive": lambda: verified(open_one()),
    "siblings": lambda: verified(siblings()),
    "hostile": lambda: verified(hostile()),
}
