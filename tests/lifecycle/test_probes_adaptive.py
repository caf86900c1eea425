"""Trials that adapt: on until the bound is met, ended by a miss, inconclusive when the budget is spent first."""

from pathlib import Path

import pytest
from fault_host import FaultHost
from fault_model import Fault
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_bench import probe
from scipy.stats import beta
from test_qualify import Bench

from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.verdict import CheckName, Result
from ninfer_lifecycle.probes.narrowing import clusters_needed
from ninfer_lifecycle.qualify.orchestrate import Qualified, Signing, qualify
from ninfer_lifecycle.qualify.prepare import Wanted

FIFTH = "gates: {maxMissBoundPpm: 200000}\n"


@pytest.fixture(autouse=True)
def _engine_tree_is_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "2" * 64)


def qualified(directory: Path, *faults: Fault, probes: str = "", gates: str = FIFTH, fail_fast: bool = False
              ) -> Qualified:
    bench = Bench(directory, FaultHost(*faults))
    profile = directory / "pretend.yaml"
    profile.write_text(profile.read_text().replace("sizes: [200, 300]}", f"sizes: [200]{probes}}}") + gates)
    return qualify(Wanted(str(profile), directory / "runs", fail_fast=fail_fast),
                   Signing(directory / "receipts", directory / "state"), bench.wiring())


def bound_check(found: Qualified) -> tuple[Result, int | None, int]:
    [check] = [one for one in found.issued.receipt.verdict.checks if one.name is CheckName.MISS_BOUND]
    return check.result, check.clusters, check.misses


def test_trials_go_on_until_the_bound_is_met_and_no_further(tmp_path: Path) -> None:
    found = qualified(tmp_path)
    assert found.result is Result.PASSED
    # 0 misses of n bound the rate at 1 - 0.05 ** (1 / n): 14 clusters for a fifth. Two are the fan-out's own.
    assert bound_check(found) == (Result.PASSED, 14, 0)
    assert len(found.observed.evidence.of(Step.BASE)) == 1 + 12


@pytest.mark.parametrize("budget", [", budgetTokens: 700", ", budgetSeconds: 0"])
def test_a_budget_that_is_spent_first_is_inconclusive(tmp_path: Path, budget: str) -> None:
    found = qualified(tmp_path, probes=budget)
    assert found.result is Result.INCONCLUSIVE
    result, clusters, misses = bound_check(found)
    assert (result, misses) == (Result.INCONCLUSIVE, 0)
    assert clusters is not None and 2 <= clusters < 14
    assert {check.name for check in found.issued.receipt.verdict.not_passed} == {CheckName.MISS_BOUND}


def test_a_miss_ends_the_trials_at_once(tmp_path: Path) -> None:
    found = qualified(tmp_path, Fault.ALTERNATE_ANCHOR_ROOT)
    assert found.result is Result.FAILED
    assert len(found.observed.evidence.of(Step.BASE)) == 1


def test_a_profile_without_a_bound_makes_no_further_trials(tmp_path: Path) -> None:
    found = qualified(tmp_path, gates="")
    assert len(found.observed.evidence.of(Step.BASE)) == 1
    assert not any("bounded" in name for name in found.prepared.planned.schedule.steps)


@settings(deadline=None)  # the bound of many trials is found in exact integers
@given(st.integers(1000, 999_999))
def test_the_clusters_needed_are_the_least_that_bound_the_rate(ppm: int) -> None:
    def bound(trials: int) -> float:
        return float(beta.ppf(0.95, 1, trials))

    least = clusters_needed(ppm)
    assert bound(least) <= ppm / 1e6 + 1e-9
    assert least == 1 or bound(least - 1) > ppm / 1e6 - 1e-9


def test_failing_fast_leaves_out_what_cannot_mend_the_verdict_and_says_why(tmp_path: Path) -> None:
    found = qualified(tmp_path, Fault.ONLY_FIRST_HITS, probes=", parts: [isolation, leaks]", fail_fast=True)
    assert found.result is Result.FAILED
    skipped = [step for step in found.observed.evidence.steps if step.outcome == "skipped"]
    assert {"restart", "first 12 conversations, each deleted"} <= {step.name for step in skipped}
    assert all("has failed for certain" in (step.detail or "") for step in skipped)
    whole = qualified_whole(tmp_path / "whole")
    assert len(found.observed.evidence.requests) < len(whole.observed.evidence.requests) // 3


def qualified_whole(directory: Path) -> Qualified:
    directory.mkdir()
    return qualified(directory, Fault.ONLY_FIRST_HITS, probes=", parts: [isolation, leaks]")


def test_failing_fast_does_not_end_a_run_for_what_more_evidence_may_settle(tmp_path: Path) -> None:
    found = qualified(tmp_path, Fault.OMIT_CACHED_TOKENS, fail_fast=True, gates="")
    assert found.result is Result.INCONCLUSIVE
    assert all(step.outcome == "done" for step in found.observed.evidence.steps)


def test_a_plan_run_without_gates_has_no_narrowing(tmp_path: Path) -> None:
    planned, _ = probe(tmp_path)
    assert not any("bounded" in step.name for step in planned.steps)
