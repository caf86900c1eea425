"""One trace through our cache and through the policies that it is compared with, in the same number of bytes."""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ninfer_engine.context.baselines import BASELINES, Baseline, bound, pool_bytes
from ninfer_engine.context.cache import ContextCache
from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.simulator import Report, Simulator, TraceRequest
from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.types import Capacities, CheckpointKind, Plan, PlanRequest, Policy, PublishPlan
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.simulate.readers import Trace

Clock = Callable[[], int]
"""Nanoseconds on a monotonic clock."""

BOUND = "clairvoyant"
"""The bound's name beside those of the policies."""


class TimedCache(ContextCache):
    """A cache that notes how long each request's planning took: plan() and every publish_plan()."""

    def __init__(self, capacities: Capacities, costs: CostModel, policy: Policy | None, clock: Clock) -> None:
        super().__init__(capacities, costs, policy)
        self.plan_ns, self.publish_ns = array("q"), array("q")
        self._clock = clock

    def plan(self, request: PlanRequest) -> Plan:
        begun = self._clock()
        plan = super().plan(request)
        self.plan_ns.append(self._clock() - begun)
        return plan

    def publish_plan(self, sequence_id: str, frontier: int, kind: CheckpointKind, now: float,
                     generated: TokenString | None = None) -> PublishPlan:
        begun = self._clock()
        plan = super().publish_plan(sequence_id, frontier, kind, now, generated)
        self.publish_ns.append(self._clock() - begun)
        return plan


@dataclass(frozen=True, slots=True)
class PlannerTime:
    """Microseconds of one call. An empty sample has no percentile: then all are None."""

    calls: int
    p50_us: float | None
    p99_us: float | None
    max_us: float | None

    @classmethod
    def of(cls, samples_ns: Iterable[int]) -> "PlannerTime":
        """Nearest-rank percentiles."""
        ranked = sorted(samples_ns)
        if not ranked:
            return cls(0, None, None, None)

        def percentile(share: float) -> float:
            return ranked[max(0, math.ceil(share * len(ranked)) - 1)] / 1e3

        return cls(len(ranked), percentile(0.5), percentile(0.99), ranked[-1] / 1e3)


@dataclass(frozen=True, slots=True)
class OurRun:
    """What our cache did with a trace. prompt_tokens: of the whole trace, refused requests included, so that shares can
    be compared. seconds: that the simulation took, everything included."""

    report: Report
    prompt_tokens: int
    plan: PlannerTime
    publish: PlannerTime
    seconds: float

    @property
    def hit_share(self) -> float:
        """Reused share of the prompt tokens of the whole trace."""
        return self.report.reused_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Comparison:
    """A trace under our cache and the others. others: hit share by policy, the bound included."""

    pool_bytes: int
    ours: OurRun
    others: dict[str, float]


def run_ours(trace: Trace, capacities: Capacities, costs: CostModel, clock: Clock, policy: Policy | None = None
             ) -> OurRun:
    """The whole trace, request by request; nothing of it is kept. Raises UsageError for a trace without tokens."""
    simulator = Simulator(capacities, costs, policy)
    timed = simulator.cache = TimedCache(capacities, costs, policy, clock)
    begun, prompt_tokens = clock(), 0

    def counted() -> Iterator[TraceRequest]:
        nonlocal prompt_tokens
        for request in trace():
            prompt_tokens += len(request.prompt)
            yield request

    for _ in simulator.run(counted()):
        pass
    seconds = (clock() - begun) / 1e9
    if not prompt_tokens:
        raise UsageError("the trace has no prompt tokens", "give a trace of at least one request that ran")
    return OurRun(simulator.report, prompt_tokens, PlannerTime.of(timed.plan_ns), PlannerTime.of(timed.publish_ns),
                  seconds)


def compare(trace: Trace, capacities: Capacities, costs: CostModel, clock: Clock, policy: Policy | None = None,
            others: Iterable[str] = (*BASELINES, BOUND)) -> Comparison:
    """Our cache, then each of `others` with as many bytes as ours on both tiers. Reads the trace once for each."""
    pool = pool_bytes(capacities)
    ours = run_ours(trace, capacities, costs, clock, policy)
    shares = {name: other_share(name, trace, pool, capacities, costs) for name in others}
    return Comparison(pool, ours, shares)


def other_share(name: str, trace: Trace, pool: int, capacities: Capacities, costs: CostModel) -> float:
    """Hit share of a baseline in `pool` bytes, or of the clairvoyant bound."""
    if name == BOUND:
        return bound(trace(), capacities, costs)
    return Baseline(pool, capacities, costs, BASELINES[name]).run(trace()).hit_share


def kinds(report: Report) -> dict[str, dict[str, int]]:
    """Counts of paths and of miss reasons under their names on the wire."""
    return {"paths": {kind.value: n for kind, n in sorted(report.paths.items())},
            "misses": {kind.value: n for kind, n in sorted(report.misses.items())}}
