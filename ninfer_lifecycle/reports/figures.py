"""Figures of a run, derived from its evidence: walls, hits, restores, predictions, steps. Pure.

Times are microseconds, shares and ratios parts per million. What the evidence lacks is None or an empty tuple, never 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.base import PPM
from ninfer_lifecycle.gates.stats import median, miss_bound_ppm
from ninfer_lifecycle.gates.tally import Evidence, Judgement, is_failed, reported_reuse, share_of, tally
from ninfer_lifecycle.gates.thresholds import Thresholds
from ninfer_lifecycle.gates.timing import cold_walls


@dataclass(frozen=True, slots=True)
class Walls:
    """Walls of one template in one epoch, in microseconds.

    cold_us: bases of that template that reused nothing, of the whole run: the same in every epoch. forks_us: answered
    forks in the order in which they were sent. first_fork_us: of the first sibling. resumes_us: resumed bases.
    """

    template_tokens: int
    epoch: int
    cold_us: tuple[int, ...]
    forks_us: tuple[int, ...]
    first_fork_us: int | None
    resumes_us: tuple[int, ...]

    @property
    def cold_median_us(self) -> int | None:
        """Median cold wall."""
        return median(self.cold_us) if self.cold_us else None

    @property
    def fork_median_us(self) -> int | None:
        """Median wall of the forks."""
        return median(self.forks_us) if self.forks_us else None

    @property
    def fork_max_us(self) -> int | None:
        """Wall of the slowest fork."""
        return max(self.forks_us, default=None)

    @property
    def fork_to_cold_ppm(self) -> int | None:
        """Median fork over median cold, rounded up; None where one side is missing."""
        cold, fork = self.cold_median_us, self.fork_median_us
        return -(-fork * PPM // cold) if cold and fork is not None else None


@dataclass(frozen=True, slots=True)
class Hits:
    """Forks of one template over all epochs. trials: answered and reported; a hit reused what the policy asks.

    clusters: siblings of one parent in one epoch share their cause; bound_ppm bounds the miss rate of clusters (exact,
    one-sided, 95%). None without a trial.
    """

    template_tokens: int
    trials: int
    hits: int
    unreported: int
    failed: int
    clusters: int
    bound_ppm: int | None

    @property
    def share_ppm(self) -> int | None:
        """Share of hits, rounded down."""
        return self.hits * PPM // self.trials if self.trials else None


@dataclass(frozen=True, slots=True)
class Restore:
    """How long the first fork of a template after a restart waited for its session to come back from disk."""

    template_tokens: int
    epoch: int
    restore_us: int


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Time to the first token of one request: as the engine's plan predicted it, and as the engine measured it."""

    request_id: str
    step: Step
    template_tokens: int
    epoch: int
    predicted_us: int
    measured_us: int

    @property
    def error_ppm(self) -> int:
        """Absolute error over the measured time, rounded up."""
        return -(-abs(self.predicted_us - self.measured_us) * PPM // self.measured_us)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step of the plan. start_us: sum of the walls of the steps before it, so time between steps is left out."""

    order: int
    epoch: int
    name: str
    outcome: str
    detail: str | None
    start_us: int
    wall_us: int
    prober_us: int


def walls_of(evidence: Evidence, limits: Thresholds) -> tuple[Walls, ...]:
    """One a template and epoch that has forks or resumes, by size and epoch. Bases alone make one of epoch 0."""
    places: set[tuple[int, int]] = set()
    for record in (*evidence.of(Step.FORK), *evidence.of(Step.RESUME), *evidence.of(Step.BASE)):
        places.add((record.template_tokens, record.epoch))
    return tuple(_wall(evidence, limits, tokens, epoch) for tokens, epoch in sorted(places))


def _wall(evidence: Evidence, limits: Thresholds, tokens: int, epoch: int) -> Walls:
    forks = sorted(evidence.of(Step.FORK, tokens, epoch), key=lambda record: record.order)
    first = next((record for record in forks if record.sibling == 0), None)
    return Walls(
        tokens, epoch, tuple(cold_walls(evidence, tokens, limits)), _answered(forks),
        None if first is None or is_failed(first) else first.wall_us,
        _answered(evidence.of(Step.RESUME, tokens, epoch)))


def _answered(records: Sequence[RequestEvidence]) -> tuple[int, ...]:
    return tuple(record.wall_us for record in records if not is_failed(record) and record.wall_us is not None)


def _judge(limits: Thresholds, record: RequestEvidence) -> Judgement:
    reused = reported_reuse(record)
    if reused is None:
        return Judgement(None)
    return Judgement(reused >= share_of(record.template_tokens, limits.fork_min_reuse_ppm), reused)


def hits_of(evidence: Evidence, limits: Thresholds) -> tuple[Hits, ...]:
    """Forks of each template over all epochs, by size."""
    found = []
    for tokens in sorted({record.template_tokens for record in evidence.of(Step.FORK)}):
        counted = tally(evidence.of(Step.FORK, tokens), lambda record: _judge(limits, record))
        found.append(Hits(
            tokens, counted.trials, counted.trials - counted.misses, counted.unreported, counted.failed,
            counted.clusters,
            miss_bound_ppm(counted.clusters, counted.missed_clusters) if counted.clusters else None))
    return tuple(found)


def missed_clusters(evidence: Evidence, limits: Thresholds) -> int:
    """Groups of forks, over all templates, in which one missed."""
    return tally(evidence.of(Step.FORK), lambda record: _judge(limits, record)).missed_clusters


def restores_of(evidence: Evidence) -> tuple[Restore, ...]:
    """Of each template and epoch after a restart, the first request to come (fork or resume): it waits for the disk."""
    first: dict[tuple[int, int], RequestEvidence] = {}
    for record in (*evidence.of(Step.FORK), *evidence.of(Step.RESUME)):
        place = (record.template_tokens, record.epoch)
        if record.epoch and not is_failed(record) and (place not in first or record.order < first[place].order):
            first[place] = record
    return tuple(Restore(tokens, epoch, record.restore_us)
                 for (tokens, epoch), record in sorted(first.items()) if record.restore_us is not None)


def plan_costs_of(evidence: Evidence) -> tuple[PlanCost, ...]:
    """Every answered request that has both times, in order."""
    return tuple(
        PlanCost(record.request_id, record.step, record.template_tokens, record.epoch, record.predicted_now_us,
                 record.engine_ttft_us)
        for record in sorted(evidence.own, key=lambda record: record.order)
        if not is_failed(record) and record.predicted_now_us is not None and record.engine_ttft_us)


def steps_of(evidence: Evidence) -> tuple[StepFacts, ...]:
    """The steps in order, one after another."""
    found, start = [], 0
    for step in sorted(evidence.steps, key=lambda step: step.order):
        found.append(StepFacts(step.order, step.epoch, step.name, step.outcome, step.detail, start, step.wall_us,
                               step.prober_us))
        start += step.wall_us
    return tuple(found)
