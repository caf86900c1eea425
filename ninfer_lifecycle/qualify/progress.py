"""Displays of a run's progress: one for terminals and one for logs."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.evidence import RequestEvidence, StepEvidence
from ninfer_lifecycle.probes.run import Watcher
from ninfer_lifecycle.qualify.progress_state import ProgressState, describe_gate, describe_request
from ninfer_lifecycle.qualify.progress_view import view, warning
from ninfer_lifecycle.qualify.settling import Expected
from ninfer_lifecycle.sparks import span

__all__ = ["Fan", "LiveDisplay", "PlainDisplay", "ProgressState", "describe_request"]


class PlainDisplay:
    """One line a request, a step and a gate that settled, for logs and pipes."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float],
                 expected: Expected | None = None) -> None:
        self._write, self.state = write, ProgressState(clock, expected)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Nothing to close."""

    def step_started(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None:
        self.state.begin(name, index, total, done_cost, total_cost)
        eta = self.state.eta_s
        self._write(f"[{index + 1}/{total}] {name}" + (f" (about {span(eta)} left)" if eta is not None else ""))

    def request_done(self, record: RequestEvidence) -> None:
        settled = self.state.note(record)
        self._write(f"    {describe_request(record)}")
        for gate in settled:
            self._write(f"    gate {describe_gate(gate)}")

    def step_ended(self, record: StepEvidence) -> None:
        self.state.end(record)
        if record.outcome != "done":
            self._write(f"    {record.outcome}: {record.detail}")

    def status_seen(self, status: StatusDocument) -> None:
        """Not shown in lines."""


class LiveDisplay:
    """A live view on a terminal. What must not be lost (a step that failed, a gate that did) is also printed above."""

    def __init__(self, console: Console, clock: Callable[[], float], expected: Expected | None = None) -> None:
        self.state = ProgressState(clock, expected)
        self._status: StatusDocument | None = None
        self._console = console
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
        for gate in self.state.note(record):
            if gate.misses or gate.gaps:
                self._live.console.print(warning(describe_gate(gate), failed=bool(gate.misses)))

    def step_ended(self, record: StepEvidence) -> None:
        self.state.end(record)
        if record.outcome != "done":
            self._live.console.print(warning(f"{record.name} {record.outcome}: {record.detail}",
                                             failed=record.outcome == "failed"))

    def status_seen(self, status: StatusDocument) -> None:
        self._status = status

    def _render(self) -> Group:
        return view(self.state, self._status, self._console.height)


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
