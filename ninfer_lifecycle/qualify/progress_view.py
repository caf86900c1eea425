"""The live view of a run, as rich draws it: the step and its neighbours, time left, forks by size, gates, pools.

The view is as tall as the terminal at most: gates that need no attention and steps that are far off go first.
"""

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.evidence import StepEvidence
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.qualify.progress_state import ProgressState, describe_request
from ninfer_lifecycle.qualify.settling import LiveGate
from ninfer_lifecycle.sparks import span, sparkline
from ninfer_lifecycle.text import plain

_STEPS_BEFORE, _STEPS_AFTER = 2, 3
_FIXED_LINES = 16
_AIRY, _BLANKS = 30, 5  # from so many lines on, blocks have an empty line between them
MARKS = {Result.PASSED: ("✓", "green"), Result.FAILED: ("✗", "bold red"), Result.INCONCLUSIVE: ("?", "bold yellow"),
         None: ("·", "dim")}


def view(state: ProgressState, status: StatusDocument | None, height: int) -> Group:
    """Everything, at most about `height` lines."""
    if not state.total:
        return Group(Text("starting the engine", style="bold"))
    airy = height >= _AIRY
    names = () if state.expected is None else state.expected.steps
    blocks: list[Sequence[RenderableType]] = [(_head(state), _bar(state.fraction))]
    if height >= _FIXED_LINES and len(names) >= state.total:
        blocks.append((_steps(names[-state.total:], state.index, state.ended),))
    if state.last is not None:
        blocks.append((Text(plain(describe_request(state.last)), style="red" if state.last.error else "",
                            overflow="ellipsis", no_wrap=True),))
    if state.forks_us:
        blocks.append((_forks(state.forks_by_size, state.cold_by_size),))
    if state.gates:
        room = height - _FIXED_LINES - len(state.forks_by_size) - (_BLANKS if airy else 0)
        blocks.append(_gates(state.gates, max(3, room)))
    if status is not None:
        blocks.append((_pools(status),))
    gap = (Text(),) if airy else ()
    return Group(*(part for number, block in enumerate(blocks) for part in (*(gap if number else ()), *block)))


def warning(text: str, *, failed: bool) -> Text:
    """A line that stays above the view: red for what failed, yellow for what could not be told."""
    return Text(plain(text), style="bold red" if failed else "yellow")


def _head(state: ProgressState) -> Text:
    left = "" if state.eta_s is None else f", about {span(state.eta_s)} left"
    asked = "1 request" if state.requests == 1 else f"{state.requests} requests"
    unanswered = f", {state.unanswered} without an answer" if state.unanswered else ""
    return Text.assemble(
        (f"step {state.index + 1}/{state.total}  {plain(state.step)}", "bold"),
        (f"   {span(state.elapsed_s)}{left}, {asked}", "dim"), (unanswered, "red"),
        no_wrap=True, overflow="ellipsis")


def _bar(fraction: float) -> Table:
    """A bar on a line of its own; a bare ProgressBar does not end its line."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=fraction, width=60, complete_style="cyan"),
                 Text(f"{fraction:.0%} of the tokens", "dim"))
    return grid


def _steps(names: Sequence[str], index: int, ended: Mapping[int, StepEvidence]) -> Table:
    """The step that runs, those just before it with their walls, and those to come."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right")
    for place in range(max(0, index - _STEPS_BEFORE), min(len(names), index + _STEPS_AFTER + 1)):
        done = ended.get(place)
        mark, style = (("▶", "bold") if place == index and done is None
                       else ("·", "dim") if done is None
                       else ("✓", "dim") if done.outcome == "done" else ("✗", "yellow"))
        grid.add_row(Text(f"  {mark}", style=style), Text(plain(names[place]), style=style),
                     Text("" if done is None else f"{done.wall_us / 1e6:.2f} s", style="dim"))
    return grid


def _forks(forks: Mapping[int, list[int]], cold: Mapping[int, int]) -> Table:
    """One row a template size; a block a fork, scaled to the slowest of its size."""
    grid = Table.grid(padding=(0, 2))
    for name in ("template", "cold", "fork walls", "median", "slowest"):
        grid.add_column(justify="left" if name == "fork walls" else "right")
    grid.add_row(*(Text(name, style="dim") for name in ("template", "cold", "fork walls", "median", "slowest")))
    for tokens in sorted(forks):
        walls = forks[tokens]
        was = cold.get(tokens)
        grid.add_row(f"{tokens:,}", "-" if was is None else f"{was / 1e6:.3f} s",
                     Text(sparkline(walls, 32), style="cyan"), f"{statistics.median(walls) / 1e6:.3f} s",
                     f"{max(walls) / 1e6:.3f} s")
    return grid


def _gates(gates: Sequence[LiveGate], lines: int) -> list[RenderableType]:
    """What did not pass first, then what is under way, then what passed last; a count of each."""
    counts = {result: sum(gate.result is result for gate in gates) for result in MARKS}
    words = [(Result.PASSED, "passed"), (Result.FAILED, "failed"), (Result.INCONCLUSIVE, "inconclusive"),
             (None, "open")]
    head = Text.assemble("gates  ", *((f"{MARKS[result][0]} {counts[result]} {word}  ", MARKS[result][1])
                                      for result, word in words if counts[result]))
    rank = {Result.FAILED: 0, Result.INCONCLUSIVE: 1, None: 2, Result.PASSED: 3}
    under_way = [gate for gate in gates if gate.result is not None or gate.trials]
    shown = sorted(under_way, key=lambda gate: rank[gate.result])[:lines]
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right")
    for gate in shown:
        mark, style = MARKS[gate.result]
        missed = f", {gate.misses} missed" if gate.misses else ""
        gaps = f", {gate.gaps} without a sample" if gate.gaps else ""
        grid.add_row(Text(f"  {mark}", style=style), Text(gate.title, style=style),
                     Text(f"{gate.trials}/{gate.planned}{missed}{gaps}", style=style))
    return [head, grid] if shown else [head]


def _pools(status: StatusDocument) -> Table:
    cache = status.cache
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(f"{name} {pool.occupied:,}/{pool.capacity:,}", style="dim") for name, pool in (
        ("device images", cache.device_state), ("host images", cache.host_state), ("device pages", cache.device_kv),
        ("private catalog", cache.private_catalog))))
    return table
