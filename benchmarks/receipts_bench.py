"""Receipts at scale: `python -m benchmarks.receipts_bench [COUNT] [DIR]` (default 2,000 receipts, a temporary folder).

Signs COUNT receipts of a small fan-out, then reports one verification without process start, the build of the index,
an update after one receipt in a hundred is new, an update with nothing new, and queries. Keys are made for the run.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.attachments import DirectoryFiles
from ninfer_lifecycle.receipts.build import ReceiptFiles, ReceiptInputs, build_receipt
from ninfer_lifecycle.receipts.index import Query, ReceiptIndex
from ninfer_lifecycle.receipts.keys import FileSigner
from ninfer_lifecycle.receipts.statement import ConfigurationPart, Digest, Environment, Qualifier
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verify import Expectations, verify

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLAN = PlanSummary(template_tokens=(512,), epochs=1, forks=4, resumes=0)
PROFILES = 50


@dataclass(frozen=True)
class Line:
    """One measurement."""

    name: str
    seconds: float
    count: int

    def __str__(self) -> str:
        return f"{self.name:<46} {self.seconds:9.3f} s  {self.seconds / self.count * 1e3:9.3f} ms each of {self.count}"


def answer(step: Step, order: int, reused: int, prompt: int, **more: object) -> RequestEvidence:
    """An honest answer."""
    return RequestEvidence.model_validate({
        "request_id": f"{order:064x}", "epoch": 0, "order": order, "step": step, "template_tokens": 512,
        "http_status": 200, "response_id": f"resp_{order}", "prompt_tokens": prompt, "cached_tokens": reused,
        "reused_tokens": reused, "computed_tokens": prompt - reused, "counter_computed_tokens": prompt - reused,
        "wall_us": 1000 + prompt - reused} | more)


def evidence() -> Evidence:
    """A base, four forks and both controls."""
    forks = [answer(Step.FORK, 2 + n, 512, 560, sibling=n, parent_response_id="resp_1") for n in range(4)]
    return Evidence((answer(Step.BASE, 1, 0, 520), *forks, answer(Step.CONTROL_NEVER_SEEN, 8, 0, 520),
                     answer(Step.CONTROL_EXACT_REPEAT, 9, 519, 520)))


def sign_one(number: int, signer: FileSigner) -> ReceiptFiles:
    """Receipt `number`: every profile has a lane of its own for each, so that all stand first in their chains."""
    finished = NOW + timedelta(minutes=number)
    return build_receipt(ReceiptInputs(
        profile=f"profile-{number % PROFILES}", lane=f"lane-{number // PROFILES}", lock=f"lock {number % 500}".encode(),
        qualifier=Qualifier(id="bench", version="0", source_digest=Digest(sha256="0" * 64)),
        policy=QualificationPolicy(plan=PLAN, thresholds=Thresholds()),
        configuration=(ConfigurationPart(name="model", digest=Digest(sha256="1" * 64)),),
        environment=Environment(host="process", architecture="x86_64"), evidence=evidence(),
        started_on=finished - timedelta(minutes=1), finished_on=finished, valid_until=finished + timedelta(days=3650),
    ), signer)


def write_plain(folder: Path, made: ReceiptFiles) -> Path:
    """Without the store's syncs: what is measured is reading. The bundle is left out, the index does not read it."""
    target = folder / made.profile
    target.mkdir(exist_ok=True)
    for name, data in made.files.items():
        if name != made.bundle_name:
            (target / name).write_bytes(data)
    return target / made.receipt_name


def timed(name: str, count: int, work: Callable[[], object]) -> Line:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return Line(name, time.perf_counter() - started, count)


def bench(count: int, folder: Path) -> list[Line]:
    """All measurements over `count` receipts in `folder`."""
    signer = FileSigner(Ed25519PrivateKey.generate())
    trust, later = trust_keys(Role.QUALIFIER, signer.public_key), NOW + timedelta(days=3650)
    last: list[Path] = []

    def sign(first: int, end: int) -> None:
        last[:] = [write_plain(folder, sign_one(number, signer)) for number in range(first, end)][-1:]

    index = ReceiptIndex(folder)
    lines = [timed("sign and write", count, lambda: sign(0, count))]
    path = last[0]
    raw, lock = path.read_bytes(), f"lock {(count - 1) % 500}".encode()
    expected = Expectations(trust=trust, now=later, lock=lock, results=frozenset(Result), allow_expired=True)
    rounds = min(count, 200)

    def verify_many() -> None:
        for _ in range(rounds):
            verify(raw, DirectoryFiles(path.parent), expected).require()

    more = max(count // 100, 1)
    lines += [
        timed("verify one, files read each time", rounds, verify_many),
        timed("index: build", count, lambda: index.update(trust, later)),
        timed("sign 1% more", more, lambda: sign(count, count + more)),
        timed("index: update, 1% new", more, lambda: index.update(trust, later)),
        timed("index: update, nothing new", 1, lambda: index.update(trust, later)),
        timed("query: by profile, since a time", 1, lambda: list(index.find(Query(
            profile="profile-7", since=(NOW + timedelta(minutes=count // 2)).strftime("%Y-%m-%dT%H:%M:%SZ"))))),
        timed("query: by subject (what the gate asks)", 1, lambda: list(index.find(
            Query(subject=next(index.find(Query(profile="profile-7"))).subject)))),
        timed("query: everything", 1, lambda: sum(1 for _ in index.find(Query()))),
    ]
    return lines


def main() -> None:
    """Run and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        for line in bench(count, Path(folder)):
            print(line)


if __name__ == "__main__":
    main()
