"""Exact statistics: against scipy, against the published figures, and where they must refuse."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle

from ninfer_lifecycle.gates.blocks import MIN_BLOCKS, Block, compare, ratio_interval
from ninfer_lifecycle.gates.errors import GateError
from ninfer_lifecycle.gates.stats import median, miss_bound_ppm, percentile, percentile_bound, samples_for_percentile
from ninfer_lifecycle.gates.verdict import Result


@pytest.mark.parametrize(("trials", "percent"), [(20, 13.9), (64, 4.6), (299, 1.0), (2995, 0.1)])
def test_the_bound_of_zero_misses_is_the_published_one(trials: int, percent: float) -> None:
    assert miss_bound_ppm(trials, 0) / 10_000 == pytest.approx(percent, abs=0.05)


@given(st.integers(1, 400), st.data())
@settings(max_examples=60, deadline=None)
def test_the_bound_is_clopper_pearson_rounded_up_to_a_ppm(trials: int, data: st.DataObject) -> None:
    misses = data.draw(st.integers(0, trials))
    exact = 1.0 if misses == trials else oracle.beta.ppf(0.95, misses + 1, trials - misses)
    assert exact * 1e6 - 1e-3 <= miss_bound_ppm(trials, misses) <= exact * 1e6 + 1 + 1e-3


@given(st.integers(1, 100), st.data())
@settings(max_examples=40, deadline=None)
def test_more_misses_never_lower_the_bound_and_more_trials_never_raise_it(trials: int, data: st.DataObject) -> None:
    misses = data.draw(st.integers(0, trials - 1))
    assert miss_bound_ppm(trials, misses) <= miss_bound_ppm(trials, misses + 1)
    assert miss_bound_ppm(trials + 1, misses) <= miss_bound_ppm(trials, misses)


@pytest.mark.parametrize(("trials", "misses"), [(0, 0), (3, 4), (3, -1)])
def test_a_bound_of_counts_that_cannot_be_is_an_error(trials: int, misses: int) -> None:
    with pytest.raises(GateError):
        miss_bound_ppm(trials, misses)


def test_percentiles_and_medians_of_nothing_are_errors() -> None:
    for ask in (lambda: percentile([], 500_000), lambda: median([]), lambda: percentile_bound([], 900_000)):
        with pytest.raises(GateError):
            ask()


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.integers(1, 1_000_000))
def test_a_percentile_is_a_sample_with_enough_of_the_sample_at_or_below_it(values: list[int], ppm: int) -> None:
    found = percentile(values, ppm)
    assert found in values
    assert sum(value <= found for value in values) * 1_000_000 >= ppm * len(values)
    assert sum(value < found for value in values) * 1_000_000 < ppm * len(values)


def test_the_median_of_an_alternating_sample_is_neither_its_hot_nor_its_cold_half() -> None:
    # The published failure: forks of 1.38, 22.50, 1.26 and 22.71 seconds.
    assert median([1_380_000, 22_500_000, 1_260_000, 22_710_000]) == 11_940_000


@pytest.mark.parametrize("ppm", [500_000, 900_000, 950_000, 990_000])
def test_the_largest_of_the_needed_samples_bounds_the_percentile_with_95_percent(ppm: int) -> None:
    needed = samples_for_percentile(ppm)
    assert 1 - (ppm / 1e6) ** needed >= 0.95 > 1 - (ppm / 1e6) ** (needed - 1)


@given(st.integers(1, 120), st.sampled_from([500_000, 900_000, 950_000]))
@settings(max_examples=40, deadline=None)
def test_a_percentile_bound_has_the_rank_that_scipy_gives(size: int, ppm: int) -> None:
    values = list(range(1, size + 1))
    found = percentile_bound(values, ppm)
    rank = next((r for r in range(1, size + 1) if oracle.binom.cdf(r - 1, size, ppm / 1e6) >= 0.95 - 1e-12), None)
    assert found.upper == rank
    assert (found.upper is None) == (size < found.samples_needed)


def _blocks(count: int, candidate: int, baseline: int) -> list[Block]:
    return [Block(str(n), (candidate + n, candidate + n + 2), (baseline, baseline)) for n in range(count)]


def test_few_blocks_are_inconclusive_however_good_they_look() -> None:
    result, interval = compare(_blocks(MIN_BLOCKS - 1, 10, 1000), 1_000_000)
    assert result is Result.INCONCLUSIVE
    assert interval is not None
    assert interval.blocks == MIN_BLOCKS - 1
    assert compare([], 1_000_000) == (Result.INCONCLUSIVE, None)


def test_a_comparison_has_three_outcomes() -> None:
    assert compare(_blocks(8, 1000, 1000), 1_100_000)[0] is Result.PASSED
    assert compare(_blocks(8, 2000, 1000), 1_100_000)[0] is Result.FAILED
    mixed = [*_blocks(4, 1000, 1000), *_blocks(4, 1300, 1000)]
    assert compare(mixed, 1_100_000)[0] is Result.INCONCLUSIVE


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=9))
@settings(max_examples=20, deadline=None)
def test_an_interval_holds_its_median_and_is_the_same_every_time(pairs: list[tuple[int, int]]) -> None:
    blocks = [Block(str(n), (mine,), (theirs,)) for n, (mine, theirs) in enumerate(pairs)]
    interval = ratio_interval(blocks)
    assert interval.low_ppm <= interval.ratio_ppm <= interval.high_ppm
    assert ratio_interval(blocks) == interval


def test_a_baseline_that_took_no_time_is_an_error() -> None:
    with pytest.raises(GateError, match="took no time"):
        ratio_interval([Block("a", (5,), (0,))])
