"""Exact statistics for gates. Integers in, integers out: the same numbers on every machine.

Hit or miss is a binomial, so its bound is the Clopper-Pearson one; walls are ranked, so their percentiles are order
statistics of the sample, never interpolations of one that is too small. Nothing here uses floating point.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

from ninfer_lifecycle.gates.base import PPM
from ninfer_lifecycle.gates.errors import GateError

# One-sided 95% throughout: a tail of 1 in 20.
_TAIL = 20


@lru_cache(maxsize=4096)
def miss_bound_ppm(trials: int, misses: int) -> int:
    """Smallest whole ppm that is at or above the one-sided 95% Clopper-Pearson upper bound of the miss rate.

    Found by bisection over whole ppm with exact integers: the bound p is where P(X <= misses; trials, p) = 1/20.
    Raises GateError without a trial, or for counts that cannot be.
    """
    if trials < 1 or not 0 <= misses <= trials:
        raise GateError(f"no bound for {misses} misses in {trials} trials", "A bound needs at least one trial.")
    if misses == trials:
        return PPM
    low, high = 0, PPM  # the tail at `high` is at most 1/20; at `low` it is more
    while high - low > 1:
        middle = (low + high) // 2
        if _tail_is_small(trials, misses, middle):
            high = middle
        else:
            low = middle
    return high


def _tail_is_small(trials: int, misses: int, ppm: int) -> bool:
    """Whether P(X <= misses) <= 1/20 for X binomial over `trials` with probability `ppm` millionths."""
    hit = PPM - ppm
    total: int = sum(comb(trials, i) * ppm**i * hit ** (trials - i) for i in range(misses + 1))
    whole: int = PPM**trials
    return total * _TAIL <= whole


def percentile(values: Sequence[int], ppm: int) -> int:
    """The order statistic at or above which `ppm` millionths of the sample lie (nearest rank). Empty is an error."""
    if not values:
        raise GateError("a percentile of no samples", "Failed requests are not samples; measure again.")
    if not 0 < ppm <= PPM:
        raise GateError(f"{ppm} ppm is no percentile", "Use 1 to 1000000.")
    return sorted(values)[-(-len(values) * ppm // PPM) - 1]


def median(values: Sequence[int]) -> int:
    """Median; of an even sample the mean of the middle two, rounded up. Empty is an error.

    The mean of the two, because the lower or the upper one alone hides a sample that alternates between hot and cold.
    """
    if not values:
        raise GateError("a median of no samples", "Failed requests are not samples; measure again.")
    ranked = sorted(values)
    half = len(ranked) // 2
    return ranked[half] if len(ranked) % 2 else -(-(ranked[half - 1] + ranked[half]) // 2)


def samples_for_percentile(ppm: int) -> int:
    """Samples of which the largest is, with 95% confidence, at or above the true percentile: least n, p^n <= 1/20."""
    if not 0 < ppm < PPM:
        raise GateError(f"{ppm} ppm has no such sample size", "Use 1 to 999999.")
    count, power, whole = 0, 1, 1
    while power * _TAIL > whole:
        count, power, whole = count + 1, power * ppm, whole * PPM
    return count


@dataclass(frozen=True)
class PercentileBound:
    """A percentile of a sample and its one-sided 95% upper bound; None where the sample is too small for a bound."""

    observed: int
    upper: int | None
    samples: int
    samples_needed: int


def percentile_bound(values: Sequence[int], ppm: int) -> PercentileBound:
    """Distribution-free upper bound of a percentile: the least order statistic whose rank is high enough.

    Rank r bounds the percentile with confidence P(X < r), X binomial over the sample with probability `ppm` millionths.
    """
    observed = percentile(values, ppm)
    needed = samples_for_percentile(ppm)
    ranked, size = sorted(values), len(values)
    below, hit = 0, PPM - ppm
    for rank in range(1, size + 1):
        below += comb(size, rank - 1) * ppm ** (rank - 1) * hit ** (size - rank + 1)
        if below * _TAIL >= PPM**size * (_TAIL - 1):
            return PercentileBound(observed, ranked[rank - 1], size, needed)
    return PercentileBound(observed, None, size, needed)
