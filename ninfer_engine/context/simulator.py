"""Runs a trace through the real ContextCache, without tensors: the same plans, other clocks.

Time is simulated: a request starts when it has arrived and a sequence is free, takes what its plan predicts plus a
fixed time a reply token, and publishes its endpoint when it ends. With one sequence this is a plain loop; with more,
requests overlap as they do in the engine.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from ninfer_engine.context.cache import ContextCache
from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.tokens import TokenRuns
from ninfer_engine.context.types import Capacities, CheckpointKind, MissKind, PathKind, Plan, PlanRequest, Policy

DECODE_NS = 15_000_000


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace. at: seconds. prompt, reply: made-up tokens. parent: id of the request whose stored
    response it continues. store: whether its own response is stored."""

    id: str
    at: float
    prompt: TokenRuns
    reply: TokenRuns
    parent: str | None = None
    session: str | None = None
    store: bool = True
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one request. started and finished: simulated seconds."""

    id: str
    path: PathKind
    frontier: int
    prompt_tokens: int
    miss: MissKind | None
    started: float
    finished: float
    predicted_now_ns: int


@dataclass(slots=True)
class Report:
    """Sums over a trace. Tokens are prompt tokens; peaks are the most that was occupied at any commit."""

    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_ns: int = 0
    evictions: int = 0
    demoted_pages: int = 0
    refused: int = 0
    paths: dict[PathKind, int] = field(default_factory=dict)
    misses: dict[MissKind, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that were prefilled."""
        return self.prompt_tokens - self.reused_tokens

    @property
    def hit_share(self) -> float:
        """Reused share of prompt tokens; of an empty trace an error, never 0."""
        if not self.prompt_tokens:
            raise ValueError("the trace has no prompt tokens, so it has no hit share")
        return self.reused_tokens / self.prompt_tokens


class Simulator:
    """A cache under a trace. `run` may be called again with more of it."""

    def __init__(
        self, capacities: Capacities, costs: CostModel, policy: Policy | None = None, decode_ns: int = DECODE_NS
    ) -> None:
        self.cache = ContextCache(capacities, costs, policy)
        self.report = Report()
        self._decode_ns = decode_ns
        self._concurrency = capacities.max_concurrency
        self._ids = count(1)
        self._running: list[tuple[float, int, TraceRequest, Outcome]] = []
        self._now = 0.0

    def run(self, trace: Iterable[TraceRequest]) -> Iterator[Outcome]:
        """Outcomes in the order in which requests end. The trace comes in order of arrival."""
        for request in trace:
            while self._running and (len(self._running) >= self._concurrency or self._running[0][0] <= request.at):
                yield self._finish()
            self._now = max(self._now, request.at)
            while True:
                plan = self.cache.plan(self._ask(request))
                if plan.blocked is None:
                    self._start(request, plan)
                    break
                if plan.impossible or not self._running:
                    self.report.refused += 1
                    break
                yield self._finish()
        while self._running:
            yield self._finish()

    def _ask(self, request: TraceRequest) -> PlanRequest:
        return PlanRequest(
            request.id, request.prompt, self._now, request.salt, request.session, request.parent, len(request.reply)
        )

    def _start(self, request: TraceRequest, plan: Plan) -> None:
        report = self.report
        report.requests += 1
        report.prompt_tokens += len(request.prompt)
        report.reused_tokens += plan.resume.frontier
        report.prefill_ns += plan.predicted_now_ns
        report.evictions += len(plan.evicted)
        report.demoted_pages += plan.demoted_pages
        report.paths[plan.resume.path] = report.paths.get(plan.resume.path, 0) + 1
        if plan.miss is not None:
            report.misses[plan.miss.kind] = report.misses.get(plan.miss.kind, 0) + 1
        self.cache.begin(plan, request.id, [next(self._ids) for _ in range(plan.new_pages)])
        for split in plan.splits:
            self._publish(request.id, split.frontier, split.kind, None)
        end = self._now + (plan.predicted_now_ns + self._decode_ns * len(request.reply)) / 1e9
        outcome = Outcome(
            request.id,
            plan.resume.path,
            plan.resume.frontier,
            len(request.prompt),
            plan.miss.kind if plan.miss is not None else None,
            self._now,
            end,
            plan.predicted_now_ns,
        )
        heappush(self._running, (end, report.requests, request, outcome))
        self._peaks()

    def _finish(self) -> Outcome:
        end, _, request, outcome = heappop(self._running)
        self._now = max(self._now, end)
        if request.store and len(request.reply):
            frontier = len(request.prompt) + len(request.reply) - 1
            endpoint = self._publish(request.id, frontier, CheckpointKind.ENDPOINT, request.reply)
            stored = self.cache.store_continuation(request.id, request.id, request.session, endpoint, self._now)
            self.report.evictions += len(stored.evicted)
        self.cache.end(request.id)
        return outcome

    def _publish(self, name: str, frontier: int, kind: CheckpointKind, reply: TokenRuns | None) -> int | None:
        plan = self.cache.publish_plan(name, frontier, kind, self._now, reply)
        self.report.evictions += len(plan.evicted)
        return self.cache.publish(plan, next(self._ids) if plan.tier is not None else None)

    def _peaks(self) -> None:
        occupied, peak = self.cache.occupancy(), self.report.peak
        for name in ("device_images", "host_images", "device_pages", "host_pages", "continuations"):
            peak[name] = max(peak.get(name, 0), getattr(occupied, name))


def simulate(
    trace: Iterable[TraceRequest], capacities: Capacities, costs: CostModel, policy: Policy | None = None
) -> tuple[Report, list[Outcome]]:
    """Run a whole trace; the report and every outcome."""
    simulator = Simulator(capacities, costs, policy)
    outcomes = list(simulator.run(trace))
    return simulator.report, outcomes
