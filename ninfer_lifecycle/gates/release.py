"""The policy of a release: what its receipts must show, whatever the qualification itself was held to."""

from typing import Literal

from pydantic import Field

from ninfer_lifecycle.gates.base import Count, Ppm, SignedDocument
from ninfer_lifecycle.gates.thresholds import QualificationPolicy, Thresholds
from ninfer_lifecycle.gates.verdict import CheckName, Verdict


class ReleasePolicy(SignedDocument):
    """What `ninfer gate` asks of a receipt. A verdict under `thresholds` is computed anew from the receipt's evidence.

    required_checks: each must stand in that verdict, PASSED, at least once. sizes: templates that must have been
    probed, each in at least `epochs` lives of the engine with `forks` forks in each. max_miss_bound_ppm: bound over all
    clusters of forks. lanes: every one needs a fitting receipt; empty: one of any lane will do. max_age: as in 30d.
    min_trials: forks answered and reported in all. trusted_role: whose keys must have signed the receipt.
    allowed_limitations: limitations that a receipt may state; a trailing * stands for any rest.
    """

    schema_version: Literal[1] = 1
    required_checks: tuple[CheckName, ...] = (
        CheckName.FORK_HITS, CheckName.FIRST_SIBLING_HOT, CheckName.RESTART_PROVED, CheckName.ACCOUNTING,
        CheckName.CONTROL_NEVER_SEEN, CheckName.CONTROL_EXACT_REPEAT,
    )
    thresholds: Thresholds = Thresholds()
    sizes: tuple[int, ...] = ()
    min_sizes: Count = 1
    epochs: int = Field(default=2, ge=1)
    forks: int = Field(default=1, ge=1)
    min_trials: Count = 1
    max_miss_bound_ppm: Ppm | None = None
    trusted_role: Literal["qualifier", "release", "root"] = "qualifier"
    max_age: str | None = "90d"
    allowed_limitations: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    max_baseline_ratio_ppm: int = Field(default=1_100_000, ge=1)


def held_to(policy: ReleasePolicy, ran: QualificationPolicy) -> Thresholds:
    """Thresholds to evaluate a run under: the release's own, made stricter where the run was held to stricter ones."""
    own, theirs = policy.thresholds, ran.thresholds
    return Thresholds(
        fork_min_reuse_ppm=max(own.fork_min_reuse_ppm, theirs.fork_min_reuse_ppm),
        resume_min_reuse_ppm=max(own.resume_min_reuse_ppm, theirs.resume_min_reuse_ppm),
        never_seen_max_reused_tokens=min(own.never_seen_max_reused_tokens, theirs.never_seen_max_reused_tokens),
        exact_repeat_max_computed_tokens=min(
            own.exact_repeat_max_computed_tokens, theirs.exact_repeat_max_computed_tokens),
        max_fork_to_cold_ppm=_least(own.max_fork_to_cold_ppm, theirs.max_fork_to_cold_ppm),
        max_slowest_fork_to_cold_ppm=_least(own.max_slowest_fork_to_cold_ppm, theirs.max_slowest_fork_to_cold_ppm),
        max_median_plan_error_ppm=_least(own.max_median_plan_error_ppm, theirs.max_median_plan_error_ppm),
        max_miss_bound_ppm=_least(policy.max_miss_bound_ppm, _least(own.max_miss_bound_ppm, theirs.max_miss_bound_ppm)),
        max_unaccounted_prefill_tokens=min(own.max_unaccounted_prefill_tokens, theirs.max_unaccounted_prefill_tokens),
        require_work_accounted=own.require_work_accounted or theirs.require_work_accounted,
    )


def plan_shortfalls(policy: ReleasePolicy, ran: QualificationPolicy) -> list[str]:
    """What the run's plan did not even try that the policy asks for."""
    plan = ran.plan
    faults = [f"no template of {size} tokens was probed" for size in policy.sizes if size not in plan.template_tokens]
    if len(plan.template_tokens) < policy.min_sizes:
        faults.append(f"{len(plan.template_tokens)} template sizes were probed, {policy.min_sizes} are asked for")
    if plan.epochs < policy.epochs:
        faults.append(f"{plan.epochs} lives of the engine were probed, {policy.epochs} are asked for")
    if plan.forks < policy.forks:
        faults.append(f"{plan.forks} forks a template were made, {policy.forks} are asked for")
    return faults


def verdict_shortfalls(policy: ReleasePolicy, verdict: Verdict) -> list[str]:
    """What of the verdict, computed under the policy's thresholds, does not let the release pass."""
    checks = (*verdict.checks, *verdict.controls)
    trials = sum(check.trials for check in checks if check.name is CheckName.FORK_HITS)
    made = {check.name for check in checks}
    faults = [f"there is no check {name}" for name in policy.required_checks if name not in made]
    if trials < policy.min_trials:
        faults.append(f"{trials} forks were sampled, {policy.min_trials} are asked for")
    return faults + [f"{check.title} is {check.result}: {check.reason}" for check in verdict.not_passed]


def is_allowed(policy: ReleasePolicy, limitation: str) -> bool:
    """Whether a receipt may state this limitation."""
    return any(limitation == allowed or (allowed.endswith("*") and limitation.startswith(allowed[:-1]))
               for allowed in policy.allowed_limitations)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
