"""What reports say of a receipt: figures from hand-made evidence, words that never flatter."""

import dataclasses
import re
from datetime import timedelta

import pytest
import receipt_cases as cases
from hypothesis import given
from hypothesis import strategies as st
from report_cases import RECEIPTS, failing, open_one, real, verified
from scipy.stats import beta

from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.verdict import CheckName, Result, Unit
from ninfer_lifecycle.reports import words
from ninfer_lifecycle.reports.facts import Walls, facts_of


def test_the_published_receipt_gives_the_figures_of_its_table() -> None:
    facts = facts_of(real())
    by_place = {(wall.template_tokens, wall.epoch): wall for wall in facts.walls}
    evidence = facts.receipt.evidence
    base = next(r for r in evidence.requests if r.step is Step.BASE and r.template_tokens == 57853)
    forks = sorted(r.wall_us or 0 for r in evidence.requests
                   if r.step is Step.FORK and r.template_tokens == 57853 and r.epoch == 1)
    wall = by_place[57853, 1]
    assert wall.cold_median_us == base.wall_us
    assert (wall.fork_max_us, len(wall.forks_us)) == (forks[-1], 4)
    assert wall.fork_median_us == -(-(forks[1] + forks[2]) // 2)
    assert wall.fork_to_cold_ppm == -(-(wall.fork_median_us or 0) * 10**6 // (base.wall_us or 1))
    assert set(by_place) == {(s, e) for s in (28405, 57853, 67681, 79957) for e in (0, 1)}
    assert len(facts.restores) == 4
    assert sum(step.wall_us for step in facts.steps) == facts.steps[-1].start_us + facts.steps[-1].wall_us


def test_hits_and_their_bound_are_of_clusters_and_agree_with_another_implementation() -> None:
    facts = facts_of(verified(failing()))
    hits = {item.template_tokens: item for item in facts.hits}
    assert (hits[1000].trials, hits[1000].hits, hits[1000].clusters) == (8, 7, 2)
    assert hits[1000].share_ppm == 875_000
    for item, missed in ((hits[480], 0), (hits[1000], 1)):
        assert item.bound_ppm == pytest.approx(beta.ppf(0.95, missed + 1, 2 - missed) * 1e6, abs=1.5)
    total = facts.total_hits
    assert total is not None
    assert (total.trials, total.hits) == (16, 15)
    assert total.bound_ppm == pytest.approx(beta.ppf(0.95, 2, 3) * 1e6, abs=1.5)


def test_what_did_not_pass_comes_first_and_failing_before_inconclusive() -> None:
    for make in RECEIPTS.values():
        order = [item.check.result for item in facts_of(make()).checks]
        rank = {Result.FAILED: 0, Result.INCONCLUSIVE: 1, Result.PASSED: 2}
        assert order == sorted(order, key=lambda result: rank[result])


def test_a_request_without_an_answer_has_no_wall_and_no_share() -> None:
    facts = facts_of(verified(open_one()))
    hits = {item.template_tokens: item for item in facts.hits}
    assert (hits[480].trials, hits[480].failed, hits[1000].unreported) == (7, 1, 1)
    assert len(next(wall for wall in facts.walls if (wall.template_tokens, wall.epoch) == (480, 0)).forks_us) == 3


def test_what_was_not_measured_is_none_and_not_nought() -> None:
    evidence = cases.honest_evidence()
    bare = tuple(record.model_copy(update={"wall_us": None, "predicted_now_us": None}) for record in evidence.requests)
    facts = facts_of(verified(cases.receipt(dataclasses.replace(evidence, requests=bare))))
    assert all(wall.fork_median_us is None and wall.cold_median_us is None and wall.fork_to_cold_ppm is None
               for wall in facts.walls)
    assert facts.plan_costs == ()
    assert words.seconds(facts.walls[0].fork_median_us) == words.ABSENT
    assert Walls(1, 0, (), (), None, ()).fork_max_us is None


def test_age_and_expiry_are_counted_from_the_given_time() -> None:
    facts = facts_of(verified(cases.receipt()))
    assert facts.age(cases.NOW) == timedelta(hours=1)
    assert facts.age(facts.finished - timedelta(days=1)) == timedelta(0)
    assert not facts.expired(facts.valid_until - timedelta(seconds=1))
    assert facts.expired(facts.valid_until)


def test_every_check_has_words() -> None:
    assert set(words.WORDS) == set(CheckName)


@given(st.integers(0, 10**6))
def test_a_share_is_never_rounded_to_all_or_nothing(ppm: int) -> None:
    said = words.percent(ppm)
    assert (said == "100%") == (ppm == 10**6)
    assert (said == "0%") == (ppm == 0)
    assert float(said[:-1]) == pytest.approx(ppm / 1e4, rel=0.06, abs=0.06)


@given(st.integers(0, 10**6))
def test_an_upper_bound_is_never_rounded_down(ppm: int) -> None:
    assert ppm / 1e4 <= float(words.percent_up(ppm)[:-1]) < ppm / 1e4 + 0.1


@given(st.integers(0, 10**12))
def test_a_duration_keeps_three_digits(us: int) -> None:
    said = words.seconds(us)
    if us < 99_950_000:
        number, unit = said.split()
        factor = {"µs": 1, "ms": 1e3, "s": 1e6}[unit]
        assert float(number.replace(",", "")) * factor == pytest.approx(us, rel=0.006)
        assert len(re.sub(r"\D", "", number)) <= 3
    else:
        parts = [int(number) for number in re.findall(r"\d+", said)]
        unit_s = 60 if "min" in said and " s" in said else 3600
        assert parts[0] * unit_s <= us / 1e6 + 1


@given(st.text(max_size=900))
def test_shown_text_is_one_printable_line_of_bounded_length(text: str) -> None:
    said = words.shown(text)
    assert said.isprintable() or not said
    assert len(said) < 460


def test_units_stand_with_every_figure() -> None:
    assert [words.measured(1, unit) for unit in Unit] == ["1 token", "0.0001%", "1", "1 µs"]
    assert words.span(timedelta(days=3, hours=1)) == "3 days 1 hour"
    assert words.size_of(1536) == "1.50 KiB"
    assert words.times_faster(10_000) == "100\N{MULTIPLICATION SIGN}"
