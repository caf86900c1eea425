"""Counting: which records are samples, which hit, which missed, which did not say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer_lifecycle.evidence import (
    EpochEvidence,
    FactEvidence,
    PoolEvidence,
    RequestEvidence,
    SaveEvidence,
    Step,
    StepEvidence,
)
from ninfer_lifecycle.gates.base import PPM
from ninfer_lifecycle.gates.stats import miss_bound_ppm
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result, Unit


@dataclass(frozen=True)
class Evidence:
    """Everything that a run observed; order within a kind means nothing, records are joined by their ids."""

    requests: tuple[RequestEvidence, ...]
    saves: tuple[SaveEvidence, ...] = ()
    epochs: tuple[EpochEvidence, ...] = ()
    steps: tuple[StepEvidence, ...] = ()
    facts: tuple[FactEvidence, ...] = ()
    pools: tuple[PoolEvidence, ...] = ()

    @property
    def own(self) -> tuple[RequestEvidence, ...]:
        """Requests to the engine under test."""
        return tuple(record for record in self.requests if record.engine is None)

    def of(self, step: Step, template_tokens: int | None = None, epoch: int | None = None) -> list[RequestEvidence]:
        """Requests of one step, of one template or of all, of one epoch or of all."""
        return [
            record for record in self.requests
            if record.step is step
            and template_tokens in (None, record.template_tokens)
            and epoch in (None, record.epoch)
        ]


@dataclass(frozen=True)
class Judgement:
    """What one sample says: a hit, a miss, or None when it did not report; and the figure behind it."""

    hit: bool | None
    observed: int | None = None


@dataclass(frozen=True)
class Tally:
    """Counts over records. `clusters` and `missed_clusters` group siblings of one parent in one epoch."""

    trials: int
    misses: int
    unreported: int
    failed: int
    clusters: int
    missed_clusters: int
    observed: tuple[int, ...]
    ids: tuple[str, ...]
    missed_ids: tuple[str, ...]


def is_failed(record: RequestEvidence) -> bool:
    """Whether a request has no answer that could be a sample: an error, or no 2xx status."""
    return record.error is not None or record.http_status is None or not 200 <= record.http_status < 300


def reported_reuse(record: RequestEvidence) -> int | None:
    """Reused tokens that every witness grants, None where the usage does not report or witnesses contradict.

    The usage's cached_tokens is what every client sees; an engine that leaves it out has reported nothing.
    """
    if record.cached_tokens is None or record.witness_conflict is not None:
        return None
    return record.cached_tokens if record.reused_tokens is None else min(record.cached_tokens, record.reused_tokens)


def tally(records: Sequence[RequestEvidence], judge: Callable[[RequestEvidence], Judgement]) -> Tally:
    """Count `records` under `judge`; failed requests are not samples."""
    answered = [record for record in records if not is_failed(record)]
    judged = [(record, judge(record)) for record in answered]
    sampled = [(record, judgement) for record, judgement in judged if judgement.hit is not None]
    missed = [record for record, judgement in sampled if not judgement.hit]
    return Tally(
        trials=len(sampled), misses=len(missed), unreported=len(judged) - len(sampled),
        failed=len(records) - len(answered),
        clusters=len({_cluster(record) for record, _ in sampled}),
        missed_clusters=len({_cluster(record) for record in missed}),
        observed=tuple(judgement.observed for _, judgement in sampled if judgement.observed is not None),
        ids=tuple(record.request_id for record in records),
        missed_ids=tuple(record.request_id for record in missed),
    )


def _cluster(record: RequestEvidence) -> tuple[int, int, str | None]:
    return record.template_tokens, record.epoch, record.parent_response_id


@dataclass(frozen=True)
class Place:
    """What a check is about: all templates or one, all epochs or one."""

    template_tokens: int | None = None
    epoch: int | None = None


def settle(
    name: CheckName, place: Place, counted: Tally, *, expected: int, unit: Unit, threshold: int, observed: int | None
) -> Check:
    """The check of a deterministic claim: one miss fails it; a gap makes it inconclusive."""
    result, reason = _conclude(counted, expected)
    return Check(
        name=name, template_tokens=place.template_tokens, epoch=place.epoch, trials=counted.trials,
        misses=counted.misses, unreported=counted.unreported, failed=counted.failed,
        clusters=counted.clusters, bound_ppm=miss_bound_ppm(counted.clusters, counted.missed_clusters)
        if counted.clusters else None,
        unit=unit, threshold=threshold, observed=observed, result=result, reason=reason, evidence=counted.ids,
    )


def _conclude(counted: Tally, expected: int) -> tuple[Result, str | None]:
    if counted.misses:
        return Result.FAILED, f"{counted.misses} of {counted.trials} missed, first {counted.missed_ids[0]}"
    if counted.failed:
        return Result.INCONCLUSIVE, f"{counted.failed} requests have no answer"
    if counted.unreported:
        return Result.INCONCLUSIVE, f"{counted.unreported} replies did not report it, or their witnesses disagree"
    if counted.trials < max(expected, 1):
        return Result.INCONCLUSIVE, f"{counted.trials} of {expected} planned samples were taken"
    return Result.PASSED, None


def simple(
    name: CheckName, place: Place, *, ids: Sequence[str], misses: Sequence[str], gaps: Sequence[str], trials: int
) -> Check:
    """A check by listed faults: `misses` fail it, `gaps` make it inconclusive; both are sentences."""
    result, reason = Result.PASSED, None
    if misses:
        result, reason = Result.FAILED, "; ".join(misses[:3])
    elif gaps or not trials:
        result, reason = Result.INCONCLUSIVE, "; ".join(gaps[:3]) or "nothing was observed"
    return Check(
        name=name, template_tokens=place.template_tokens, epoch=place.epoch, trials=trials, misses=len(misses),
        unreported=len(gaps), failed=0, unit=Unit.COUNT, threshold=0, observed=len(misses), result=result,
        reason=reason, evidence=tuple(ids),
    )


def share_of(tokens: int, ppm: int) -> int:
    """`ppm` millionths of `tokens`, rounded up."""
    return -(-tokens * ppm // PPM)
