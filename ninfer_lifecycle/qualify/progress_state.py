"""What is known of a run while it goes on, and how it is said. Pure: the clock is given."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ninfer_lifecycle.evidence import RequestEvidence, Step, StepEvidence
from ninfer_lifecycle.gates.tally import is_failed
from ninfer_lifecycle.qualify.settling import Expected, LiveGate, Settling
from ninfer_lifecycle.sparks import sparkline


@dataclass
class ProgressState:
    """What a display needs, and no display. Costs are in tokens; `eta_s` is None until something was measured.

    forks_us and cold_us: walls by template size, in the order of the run. steps_us: walls of the steps that ended.
    """

    clock: Callable[[], float]
    expected: Expected | None = None
    step: str = ""
    index: int = 0
    total: int = 0
    done_cost: int = 0
    total_cost: int = 0
    started: float = 0.0
    forks_us: list[int] = field(default_factory=list)
    last: RequestEvidence | None = None
    requests: int = 0
    unanswered: int = 0
    forks_by_size: dict[int, list[int]] = field(default_factory=dict)
    cold_by_size: dict[int, int] = field(default_factory=dict)
    ended: dict[int, StepEvidence] = field(default_factory=dict)
    settling: Settling | None = field(init=False)

    def __post_init__(self) -> None:
        self.settling = None if self.expected is None else Settling(self.expected)

    def begin(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None:
        """A step starts."""
        if index == 0:
            self.started = self.clock()
        self.step, self.index, self.total = name, index, total
        self.done_cost, self.total_cost = done_cost, total_cost

    def note(self, record: RequestEvidence) -> list[LiveGate]:
        """A request is done; the gates that it settled."""
        self.last = record
        self.requests += 1
        self.unanswered += is_failed(record)
        if record.wall_us is not None and record.error is None and record.engine is None:
            if record.step is Step.FORK:
                self.forks_us.append(record.wall_us)
                self.forks_by_size.setdefault(record.template_tokens, []).append(record.wall_us)
            elif record.step is Step.BASE and not record.cached_tokens:
                self.cold_by_size.setdefault(record.template_tokens, record.wall_us)
        return [] if self.settling is None else self.settling.note(record)

    def end(self, record: StepEvidence) -> None:
        """The step that was begun last ended."""
        self.ended[self.index] = record

    @property
    def gates(self) -> tuple[LiveGate, ...]:
        """Gates so far; none where it is not known what the run is held to."""
        return () if self.settling is None else self.settling.gates()

    @property
    def fraction(self) -> float:
        """Share of the plan's estimated tokens that is done, 0..1."""
        return self.done_cost / self.total_cost if self.total_cost else 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first step began."""
        return self.clock() - self.started

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the pace so far."""
        if self.fraction <= 0:
            return None
        return self.elapsed_s * (1 - self.fraction) / self.fraction

    def sparkline(self, width: int = 24) -> str:
        """The last fork walls, scaled to the slowest of them."""
        return sparkline(self.forks_us, width)


def describe_request(record: RequestEvidence) -> str:
    """One line of a request: what it was, what it reused, how long it took."""
    what = f"{record.purpose or record.step.value} {record.template_tokens}" + (
        f" #{record.sibling + 1}" if record.sibling is not None else "")
    if record.error is not None:
        return f"{what}: no answer ({record.error})"
    reused = "reuse not reported" if record.cached_tokens is None else f"reused {record.cached_tokens}"
    wall = "" if record.wall_us is None else f", {record.wall_us / 1e6:.3f} s"
    return f"{what}: {record.path or 'path not reported'}, {reused} of {record.prompt_tokens}{wall}"


def describe_gate(gate: LiveGate) -> str:
    """One line of a gate: how it settled, on how much."""
    counts = f"{gate.trials} of {gate.planned} trials"
    counts += f", {gate.misses} missed" if gate.misses else ""
    counts += f", {gate.gaps} without a sample" if gate.gaps else ""
    return f"{'open' if gate.result is None else gate.result.value} {gate.title}: {counts}"
