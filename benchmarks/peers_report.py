"""Blocks of figures as tables: medians over rounds, and ours against each peer as ratios."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers_block import Figures


@dataclass(frozen=True, slots=True)
class Column:
    """One figure. value: of a block; None: this engine has none. rate: more is better, else less."""

    title: str
    value: Callable[[Figures], float | None]
    rate: bool = False
    digits: int = 3


COLUMNS = (
    Column("prefill tok/s", lambda block: block.prefill_rate, rate=True, digits=0),
    Column("decode tok/s", lambda block: block.decode_rate, rate=True, digits=0),
    Column("cold s", lambda block: statistics.mean((block.cold, block.cold_again)), digits=2),
    Column("first fork s", lambda block: block.first_fork),
    Column("other forks s", lambda block: statistics.median(block.forks) if block.forks else None),
    Column("from T/2 s", lambda block: block.middle, digits=2),
    Column("from T/2 again s", lambda block: block.middle_again, digits=2),
    Column("six at once s", lambda block: block.at_once, digits=2),
    Column("after a stranger s", lambda block: block.after_stranger),
    Column("first fork, new process s", lambda block: block.new_process),
)


def table(blocks: Sequence[Figures], engines: Sequence[str], columns: Sequence[Column] = COLUMNS) -> str:
    """One size: a line an engine, then a line a peer with how many times ours is ahead (above 1) or behind."""
    present = [name for name in engines if any(block.engine == name for block in blocks)]
    found = {name: [_median(column, [block for block in blocks if block.engine == name]) for column in columns]
             for name in present}
    lines = ["| engine | " + " | ".join(column.title for column in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [_line(name, [_figure(value, column.digits) for value, column in zip(found[name], columns, strict=True)])
              for name in present]
    if "ours" in found:
        lines += [_line(f"ours ahead of {name}", [
            _ahead(ours, peer, column) for ours, peer, column in zip(
                found["ours"], found[name], columns, strict=True)])
            for name in present if name != "ours"]
    return "\n".join(lines)


def reuse_notes(blocks: Sequence[Figures]) -> list[str]:
    """What the engines say of tokens that they did not compute, where a fork was not resumed as deep as it could be."""
    notes = []
    for block in blocks:
        deep = block.tokens - block.tokens // 8
        cold = [count for count in block.reused_at_once if (count or 0) < deep]
        if cold:
            notes.append(f"{block.engine}: {len(cold)} of {len(block.reused_at_once)} forks at once reused only "
                         f"{sorted(count or 0 for count in cold)} of {block.tokens:,} tokens")
        if block.reused_middle is not None:
            notes.append(f"{block.engine}: the first fork from T/2 reused {block.reused_middle:,} tokens of "
                         f"{block.tokens // 2:,}")
    return notes


def _median(column: Column, blocks: Sequence[Figures]) -> float | None:
    values = [value for block in blocks if (value := column.value(block)) is not None]
    return statistics.median(values) if values else None


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ahead(ours: float | None, peer: float | None, column: Column) -> str:
    if ours is None or peer is None:
        return "-"
    return f"{ours / peer if column.rate else peer / ours:.2f}x"


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"
