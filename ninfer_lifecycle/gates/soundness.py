"""Checks of the run itself: is the evidence what the plan asked for, did the engine restart, do figures add up."""

from collections import Counter

from ninfer_lifecycle.evidence import EpochEvidence, RequestEvidence, SaveEvidence, Step
from ninfer_lifecycle.gates.base import PPM
from ninfer_lifecycle.gates.tally import Evidence, Place, is_failed, simple
from ninfer_lifecycle.gates.thresholds import PlanSummary, Thresholds
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result, Unit


def plan_check(plan: PlanSummary, evidence: Evidence) -> Check:
    """Every record belongs to the plan, once: no doubled ids, no unplanned sizes, no fork of anything but a base."""
    gaps = [f"request id {name} stands {count} times"
            for name, count in Counter(record.request_id for record in evidence.requests).items() if count > 1]
    gaps += [f"epoch {epoch} stands {count} times"
             for epoch, count in Counter(record.epoch for record in evidence.epochs).items() if count > 1]
    bases = {(record.response_id, record.template_tokens) for record in evidence.of(Step.BASE)
             if record.response_id and not is_failed(record)}
    siblings: Counter[tuple[str | None, int, int | None]] = Counter()
    lives = _lives(plan, evidence)
    for record in evidence.requests:
        if not 0 <= record.epoch < lives:
            gaps.append(f"{record.request_id} is of epoch {record.epoch}, which the plan does not have")
        if record.step not in _ANY_SIZE and record.template_tokens not in plan.template_tokens:
            gaps.append(f"{record.request_id} stands on {record.template_tokens} tokens, which the plan does not have")
        if record.step is Step.FORK and not is_failed(record):
            siblings[record.parent_response_id, record.epoch, record.sibling] += 1
            if (record.parent_response_id, record.template_tokens) not in bases:
                gaps.append(f"{record.request_id} does not continue a base of its template")
    instances = {record.epoch: record.server_instance_id for record in evidence.epochs}
    gaps += [f"the pools of epoch {sample.epoch} after {sample.order} are of another life of the engine"
             for sample in evidence.pools if instances.get(sample.epoch) != sample.server_instance_id]
    gaps += [f"sibling {place[2]} of {place[0]} stands {count} times in epoch {place[1]}"
             for place, count in siblings.items() if count > 1]
    return simple(CheckName.EVIDENCE_MATCHES_PLAN, Place(), ids=(), misses=(), gaps=gaps, trials=len(evidence.requests))


_ANY_SIZE = (Step.CONTROL_NEVER_SEEN, Step.CONTROL_EXACT_REPEAT, Step.OTHER)


def _lives(plan: PlanSummary, evidence: Evidence) -> int:
    """Lives of the engine that the evidence may span: the plan's, and one more for each time a run was taken up again.

    An interruption adds a life, and with it a restart to prove; it takes nothing away from what the plan asks for.
    """
    return plan.epochs + plan.later_epochs + sum(record.interrupted is True for record in evidence.epochs)


def restart_checks(plan: PlanSummary, evidence: Evidence) -> list[Check]:
    """restart_proved of every epoch but the first: the work counter fell, another process, the same identity.

    Having asked for a restart proves nothing. Also that the replies of an epoch came from its process.
    """
    epochs = {record.epoch: record for record in evidence.epochs}
    checks = []
    for number in range(1, _lives(plan, evidence)):
        before, after = epochs.get(number - 1), epochs.get(number)
        ids = [f"epoch/{number - 1}", f"epoch/{number}"]
        if before is None or after is None:
            checks.append(simple(CheckName.RESTART_PROVED, Place(epoch=number), ids=ids, misses=(),
                                 gaps=["an epoch is missing"], trials=0))
            continue
        misses = _restart_faults(before, after)
        misses += [f"{record.request_id} was answered by another process" for record in evidence.own
                   if record.epoch == number and record.server_instance_id not in (None, after.server_instance_id)]
        gaps = ["the work counter was not read on both sides"] if _unread(before, after) else []
        checks.append(simple(CheckName.RESTART_PROVED, Place(epoch=number), ids=ids, misses=misses, gaps=gaps,
                             trials=1))
    return checks


def _unread(before: EpochEvidence, after: EpochEvidence) -> bool:
    return before.prefill_counter_after is None or after.prefill_counter_before is None


def _restart_faults(before: EpochEvidence, after: EpochEvidence) -> list[str]:
    faults = []
    last, first = before.prefill_counter_after, after.prefill_counter_before
    if last is not None and first is not None and first >= last:
        faults.append(f"the work counter went from {last} to {first}: it did not fall")
    if before.server_instance_id == after.server_instance_id:
        faults.append(f"the process is still {after.server_instance_id}")
    if before.identity_sha256 != after.identity_sha256:
        faults.append("another identity answers after the restart")
    return faults


