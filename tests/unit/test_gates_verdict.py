"""Verdicts over evidence: an honest run passes, and each way to spoil it does what the gates promise."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from receipt_cases import PLAN, honest_evidence, is_fork, spoil

from ninfer_lifecycle.evidence import RequestEvidence, Step, StepEvidence
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, Thresholds
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result, Unit, Verdict

LIMITS = Thresholds()


def judged(evidence: Evidence, limits: Thresholds = LIMITS, plan: PlanSummary = PLAN) -> Verdict:
    return evaluate(plan, limits, evidence)


def failing(verdict: Verdict) -> set[tuple[CheckName, Result]]:
    return {(check.name, check.result) for check in verdict.not_passed}


def of_step(step: Step) -> Callable[[RequestEvidence], bool]:
    return lambda record: record.step is step


def test_an_honest_run_passes_every_check_and_control() -> None:
    verdict = judged(honest_evidence())
    assert verdict.result is Result.PASSED
    assert not verdict.not_passed
    assert {check.name for check in verdict.controls} == {CheckName.CONTROL_NEVER_SEEN, CheckName.CONTROL_EXACT_REPEAT}
    hits = [check for check in verdict.checks if check.name is CheckName.FORK_HITS]
    assert sorted((check.template_tokens, check.epoch, check.trials) for check in hits) == [
        (480, 0, 4), (480, 1, 4), (1000, 0, 4), (1000, 1, 4)]


@pytest.mark.parametrize("reused", [0, 64, 999])
def test_one_fork_that_stops_short_of_its_template_fails_the_run(reused: int) -> None:
    change = {"reused_tokens": reused, "cached_tokens": reused, "computed_tokens": 1058 - reused,
              "counter_computed_tokens": 1058 - reused}
    verdict = judged(spoil(honest_evidence(), is_fork(1000, 0, 2), **change))
    assert verdict.result is Result.FAILED
    assert failing(verdict) == {(CheckName.FORK_HITS, Result.FAILED)}
    assert verdict.not_passed[0].observed == reused
    assert verdict.not_passed[0].misses == 1


def test_a_fork_that_reuses_exactly_its_template_is_a_hit() -> None:
    change = {"reused_tokens": 1000, "cached_tokens": 1000, "computed_tokens": 58, "counter_computed_tokens": 58}
    assert judged(spoil(honest_evidence(), is_fork(1000, 0, 2), **change)).result is Result.PASSED


def test_a_cold_first_sibling_after_the_restart_fails_by_name() -> None:
    change = {"reused_tokens": 0, "cached_tokens": 0, "computed_tokens": 538, "counter_computed_tokens": 538}
    verdict = judged(spoil(honest_evidence(), is_fork(480, 1, 0), **change))
    assert failing(verdict) == {(CheckName.FORK_HITS, Result.FAILED), (CheckName.FIRST_SIBLING_HOT, Result.FAILED)}
    assert all(check.epoch == 1 for check in verdict.not_passed)


def test_cached_tokens_that_are_not_reported_are_no_hit_and_no_pass() -> None:
    verdict = judged(spoil(honest_evidence(), is_fork(1000, 0, 1), cached_tokens=None))
    assert verdict.result is Result.INCONCLUSIVE
    check = next(item for item in verdict.not_passed if item.name is CheckName.FORK_HITS)
    assert (check.trials, check.misses, check.unreported) == (3, 0, 1)


def test_a_failed_request_is_no_sample_and_leaves_the_run_inconclusive() -> None:
    verdict = judged(spoil(honest_evidence(), is_fork(1000, 0, 3), http_status=503, error="engine_unavailable"))
    check = next(item for item in verdict.not_passed if item.name is CheckName.FORK_HITS)
    assert verdict.result is Result.INCONCLUSIVE
    assert (check.trials, check.failed, check.result) == (3, 1, Result.INCONCLUSIVE)


@pytest.mark.parametrize("change", [
    {"reused_tokens": 1018, "cached_tokens": 1018, "computed_tokens": 41},
    {"reused_tokens": 1017},
    {"cached_tokens": 1017},
    {"reused_tokens": 1060, "cached_tokens": 1060, "computed_tokens": -2},
    {"witness_conflict": "the reply carries another request id"},
])
def test_figures_that_do_not_add_up_fail_the_accounting(change: dict[str, Any]) -> None:
    verdict = judged(spoil(honest_evidence(), is_fork(1000, 0, 1), **change))
    assert verdict.result is Result.FAILED
    assert (CheckName.ACCOUNTING, Result.FAILED) in failing(verdict)


def test_a_hit_that_the_work_counter_contradicts_fails() -> None:
    verdict = judged(spoil(honest_evidence(), is_fork(1000, 0, 1), counter_computed_tokens=1058))
    assert failing(verdict) == {(CheckName.WORK_ACCOUNTED, Result.FAILED)}


def test_a_never_seen_template_that_hits_fails_the_run() -> None:
    change = {"reused_tokens": 512, "cached_tokens": 512, "computed_tokens": 198, "counter_computed_tokens": 198}
    verdict = judged(spoil(honest_evidence(), of_step(Step.CONTROL_NEVER_SEEN), **change))
    assert failing(verdict) == {(CheckName.CONTROL_NEVER_SEEN, Result.FAILED)}
    assert verdict.result is Result.FAILED


@pytest.mark.parametrize("reused", [710, 600, 0])
def test_an_exact_repeat_that_computes_nothing_or_too_much_fails_the_run(reused: int) -> None:
    change = {"reused_tokens": reused, "cached_tokens": reused, "computed_tokens": 710 - reused,
              "counter_computed_tokens": 710 - reused}
    verdict = judged(spoil(honest_evidence(), of_step(Step.CONTROL_EXACT_REPEAT), **change))
    assert failing(verdict) == {(CheckName.CONTROL_EXACT_REPEAT, Result.FAILED)}


@pytest.mark.parametrize("step", [Step.CONTROL_NEVER_SEEN, Step.CONTROL_EXACT_REPEAT, Step.RESUME])
def test_what_was_left_out_is_inconclusive_never_passed(step: Step) -> None:
    evidence = honest_evidence()
    verdict = judged(dataclasses.replace(
        evidence, requests=tuple(record for record in evidence.requests if record.step is not step)))
    assert verdict.result is Result.INCONCLUSIVE


def test_an_empty_run_is_inconclusive() -> None:
    assert judged(Evidence(())).result is Result.INCONCLUSIVE


@pytest.mark.parametrize(("change", "result"), [
    ({"prefill_counter_before": 9000}, Result.FAILED),
    ({"prefill_counter_before": 9001}, Result.FAILED),
    ({"server_instance_id": "instance-0"}, Result.FAILED),
    ({"identity_sha256": "cd" * 32}, Result.FAILED),
    ({"prefill_counter_before": None}, Result.INCONCLUSIVE),
])
def test_a_restart_counts_only_when_it_shows(change: dict[str, Any], result: Result) -> None:
    evidence = honest_evidence()
    spoiled = evidence.epochs[1].model_copy(update=change)
    verdict = judged(dataclasses.replace(evidence, epochs=(evidence.epochs[0], spoiled)))
    assert (CheckName.RESTART_PROVED, result) in failing(verdict)


def test_an_answer_of_the_old_process_after_the_restart_fails() -> None:
    verdict = judged(spoil(honest_evidence(), is_fork(480, 1, 3), server_instance_id="instance-0"))
    assert failing(verdict) == {(CheckName.RESTART_PROVED, Result.FAILED)}


@pytest.mark.parametrize(("change", "result"), [
    ({"http_status": 409}, Result.FAILED), ({"generation": None}, Result.INCONCLUSIVE)])
def test_a_refused_save_fails_and_one_without_a_generation_is_inconclusive(
    change: dict[str, Any], result: Result
) -> None:
    evidence = honest_evidence()
    spoiled = (evidence.saves[0].model_copy(update=change), *evidence.saves[1:])
    assert failing(judged(dataclasses.replace(evidence, saves=spoiled))) == {(CheckName.SAVES_COMPLETE, result)}


def test_a_missing_save_is_inconclusive() -> None:
    evidence = honest_evidence()
    verdict = judged(dataclasses.replace(evidence, saves=evidence.saves[1:]))
    assert failing(verdict) == {(CheckName.SAVES_COMPLETE, Result.INCONCLUSIVE)}


def test_an_oom_kill_fails_and_a_host_that_cannot_tell_makes_no_check() -> None:
    evidence = honest_evidence()
    killed = tuple(record.model_copy(update={"oom_killed": record.epoch == 1}) for record in evidence.epochs)
    assert failing(judged(dataclasses.replace(evidence, epochs=killed))) == {(CheckName.NOT_OOM_KILLED, Result.FAILED)}
    silent = tuple(record.model_copy(update={"oom_killed": None}) for record in evidence.epochs)
    verdict = judged(dataclasses.replace(evidence, epochs=silent))
    assert CheckName.NOT_OOM_KILLED not in {check.name for check in verdict.checks}


def test_a_skipped_step_is_inconclusive() -> None:
    step = StepEvidence(epoch=0, order=1, name="forks", outcome="skipped", detail="no time", wall_us=1, prober_us=1)
    verdict = judged(dataclasses.replace(honest_evidence(), steps=(step,)))
    assert failing(verdict) == {(CheckName.STEPS_DONE, Result.INCONCLUSIVE)}


@pytest.mark.parametrize("change", [
    {"parent_response_id": "resp_of_someone_else"}, {"parent_response_id": None}, {"sibling": 0}, {"epoch": 7},
    {"template_tokens": 999},
])
def test_a_fork_that_is_not_of_the_plan_is_never_passed(change: dict[str, Any]) -> None:
    verdict = judged(spoil(honest_evidence(), is_fork(1000, 0, 1), **change))
    assert verdict.result is not Result.PASSED
    assert (CheckName.EVIDENCE_MATCHES_PLAN, Result.INCONCLUSIVE) in failing(verdict)


def test_one_request_counted_twice_is_not_two() -> None:
    evidence = honest_evidence()
    doubled = dataclasses.replace(evidence, requests=(*evidence.requests, evidence.requests[0]))
    assert (CheckName.EVIDENCE_MATCHES_PLAN, Result.INCONCLUSIVE) in failing(judged(doubled))


def test_siblings_are_one_cluster_and_the_bound_is_of_clusters() -> None:
    verdict = judged(honest_evidence(), Thresholds(max_miss_bound_ppm=500_000))
    check = next(item for item in verdict.checks if item.name is CheckName.MISS_BOUND)
    # Two templates in two epochs: 4 clusters of 4 siblings; 1 - 0.05^(1/4) = 52.71292%, over the 50% asked for.
    assert (check.trials, check.clusters, check.bound_ppm) == (16, 4, 527_130)
    assert check.result is Result.INCONCLUSIVE
    wide = judged(honest_evidence(), Thresholds(max_miss_bound_ppm=530_000))
    assert wide.result is Result.PASSED


def test_a_slow_fork_is_seen_even_where_the_median_is_fast() -> None:
    # Bases take 121,000 us at 1000 tokens, honest forks 24,000 us: a fifth.
    limits = Thresholds(max_fork_to_cold_ppm=300_000, max_slowest_fork_to_cold_ppm=500_000)
    assert judged(honest_evidence(PlanSummary(template_tokens=(1000,), epochs=2, forks=4, saves=2)), limits,
                  PlanSummary(template_tokens=(1000,), epochs=2, forks=4, saves=2)).result is Result.PASSED
    slow = spoil(honest_evidence(), is_fork(1000, 0, 2), wall_us=121_000)
    names = failing(judged(slow, Thresholds(max_slowest_fork_to_cold_ppm=500_000)))
    assert names == {(CheckName.SLOWEST_FORK_TO_COLD, Result.FAILED)}


def test_a_base_that_was_not_cold_is_no_cold_wall() -> None:
    warm = spoil(honest_evidence(), lambda r: r.step is Step.BASE and r.template_tokens == 1000, reused_tokens=900,
                 cached_tokens=900, computed_tokens=110, counter_computed_tokens=110)
    names = failing(judged(warm, Thresholds(max_fork_to_cold_ppm=900_000)))
    assert names == {(CheckName.FORK_TO_COLD, Result.INCONCLUSIVE)}


def test_predictions_that_are_far_off_fail_where_a_policy_limits_them() -> None:
    limits = Thresholds(max_median_plan_error_ppm=100_000)
    assert judged(honest_evidence(), limits).result is Result.PASSED
    off = honest_evidence()
    off = dataclasses.replace(off, requests=tuple(
        record.model_copy(update={"predicted_now_us": 10 * (record.predicted_now_us or 0)}) for record in off.requests))
    assert failing(judged(off, limits)) == {(CheckName.PLAN_ERROR, Result.FAILED)}


@given(st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_evidence_changes_no_result(shuffle: random.Random) -> None:
    evidence = spoil(honest_evidence(), is_fork(480, 0, 1), cached_tokens=7, reused_tokens=7, computed_tokens=531)
    requests = list(evidence.requests)
    shuffle.shuffle(requests)
    mixed = judged(dataclasses.replace(evidence, requests=tuple(requests)))
    told = [(check.name, check.template_tokens, check.epoch, check.result, check.trials, check.misses, check.observed)
            for check in (*mixed.checks, *mixed.controls)]
    plain = judged(evidence)
    assert told == [
        (check.name, check.template_tokens, check.epoch, check.result, check.trials, check.misses, check.observed)
        for check in (*plain.checks, *plain.controls)]


FIELDS = ["reused_tokens", "cached_tokens", "computed_tokens", "prompt_tokens", "http_status",
          "counter_computed_tokens"]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_figure_of_any_request_can_be_lowered_into_a_pass(data: st.DataObject) -> None:
    """Whatever one figure of one request becomes, a pass needs it to be one that the claims allow."""
    evidence = honest_evidence()
    picked = data.draw(st.sampled_from(evidence.requests))
    field = data.draw(st.sampled_from(FIELDS))
    value = data.draw(st.one_of(st.none(), st.integers(-5, 2000)))
    verdict = judged(spoil(evidence, lambda record: record is picked, **{field: value}))
    before = getattr(picked, field)
    if value == before or (field == "http_status" and value is not None and 200 <= value < 300):
        return
    if field == "counter_computed_tokens" and value is not None and abs(value - before) <= max(64, before // 20):
        return
    assert verdict.result is not Result.PASSED


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_run_that_lacks_any_planned_request_never_passes(data: st.DataObject) -> None:
    evidence = honest_evidence()
    gone = data.draw(st.sampled_from(evidence.requests))
    rest = tuple(record for record in evidence.requests if record is not gone)
    assert judged(dataclasses.replace(evidence, requests=rest)).result is not Result.PASSED


def test_a_check_cannot_be_passed_with_a_miss_or_without_a_trial() -> None:
    honest: dict[str, Any] = {"name": CheckName.FORK_HITS, "trials": 1, "misses": 0, "unreported": 0, "failed": 0,
                              "unit": Unit.COUNT, "threshold": 0, "result": Result.PASSED, "evidence": ()}
    Check(**honest)
    for change in ({"misses": 1}, {"unreported": 1}, {"failed": 1}, {"trials": 0}, {"reason": "well"},
                   {"result": Result.FAILED}):
        with pytest.raises(ValidationError):
            Check(**(honest | change))


@pytest.mark.parametrize("sizes", [(), (5, 5), (0,)])
def test_a_plan_has_distinct_positive_sizes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        PlanSummary(template_tokens=sizes, epochs=1, forks=1)
