"""What gates conclude: results, checks and the verdict over all of them."""

from enum import StrEnum
from typing import Self

from pydantic import model_validator

from ninfer_lifecycle.gates.base import Count, Ppm, SignedDocument


class Result(StrEnum):
    """INCONCLUSIVE is what could not be compared; it never counts as a pass."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    INCONCLUSIVE = "INCONCLUSIVE"


class CheckName(StrEnum):
    """Everything that a verdict may be made of."""

    EVIDENCE_MATCHES_PLAN = "evidence_matches_plan"
    FORK_HITS = "fork_hits"
    FIRST_SIBLING_HOT = "first_sibling_hot"
    RESUME_HITS = "resume_hits"
    RESTART_PROVED = "restart_proved"
    SAVES_COMPLETE = "saves_complete"
    ACCOUNTING = "accounting"
    WORK_ACCOUNTED = "work_accounted"
    STEPS_DONE = "steps_done"
    NOT_OOM_KILLED = "not_oom_killed"
    MISS_BOUND = "miss_bound"
    FORK_TO_COLD = "fork_to_cold"
    SLOWEST_FORK_TO_COLD = "slowest_fork_to_cold"
    PLAN_ERROR = "plan_error"
    SLOW_ANCHOR = "slow_anchor"
    REUSE_AS_EXPECTED = "reuse_as_expected"
    FACT_HOLDS = "fact_holds"
    BASELINE_RATIO = "baseline_ratio"
    PROBER_OVERHEAD = "prober_overhead"
    CONTROL_NEVER_SEEN = "control_never_seen"
    CONTROL_EXACT_REPEAT = "control_exact_repeat"


class Unit(StrEnum):
    """Unit of a check's threshold and observation."""

    TOKENS = "tokens"
    PPM = "ppm"
    COUNT = "count"
    MICROSECONDS = "us"


class Check(SignedDocument):
    """One settled check.

    subject: the claim, where a plan beside fan-out makes one. trials: reported samples; misses: those against the
    claim; unreported: answered without the measurement; failed: requests without an answer (never samples). clusters:
    groups that may share one cause (siblings of one parent in one epoch), and bound_ppm the exact one-sided 95% bound
    of the miss rate *of clusters*. observed: the worst sample. evidence: ids of the records behind it (request ids,
    `save/SIZE/EPOCH/ORDER`, `epoch/N`, `fact/ORDER`).
    """

    name: CheckName
    subject: str | None = None
    template_tokens: Count | None = None
    epoch: Count | None = None
    trials: Count
    misses: Count
    unreported: Count
    failed: Count
    clusters: Count | None = None
    bound_ppm: Ppm | None = None
    unit: Unit
    threshold: int
    observed: int | None = None
    result: Result
    reason: str | None = None
    evidence: tuple[str, ...]

    @model_validator(mode="after")
    def _result_fits_counts(self) -> Self:
        if self.result is Result.PASSED and (self.misses or self.unreported or self.failed or not self.trials):
            raise ValueError(f"check {self.name} cannot be PASSED with a miss, a gap or no trial")
        if (self.result is Result.PASSED) != (self.reason is None):
            raise ValueError(f"check {self.name}: a reason belongs to what did not pass, and only to that")
        return self

    @property
    def title(self) -> str:
        """Name with size and epoch, as people see it."""
        size = "" if self.template_tokens is None else f" {self.template_tokens} tokens"
        return f"{self.subject or self.name}{size}" + ("" if self.epoch is None else f" epoch {self.epoch}")


class Verdict(SignedDocument):
    """All checks, all controls, and what follows from them."""

    checks: tuple[Check, ...]
    controls: tuple[Check, ...]
    result: Result

    @property
    def not_passed(self) -> tuple[Check, ...]:
        """Failing checks first, then inconclusive ones."""
        rest = [check for check in (*self.checks, *self.controls) if check.result is not Result.PASSED]
        return tuple(sorted(rest, key=lambda check: check.result is not Result.FAILED))


def overall(checks: tuple[Check, ...]) -> Result:
    """FAILED if any failed, else INCONCLUSIVE if any could not be compared or none was made, else PASSED."""
    results = {check.result for check in checks}
    if Result.FAILED in results:
        return Result.FAILED
    return Result.PASSED if results == {Result.PASSED} else Result.INCONCLUSIVE
