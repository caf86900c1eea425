"""Progress of a run: what is known (pure), and the displays that show it, one for terminals and one for logs."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.evidence import RequestEvidence, Step, StepEvidence
from ninfer_lifecycle.probes.run import Watcher

_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass
class ProgressState:
    """What a display needs, and no display. Costs are in tokens; `eta_s` is None until something was measured."""

    clock: Callable[[], float]
    step: str = ""
    index: int = 0
    total: int = 0
    done_cost: int = 0
    total_cost: int = 0
    started: float = 0.0
    forks_us: list[int] = field(default_factory=list)
    last: RequestEvidence | None = None

    def begin(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None:
        """A step starts."""
        if index == 0:
            self.started = self.clock()
        self.step, self.index, self.total = name, index, total
        self.done_cost, self.total_cost = done_cost, total_cost

    def note(self, record: RequestEvidence) -> None:
        """A request is done."""
        self.last = record
        if record.step is Step.FORK and record.wall_us is not None and record.error is None:
            self.forks_us.append(record.wall_us)

    @property
    def fraction(self) -> float:
        """Share of the plan's estimated tokens that is done, 0..1."""
        return self.done_cost / self.total_cost if self.total_cost else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the pace so far."""
        if self.fraction <= 0:
            return None
        return (self.clock() - self.started) * (1 - self.fraction) / self.fraction

    def sparkline(self, width: int = 24) -> str:
        """The last fork walls, scaled to the slowest of them."""
        shown = self.forks_us[-width:]
        top = max(shown, default=1) or 1
        return "".join(_BLOCKS[min(len(_BLOCKS) - 1, value * len(_BLOCKS) // (top + 1))] for value in shown)


def describe_request(record: RequestEvidence) -> str:
    """One line of a request: what it was, what it reused, how long it took."""
    what = f"{record.purpose or record.step.value} {record.template_tokens}" + (
        f" #{record.sibling + 1}" if record.sibling is not None else "")
    if record.error is not None:
        return f"{what}: no answer ({record.error})"
    reused = "reuse not reported" if record.cached_tokens is None else f"reused {record.cached_tokens}"
    wall = "" if record.wall_us is None else f", {record.wall_us / 1e6:.3f} s"
    return f"{what}: {record.path or 'path not reported'}, {reused} of {record.prompt_tokens}{wall}"


class PlainDisplay:
    """One line a request and a step, for logs and pipes."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write, self.state = write, ProgressState(clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Nothing to close."""

    def step_started(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None:
        self.state.begin(name, index, total, done_cost, total_cost)
        eta = self.state.eta_s
        self._write(f"[{index + 1}/{total}] {name}" + (f" (about {eta:.0f} s left)" if eta is not None else ""))

    def request_done(self, record: RequestEvidence) -> None:
        self.state.note(record)
        self._write(f"    {describe_request(record)}")

    def step_ended(self, record: StepEvidence) -> None:
        if record.outcome != "done":
            self._write(f"    {record.outcome}: {record.detail}")

    def status_seen(self, status: StatusDocument) -> None:
        """Not shown in lines."""


class LiveDisplay:
    """A live view on a terminal: the step, a bar with the time left, the last request, fork walls, pools."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self.state = ProgressState(clock)
        self._status: StatusDocument | None = None
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._live.stop()

    def step_started(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None:
        self.state.begin(name, index, total, done_cost, total_cost)

    def request_done(self, record: RequestEvidence) -> None:
        self.state.note(record)

    def step_ended(self, record: StepEvidence) -> None:
        if record.outcome != "done":
            self._live.console.print(Text(f"{record.name} {record.outcome}: {record.detail}", style="yellow"))

    def status_seen(self, status: StatusDocument) -> None:
        self._status = status

    def _render(self) -> Group:
        state = self.state
        if not state.total:
            return Group(Text("starting the engine", style="bold"))
        eta = "" if state.eta_s is None else f"  about {state.eta_s:.0f} s left"
        head = Text(f"step {state.index + 1}/{state.total}  {state.step}{eta}", style="bold")
        lines: list[Text | Table] = [head, _bar(state.fraction)]
        if state.last is not None:
            lines.append(Text(describe_request(state.last), style="red" if state.last.error else ""))
        if state.forks_us:
            middle = statistics.median(state.forks_us) / 1e6
            lines.append(Text(f"fork walls {state.sparkline()}  median {middle:.3f} s, "
                              f"slowest {max(state.forks_us) / 1e6:.3f} s"))
        if self._status is not None:
            lines.append(_pools(self._status))
        return Group(*lines)


def _bar(fraction: float) -> Table:
    """A bar on a line of its own; a bare ProgressBar does not end its line."""
    grid = Table.grid()
    grid.add_row(ProgressBar(total=1.0, completed=fraction, width=60))
    return grid


def _pools(status: StatusDocument) -> Table:
    cache = status.cache
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(f"{name} {pool.occupied}/{pool.capacity}", style="dim") for name, pool in (
        ("device images", cache.device_state), ("host images", cache.host_state), ("device pages", cache.device_kv),
        ("private catalog", cache.private_catalog))))
    return table


class Fan:
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def step_started(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None:
        for watcher in self._watchers:
            watcher.step_started(name, index, total, done_cost, total_cost)

    def request_done(self, record: RequestEvidence) -> None:
        for watcher in self._watchers:
            watcher.request_done(record)

    def step_ended(self, record: StepEvidence) -> None:
        for watcher in self._watchers:
            watcher.step_ended(record)

    def status_seen(self, status: StatusDocument) -> None:
        for watcher in self._watchers:
            watcher.status_seen(status)
