"""What a report says of a receipt: figures derived once, for every format. Pure; made from verified receipts only.

Times are microseconds, shares and ratios parts per million. What the evidence lacks is None or an empty tuple, never 0.
Texts of an engine (errors, steps, reasons) are as the engine wrote them: whoever prints them escapes them.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from ninfer_lifecycle.evidence import SaveEvidence
from ninfer_lifecycle.gates.stats import miss_bound_ppm
from ninfer_lifecycle.gates.tally import is_failed
from ninfer_lifecycle.gates.verdict import Check, Result
from ninfer_lifecycle.receipts.statement import EpochSummary
from ninfer_lifecycle.receipts.times import parse_time
from ninfer_lifecycle.receipts.verification import VerifiedReceipt
from ninfer_lifecycle.reports.figures import (
    Hits,
    PlanCost,
    Restore,
    StepFacts,
    Walls,
    hits_of,
    missed_clusters,
    plan_costs_of,
    restores_of,
    steps_of,
    walls_of,
)
from ninfer_lifecycle.reports.occupancy import Occupancy, occupancy_of

__all__ = ["CheckFacts", "Hits", "PlanCost", "ReceiptFacts", "Restore", "StepFacts", "Walls", "facts_of"]


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """A check or a control, as the receipt states it and as it was derived again."""

    check: Check
    control: bool

    @property
    def key(self) -> str:
        """Name for series and references: the same from run to run, unlike the title's wording."""
        parts = [self.check.subject or self.check.name.value]
        parts += [] if self.check.template_tokens is None else [str(self.check.template_tokens)]
        parts += [] if self.check.epoch is None else [f"e{self.check.epoch}"]
        return "/".join(parts)


@dataclass(frozen=True, slots=True)
class ReceiptFacts:
    """Everything that reports say of one receipt. checks: what did not pass first, failing before inconclusive."""

    receipt: VerifiedReceipt
    checks: tuple[CheckFacts, ...]
    walls: tuple[Walls, ...]
    hits: tuple[Hits, ...]
    restores: tuple[Restore, ...]
    plan_costs: tuple[PlanCost, ...]
    steps: tuple[StepFacts, ...]
    saves: tuple[SaveEvidence, ...]
    misses: tuple[tuple[str, int], ...]
    occupancy: Occupancy | None
    requests: int
    unanswered: int

    @property
    def profile(self) -> str:
        """Profile that was qualified."""
        return self.receipt.predicate.profile

    @property
    def lane(self) -> str:
        """Lane of the profile."""
        return self.receipt.predicate.lane

    @property
    def result(self) -> Result:
        """The verdict."""
        return self.receipt.predicate.result

    @property
    def sequence(self) -> int:
        """Place in the chain of profile and lane."""
        return self.receipt.predicate.sequence

    @property
    def started(self) -> datetime:
        """When the run began."""
        return parse_time(self.receipt.predicate.started_on)

    @property
    def finished(self) -> datetime:
        """When the run ended."""
        return parse_time(self.receipt.predicate.finished_on)

    @property
    def valid_until(self) -> datetime:
        """When the receipt expires."""
        return self.receipt.valid_until

    @property
    def payload_sha256(self) -> str:
        """Digest of the signed payload: names this receipt and no other."""
        return self.receipt.payload_sha256

    @property
    def subject_sha256(self) -> str:
        """Digest of the lock file that the receipt is about."""
        return self.receipt.statement.subject[0].digest.sha256

    @property
    def epochs(self) -> tuple[EpochSummary, ...]:
        """Lives of the engine."""
        return self.receipt.predicate.epochs

    @property
    def not_passed(self) -> tuple[CheckFacts, ...]:
        """Checks and controls that did not pass, failing ones first."""
        return tuple(item for item in self.checks if item.check.result is not Result.PASSED)

    @property
    def total_hits(self) -> Hits | None:
        """Hits over all templates; None where the run had no forks."""
        if not self.hits:
            return None
        trials, hits = sum(item.trials for item in self.hits), sum(item.hits for item in self.hits)
        clusters = sum(item.clusters for item in self.hits)
        bound = None
        if clusters:
            bound = miss_bound_ppm(clusters, missed_clusters(self.receipt.evidence, self.receipt.policy.thresholds))
        return Hits(0, trials, hits, sum(item.unreported for item in self.hits),
                    sum(item.failed for item in self.hits), clusters, bound)

    def age(self, now: datetime) -> timedelta:
        """Since the end of the run; not below zero."""
        return max(timedelta(0), now - self.finished)

    def expired(self, now: datetime) -> bool:
        """Whether it no longer holds."""
        return now >= self.valid_until


def facts_of(receipt: VerifiedReceipt) -> ReceiptFacts:
    """Derive everything that reports say. The only way to make one."""
    evidence, limits = receipt.evidence, receipt.policy.thresholds
    return ReceiptFacts(
        receipt=receipt, checks=_checks(receipt), walls=walls_of(evidence, limits), hits=hits_of(evidence, limits),
        restores=restores_of(evidence), plan_costs=plan_costs_of(evidence), steps=steps_of(evidence),
        saves=tuple(sorted(evidence.saves, key=lambda save: save.order)),
        misses=tuple(Counter(record.miss_reason for record in evidence.own
                             if record.miss_reason is not None).most_common()),
        occupancy=occupancy_of(evidence.pools),
        requests=len(evidence.own), unanswered=sum(is_failed(record) for record in evidence.own),
    )


def _checks(receipt: VerifiedReceipt) -> tuple[CheckFacts, ...]:
    rank = {Result.FAILED: 0, Result.INCONCLUSIVE: 1, Result.PASSED: 2}
    verdict = receipt.verdict
    found = [CheckFacts(check, False) for check in verdict.checks]
    found += [CheckFacts(check, True) for check in verdict.controls]
    return tuple(sorted(found, key=lambda item: rank[item.check.result]))
