"""Folders of receipts for the site: chains of several profiles and lanes, one file that is no receipt."""

import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import receipt_cases as cases
from report_cases import spread, with_steps

from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds
from ninfer_lifecycle.receipts.build import ReceiptFiles, ReceiptInputs, build_receipt
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.reports.gather import Gatherer

SMALL = PlanSummary(template_tokens=(480,), epochs=1, forks=2, resumes=0)
TRUST = trust_keys(Role.QUALIFIER, cases.signer(1).public_key)
RELEASE = trust_keys(Role.RELEASE, cases.signer(5).public_key)


def cold_fork(evidence: Evidence) -> Evidence:
    """A fork that re-prefilled: the receipt says FAILED."""
    return cases.spoil(evidence, cases.is_fork(480, 0, 1), cached_tokens=0, reused_tokens=0, computed_tokens=538,
                       counter_computed_tokens=538)


def chain(profile: str, lane: str, length: int, *, end: datetime = cases.NOW,
          spoil: Callable[[int, Evidence], Evidence] = lambda number, evidence: evidence) -> list[ReceiptFiles]:
    """`length` receipts, one a day up to `end`, each naming the one before. spoil: what is done to each's evidence."""
    made: list[ReceiptFiles] = []
    for number in range(length):
        evidence = with_steps(cases.honest_evidence(SMALL))
        evidence = dataclasses.replace(evidence, requests=tuple(spread(record) for record in evidence.requests))
        finished = end - timedelta(days=length - 1 - number)
        made.append(build_receipt(ReceiptInputs(**(vars(cases.inputs()) | {
            "profile": profile, "lane": lane, "evidence": spoil(number, evidence),
            "policy": QualificationPolicy(plan=SMALL, thresholds=Thresholds()),
            "started_on": finished - timedelta(minutes=3), "finished_on": finished,
            "valid_until": finished + timedelta(days=30), "head": cases.chained(made[-1]) if made else None,
        })), cases.signer(1)))
    return made


def put(folder: Path, *receipts: ReceiptFiles) -> Path:
    """Lay receipts into a folder, as the store does."""
    for made in receipts:
        (folder / made.profile).mkdir(parents=True, exist_ok=True)
        for name, data in made.files.items():
            if name != made.receipt_name:
                (folder / made.profile / name).write_bytes(data)
        (folder / made.profile / made.receipt_name).write_bytes(made.files[made.receipt_name])
    return folder


def key_file(folder: Path) -> Path:
    """The public key that signed them."""
    path = folder / "key.pub"
    path.write_bytes(cases.signer(1).public_key.pem())
    return path


def gatherer(folder: Path, *, release: bool = False) -> Gatherer:
    """What the site is built from."""
    return Gatherer(folder, TRUST, RELEASE if release else None)
