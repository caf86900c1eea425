"""Checks of walls and predictions, where a policy sets a limit for them."""

from collections.abc import Callable, Sequence

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.base import PPM
from ninfer_lifecycle.gates.stats import median
from ninfer_lifecycle.gates.tally import Evidence, Judgement, Place, is_failed, reported_reuse, settle, tally
from ninfer_lifecycle.gates.thresholds import PlanSummary, Thresholds
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result, Unit


def fork_wall_checks(plan: PlanSummary, limits: Thresholds, evidence: Evidence) -> list[Check]:
    """fork_to_cold and slowest_fork_to_cold of every template in every epoch."""
    wanted: list[tuple[CheckName, int | None, Callable[[Sequence[int]], int]]] = [
        (CheckName.FORK_TO_COLD, limits.max_fork_to_cold_ppm, median),
        (CheckName.SLOWEST_FORK_TO_COLD, limits.max_slowest_fork_to_cold_ppm, max),
    ]
    checks = []
    for tokens in plan.template_tokens:
        cold = cold_walls(evidence, tokens, limits)
        for epoch in range(plan.epochs):
            forks = fork_walls(evidence, tokens, epoch)
            ids = [record.request_id for record in evidence.of(Step.FORK, tokens, epoch)]
            for name, limit, pick in wanted:
                if limit is not None:
                    ratio = -(-pick(forks) * PPM // median(cold)) if forks and cold else None
                    checks.append(_timed(name, Place(tokens, epoch), ids=ids, samples=len(forks), observed=ratio,
                                         limit=limit))
    return checks


def plan_error_check(limits: Thresholds, evidence: Evidence) -> list[Check]:
    """Median error of the predicted time to the first token, over forks and resumes."""
    limit = limits.max_median_plan_error_ppm
    if limit is None:
        return []
    records = [*evidence.of(Step.FORK), *evidence.of(Step.RESUME)]
    errors = [
        -(-abs(record.predicted_now_us - record.engine_ttft_us) * PPM // record.engine_ttft_us)
        for record in records
        if not is_failed(record) and record.predicted_now_us is not None and record.engine_ttft_us
    ]
    ids = [record.request_id for record in records]
    observed = median(errors) if errors else None
    return [_timed(CheckName.PLAN_ERROR, Place(), ids=ids, samples=len(errors), observed=observed, limit=limit)]


def slow_anchor_check(plan: PlanSummary, limits: Thresholds, evidence: Evidence) -> list[Check]:
    """A fork that hits and then waits long for its anchor to reach the device was no cheap fork."""
    limit = limits.max_hit_restore_us
    if limit is None or not plan.template_tokens:
        return []
    records = [record for record in evidence.of(Step.FORK) if record.epoch == 0 or record.sibling != 0]
    counted = tally(records, lambda record: Judgement(None) if record.restore_us is None
                    else Judgement(record.restore_us <= limit, record.restore_us))
    return [settle(CheckName.SLOW_ANCHOR, Place(), counted, expected=1, unit=Unit.MICROSECONDS, threshold=limit,
                   observed=max(counted.observed, default=None))]


def cold_walls(evidence: Evidence, template_tokens: int, limits: Thresholds) -> list[int]:
    """Walls of bases that really were cold: a base that reused something is no cold run."""
    return [wall for record in evidence.of(Step.BASE, template_tokens)
            if (wall := _wall(record)) and (reused := reported_reuse(record)) is not None
            and reused <= limits.never_seen_max_reused_tokens]


def fork_walls(evidence: Evidence, template_tokens: int, epoch: int) -> list[int]:
    """Walls of the answered forks of one template in one epoch."""
    return [wall for record in evidence.of(Step.FORK, template_tokens, epoch) if (wall := _wall(record))]


def _wall(record: RequestEvidence) -> int | None:
    return None if is_failed(record) else record.wall_us


def _timed(
    name: CheckName, place: Place, *, ids: Sequence[str], samples: int, observed: int | None, limit: int
) -> Check:
    result, reason = Result.PASSED, None
    if observed is None:
        result, reason = Result.INCONCLUSIVE, "there is nothing to compare: no timed sample on one of the two sides"
    elif observed > limit:
        result, reason = Result.FAILED, f"{observed} ppm is over the limit of {limit} ppm"
    return Check(
        name=name, template_tokens=place.template_tokens, epoch=place.epoch, trials=samples,
        misses=int(result is Result.FAILED), unreported=int(observed is None), failed=0, unit=Unit.PPM,
        threshold=limit, observed=observed, result=result, reason=reason, evidence=tuple(ids),
    )
