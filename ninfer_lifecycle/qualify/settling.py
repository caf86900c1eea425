"""Gates while a run goes on: which have settled, and how. Pure; for displays, never for a verdict.

A check's counts are sums over its records, so each record is put to the gates' own code alone and its counts are added:
the cost of a record does not grow with the run. Only checks that follow from requests are shown: hits, resumes,
controls, claims of reuse. The rest (restarts, saves, accounting, timings) is settled when the run ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.claims import claim_checks
from ninfer_lifecycle.gates.hits import control_checks, fork_checks, resume_checks
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, Thresholds
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run is to do and is held to. steps: the names of the plan's steps in order."""

    summary: PlanSummary
    limits: Thresholds
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveGate:
    """A check so far. planned: trials that it needs; result: None while it is open."""

    title: str
    planned: int
    trials: int = 0
    misses: int = 0
    gaps: int = 0

    @property
    def result(self) -> Result | None:
        """One miss fails it for certain; a request without an answer, or one that does not report, leaves a gap."""
        if self.misses:
            return Result.FAILED
        if self.gaps:
            return Result.INCONCLUSIVE
        return Result.PASSED if self.trials >= self.planned else None

    def with_counts_of(self, check: Check) -> "LiveGate":
        """With one more record's counts."""
        return replace(self, trials=self.trials + check.trials, misses=self.misses + check.misses,
                       gaps=self.gaps + check.unreported + check.failed)


class Settling:
    """The gates of one run, fed record by record."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._gates: dict[str, LiveGate] = {
            check.title: LiveGate(check.title, self._planned(check)) for check in self._checks(None)}

    def note(self, record: RequestEvidence) -> list[LiveGate]:
        """Count one record; the gates whose result it changed."""
        changed = []
        for check in self._checks(record):
            if check.trials + check.unreported + check.failed and check.title in self._gates:
                before = self._gates[check.title]
                after = self._gates[check.title] = before.with_counts_of(check)
                if after.result is not before.result:
                    changed.append(after)
        return changed

    def gates(self) -> tuple[LiveGate, ...]:
        """All of them, in the order of a verdict."""
        return tuple(self._gates.values())

    def _checks(self, record: RequestEvidence | None) -> Iterator[Check]:
        """The checks of one record alone; of none, every check that there is."""
        plan, limits = self._expected.summary, self._expected.limits
        evidence = Evidence(() if record is None else (record,))
        if record is not None:
            sizes = tuple(tokens for tokens in plan.template_tokens if tokens == record.template_tokens)
            plan = plan.model_copy(update={"template_tokens": sizes, "claims": tuple(
                claim for claim in plan.claims if claim.name == record.purpose)})
        if record is None or record.step is Step.FORK:
            yield from fork_checks(plan, limits, evidence)
        if record is None or record.step is Step.RESUME:
            yield from resume_checks(plan, limits, evidence)
        yield from claim_checks(tuple(claim for claim in plan.claims if claim.kind == "reuse"), evidence)
        if record is None or record.step in (Step.CONTROL_NEVER_SEEN, Step.CONTROL_EXACT_REPEAT):
            yield from control_checks(plan, limits, evidence)

    def _planned(self, check: Check) -> int:
        plan = self._expected.summary
        match check.name:
            case CheckName.FORK_HITS:
                return plan.forks * plan.repeats
            case CheckName.FIRST_SIBLING_HOT:
                return plan.repeats
            case CheckName.RESUME_HITS:
                return plan.resumes * plan.repeats
            case CheckName.CONTROL_NEVER_SEEN:
                return plan.controls_never_seen
            case CheckName.CONTROL_EXACT_REPEAT:
                return plan.controls_exact_repeat
            case _:
                return next(claim.trials for claim in plan.claims if claim.name == check.subject)
