"""Checks of reuse: forks, first siblings, resumes, and the controls that show that the instrument can tell."""

from collections.abc import Callable

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.tally import Evidence, Judgement, Place, reported_reuse, settle, share_of, tally
from ninfer_lifecycle.gates.thresholds import PlanSummary, Thresholds
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result, Unit


def fork_checks(plan: PlanSummary, limits: Thresholds, evidence: Evidence) -> list[Check]:
    """fork_hits and first_sibling_hot of every template in every epoch."""
    checks = []
    for tokens in plan.template_tokens:
        for epoch in range(plan.epochs):
            forks = evidence.of(Step.FORK, tokens, epoch)
            first = [record for record in forks if record.sibling == 0]
            place, needed = Place(tokens, epoch), share_of(tokens, limits.fork_min_reuse_ppm)
            checks.append(_reuse(CheckName.FORK_HITS, place, forks, plan.forks * plan.repeats, needed))
            checks.append(_reuse(CheckName.FIRST_SIBLING_HOT, place, first, plan.repeats, needed))
    return checks


def resume_checks(plan: PlanSummary, limits: Thresholds, evidence: Evidence) -> list[Check]:
    """resume_hits of every template in every epoch after a restart."""
    if not plan.resumes:
        return []
    return [
        _reuse(
            CheckName.RESUME_HITS, Place(tokens, epoch), evidence.of(Step.RESUME, tokens, epoch),
            plan.resumes * plan.repeats, share_of(tokens, limits.resume_min_reuse_ppm),
        )
        for tokens in plan.template_tokens
        for epoch in range(1, plan.epochs)
    ]


def miss_bound_check(limits: Thresholds, evidence: Evidence) -> list[Check]:
    """The bound over all clusters of forks, where a policy asks for one. Too few clusters are inconclusive."""
    if limits.max_miss_bound_ppm is None:
        return []
    counted = tally(evidence.of(Step.FORK), lambda record: _judge_fork(record, limits))
    check = settle(CheckName.MISS_BOUND, Place(), counted, expected=1, unit=Unit.PPM,
                   threshold=limits.max_miss_bound_ppm, observed=None)
    check = check.model_copy(update={"observed": check.bound_ppm})
    if check.result is Result.PASSED and (check.bound_ppm or 0) > limits.max_miss_bound_ppm:
        reason = f"{check.clusters} clusters bound the miss rate at {check.bound_ppm} ppm only"
        return [check.model_copy(update={"result": Result.INCONCLUSIVE, "reason": reason})]
    return [check]


def control_checks(plan: PlanSummary, limits: Thresholds, evidence: Evidence) -> list[Check]:
    """A never-seen template must miss and an exact repeat must hit: else reuse figures of this run mean nothing."""
    never = tally(
        evidence.of(Step.CONTROL_NEVER_SEEN),
        _judged(lambda record, reused: reused <= limits.never_seen_max_reused_tokens, lambda record, reused: reused),
    )
    repeat = tally(evidence.of(Step.CONTROL_EXACT_REPEAT), lambda record: _judge_repeat(record, limits))
    if not plan.controls_never_seen and not plan.controls_exact_repeat:
        return []
    return [
        settle(CheckName.CONTROL_NEVER_SEEN, Place(), never, expected=plan.controls_never_seen, unit=Unit.TOKENS,
               threshold=limits.never_seen_max_reused_tokens, observed=max(never.observed, default=None)),
        settle(CheckName.CONTROL_EXACT_REPEAT, Place(), repeat, expected=plan.controls_exact_repeat, unit=Unit.TOKENS,
               threshold=limits.exact_repeat_max_computed_tokens, observed=max(repeat.observed, default=None)),
    ]


def _reuse(name: CheckName, place: Place, records: list[RequestEvidence], expected: int, needed: int) -> Check:
    counted = tally(records, _judged(lambda record, reused: reused >= needed, lambda record, reused: reused))
    return settle(name, place, counted, expected=expected, unit=Unit.TOKENS, threshold=needed,
                  observed=min(counted.observed, default=None))


def _judge_fork(record: RequestEvidence, limits: Thresholds) -> Judgement:
    reused = reported_reuse(record)
    if reused is None:
        return Judgement(None)
    return Judgement(reused >= share_of(record.template_tokens, limits.fork_min_reuse_ppm), reused)


def _judge_repeat(record: RequestEvidence, limits: Thresholds) -> Judgement:
    """A repeat of n tokens reuses at most n - 1: the last one must be computed to answer at all."""
    reused = reported_reuse(record)
    if reused is None or record.prompt_tokens is None:
        return Judgement(None)
    computed = record.prompt_tokens - reused
    return Judgement(1 <= computed <= limits.exact_repeat_max_computed_tokens, computed)


def _judged(
    hit: Callable[[RequestEvidence, int], bool], figure: Callable[[RequestEvidence, int], int]
) -> Callable[[RequestEvidence], Judgement]:
    def judge(record: RequestEvidence) -> Judgement:
        reused = reported_reuse(record)
        return Judgement(None) if reused is None else Judgement(hit(record, reused), figure(record, reused))

    return judge