def save_checks(plan: PlanSummary, evidence: Evidence) -> list[Check]:
    """saves_complete of every template: as many as planned, each accepted with its generation, and whole."""
    if not plan.saves:
        return []
    checks = []
    for tokens in plan.template_tokens:
        saves = [save for save in evidence.saves if save.template_tokens == tokens]
        misses = [f"{_save_id(save)} answered {save.http_status}"
                  for save in saves if not 200 <= save.http_status < 300]
        misses += [f"{_save_id(save)} holds {save.response_records} of {save.expected_records} stored responses"
                   for save in saves if _incomplete(save)]
        gaps = [f"{_save_id(save)} names no generation" for save in saves
                if 200 <= save.http_status < 300 and save.generation is None]
        if len(saves) < plan.saves * plan.repeats:
            gaps.append(f"{len(saves)} of {plan.saves * plan.repeats} planned saves were made")
        ids = [_save_id(save) for save in saves]
        checks.append(simple(CheckName.SAVES_COMPLETE, Place(tokens), ids=ids, misses=misses, gaps=gaps,
                             trials=len(saves)))
    return checks


def _incomplete(save: SaveEvidence) -> bool:
    """Whether the store said that it holds fewer responses than the prober was told are stored."""
    if save.response_records is None or save.expected_records is None:
        return False
    return save.response_records < save.expected_records


def _save_id(save: SaveEvidence) -> str:
    return f"save/{save.template_tokens}/{save.epoch}/{save.order}"


def accounting_check(evidence: Evidence) -> Check:
    """Every answer adds up: reused + computed = prompt, cached = reused, no witness against another."""
    answered = [record for record in evidence.own if not is_failed(record)]
    misses: list[str] = []
    gaps: list[str] = []
    for record in answered:
        prompt, cached = record.prompt_tokens, record.cached_tokens
        reused, computed = record.reused_tokens, record.computed_tokens
        if record.witness_conflict is not None:
            misses.append(f"{record.request_id}: {record.witness_conflict}")
        elif prompt is None or cached is None or reused is None or computed is None:
            gaps.append(f"{record.request_id} does not report its tokens")
        elif min(reused, computed) < 0 or reused + computed != prompt or cached != reused:
            misses.append(f"{record.request_id}: prompt {prompt} is not reused {reused} + computed {computed}, "
                          f"or cached {cached} is not reused")
    ids = [record.request_id for record in answered]
    return simple(CheckName.ACCOUNTING, Place(), ids=ids, misses=misses, gaps=gaps, trials=len(answered))


def work_check(limits: Thresholds, evidence: Evidence) -> list[Check]:
    """What replies say they computed is what the engine's work counter rose by: a reported hit saved real work."""
    if not limits.require_work_accounted:
        return []
    answered = [record for record in evidence.own if not is_failed(record)]
    misses: list[str] = []
    gaps: list[str] = []
    for record in answered:
        claimed, counted = _claimed(record), record.counter_computed_tokens
        if record.step is Step.OTHER and counted is None:
            continue  # it ran beside others: one counter cannot tell them apart
        if claimed is None or counted is None:
            gaps.append(f"{record.request_id} has no reading of the work counter")
        elif abs(counted - claimed) > max(limits.max_unaccounted_prefill_tokens, claimed // 20):
            misses.append(f"{record.request_id} says {claimed} computed tokens, the work counter rose by {counted}")
    ids = [record.request_id for record in answered]
    return [simple(CheckName.WORK_ACCOUNTED, Place(), ids=ids, misses=misses, gaps=gaps, trials=len(answered))]


def _claimed(record: RequestEvidence) -> int | None:
    if record.computed_tokens is not None or record.prompt_tokens is None or record.cached_tokens is None:
        return record.computed_tokens
    return record.prompt_tokens - record.cached_tokens


def oom_check(evidence: Evidence) -> list[Check]:
    """No life of the engine was ended for memory. Only where the host can tell."""
    told = [record for record in evidence.epochs if record.oom_killed is not None]
    if not told:
        return []
    misses = [f"epoch {record.epoch} was killed for memory" for record in told if record.oom_killed]
    ids = [f"epoch/{record.epoch}" for record in told]
    return [simple(CheckName.NOT_OOM_KILLED, Place(), ids=ids, misses=misses, gaps=(), trials=len(told))]


def steps_check(evidence: Evidence) -> list[Check]:
    """Every step of the plan was carried out. A skipped or failed step leaves a gap, whatever its reason."""
    if not evidence.steps:
        return []
    gaps = [f"step {step.name} of epoch {step.epoch} was {step.outcome}: {step.detail or 'no reason given'}"
            for step in evidence.steps if step.outcome != "done"]
    return [simple(CheckName.STEPS_DONE, Place(), ids=(), misses=(), gaps=gaps, trials=len(evidence.steps))]


def overhead_check(limits: Thresholds, evidence: Evidence) -> list[Check]:
    """The prober took no more of the run's time for itself than it may: its own load is not the result."""
    limit, wall = limits.max_prober_ppm, sum(step.wall_us for step in evidence.steps)
    if limit is None:
        return []
    share = -(-sum(step.prober_us for step in evidence.steps) * PPM // wall) if wall else None
    result, reason = Result.PASSED, None
    if share is None:
        result, reason = Result.INCONCLUSIVE, "no step tells how long it took"
    elif share > limit:
        result, reason = Result.FAILED, f"the prober took {share} ppm of the time for itself, allowed are {limit}"
    return [Check(name=CheckName.PROBER_OVERHEAD, trials=len(evidence.steps), misses=int(result is Result.FAILED),
                  unreported=int(share is None), failed=0, unit=Unit.PPM, threshold=limit, observed=share,
                  result=result, reason=reason, evidence=())]
