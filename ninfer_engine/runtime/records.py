"""What is told of a finished request: the `ninfer` record and the request log's view of the same facts."""

from typing import assert_never

from ninfer_engine.context.types import Plan
from ninfer_engine.contract.diagnostics import (
    EvictedItem,
    LogMaterialization,
    LogResult,
    LogTimings,
    MissDetail,
    MissReason,
    NinferRecord,
    PlanRecord,
    ReusePath,
    Timings,
)
from ninfer_engine.runtime.api import Finished, FinishReason
from ninfer_engine.runtime.sequence import Clock, Sequence


def finished_event(sequence: Sequence, reason: FinishReason) -> Finished:
    """The last event of a sequence that was admitted or at least planned for; its clock says what it took."""
    plan = sequence.plan
    timings = _timings(sequence.clock, sequence.request.restored_s)
    miss = MissReason(plan.miss.kind.value) if plan and plan.miss else None
    path = ReusePath(plan.resume.path.value) if plan else ReusePath.ROOT
    record = NinferRecord(
        request_id=sequence.request.request_id,
        path=path,
        frontier_tokens=sequence.frontier,
        reused_tokens=sequence.frontier,
        computed_tokens=sequence.prompt_tokens - sequence.frontier,
        miss_reason=miss,
        miss_detail=_miss_detail(plan),
        timings=timings,
        plan=_plan_record(sequence),
    )
    return Finished(
        reason=reason,
        record=record,
        log_result=LogResult(
            finish_reason=_log_reason(reason), prompt_tokens=sequence.prompt_tokens,
            completion_tokens=len(sequence.output), computed_prefill_tokens=record.computed_tokens,
            prefix_cache_hit_tokens=record.reused_tokens, prefix_reuse_path=path, miss_reason=miss,
        ),
        log_timings=LogTimings(
            prepare=0.0, queue=timings.queue_s, plan=timings.plan_s, restore=timings.restore_s, ttft=timings.ttft_s,
            prefill=timings.prefill_s, decode=timings.decode_s, total=timings.total_s,
        ),
        log_materialization=_materialization(record.plan, timings.plan_s),
        output_tokens=tuple(sequence.output),
    )


def _timings(clock: Clock, restored_s: float) -> Timings:
    """Seconds between the instants of a clock; a stage that was not reached took none."""
    end = clock.finished if clock.finished is not None else clock.arrived
    admitted = clock.admitted if clock.admitted is not None else end
    started = admitted + clock.plan_s + clock.restore_s
    prefilled = clock.prefilled if clock.prefilled is not None else end
    first = clock.first_token if clock.first_token is not None else end
    return Timings(
        queue_s=admitted - clock.arrived - restored_s,
        plan_s=clock.plan_s,
        restore_s=clock.restore_s + restored_s,
        prefill_s=max(0.0, prefilled - started),
        ttft_s=first - clock.arrived,
        decode_s=max(0.0, end - prefilled),
        total_s=end - clock.arrived,
    )


def _miss_detail(plan: Plan | None) -> MissDetail | None:
    if plan is None or plan.miss is None:
        return None
    miss = plan.miss
    return MissDetail(token=miss.token, evicted_for=miss.evicted_for, age_s=miss.age_s,
                      predicted_loss_ns=miss.predicted_loss_ns)


def _plan_record(sequence: Sequence) -> PlanRecord:
    """The admission plan, with what publishing this sequence's images made way for."""
    plan = sequence.plan
    if plan is None:
        return PlanRecord()
    loss = plan.predicted_future_loss_ns + sum(item.predicted_loss_ns for item in sequence.evictions)
    evicted = [*plan.evicted, *sequence.evictions]
    return PlanRecord(
        predicted_now_ns=plan.predicted_now_ns,
        predicted_future_loss_ns=loss,
        predicted_total_ns=plan.predicted_now_ns + loss,
        candidates=plan.candidates,
        evaluated=plan.evaluated,
        optimal=plan.optimal,
        stop_reason=plan.stop_reason,
        evicted=tuple(EvictedItem(kind=item.kind, frontier_tokens=item.frontier,
                                  predicted_loss_ns=item.predicted_loss_ns) for item in evicted),
        demoted=sequence.demoted,
    )


def _materialization(plan: PlanRecord, plan_s: float) -> LogMaterialization:
    return LogMaterialization(
        predicted_now_ns=plan.predicted_now_ns, predicted_future_loss_ns=plan.predicted_future_loss_ns,
        predicted_total_ns=plan.predicted_total_ns, targets_evaluated=plan.evaluated,
        planning_elapsed_ns=int(plan_s * 1e9), stop_reason=plan.stop_reason, model_optimal=plan.optimal,
    )


def _log_reason(reason: FinishReason) -> str:
    match reason:
        case "stop" | "length" | "cancelled":
            return reason
        case _:
            assert_never(reason)
