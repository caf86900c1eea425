"""Trials that adapt: new templates, forked, until the bound of the miss rate is met or what may be spent is spent.

One miss settles the matter and ends it early; a budget that is spent first leaves the bound, and the verdict,
inconclusive. Every template is a cluster of its own, since siblings that share an anchor say little more than one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_lifecycle.gates.hits import miss_bound_check
from ninfer_lifecycle.gates.stats import miss_bound_ppm
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import Thresholds
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.probes.steps import Base, Forks
from ninfer_lifecycle.profiles.schema import ProbeSection

FORKS = 2
MOST_CLUSTERS = 100_000


@dataclass(frozen=True, slots=True)
class Narrow:
    """Add clusters of the smallest size until the bound of `limits` is met, a fork misses, or a budget is spent."""

    section: ProbeSection
    limits: Thresholds
    cost: int
    template_tokens: int | None = None

    @property
    def name(self) -> str:
        return f"forks of new templates until the miss rate is bounded by {self.limits.max_miss_bound_ppm} ppm"

    def perform(self, run: ProbeRun) -> None:
        ends, number = run.effects.clock() + self.section.budget_seconds, 0
        while _is_open(self.limits, run) and run.effects.clock() < ends \
                and (number + 1) * _cluster_cost(self.section) <= self.section.budget_tokens:
            for step in _cluster(self.section, f"narrow/{number}"):
                step.perform(run)
            number += 1


def plan_narrowing(section: ProbeSection, limits: Thresholds) -> tuple[ProbeStep, ...]:
    """The step, where there is a bound to meet."""
    if limits.max_miss_bound_ppm is None:
        return ()
    planned = len(section.sizes) * section.repeats * (section.restarts + 1)
    more = max(0, clusters_needed(limits.max_miss_bound_ppm) - planned)
    return (Narrow(section, limits, min(section.budget_tokens, more * _cluster_cost(section))),)


def clusters_needed(ppm: int) -> int:
    """Clusters without a miss that bound the miss rate by `ppm`; MOST_CLUSTERS where no run could have so many."""
    low, high = 0, MOST_CLUSTERS
    while high - low > 1:
        middle = (low + high) // 2
        if miss_bound_ppm(middle, 0) <= ppm:
            high = middle
        else:
            low = middle
    return high


def _is_open(limits: Thresholds, run: ProbeRun) -> bool:
    """Whether more trials can settle it: nothing missed, nothing is left unanswered, and the bound is too wide."""
    [check] = miss_bound_check(limits, Evidence(tuple(run.journal.requests)))
    return check.result is Result.INCONCLUSIVE and not (check.misses or check.unreported or check.failed)


def _cluster(section: ProbeSection, key: str) -> Sequence[ProbeStep]:
    size = min(section.sizes)
    return (Base(key, size, section.base_output_tokens),
            Forks(key, size, FORKS, section.fork_input_tokens, section.fork_output_tokens))


def _cluster_cost(section: ProbeSection) -> int:
    return sum(step.cost for step in _cluster(section, ""))
