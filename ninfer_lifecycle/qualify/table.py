"""What a person sees at the end: walls and reuse by size and epoch, what did not pass, the verdict."""

import statistics
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.tally import Evidence, is_failed, reported_reuse
from ninfer_lifecycle.gates.verdict import Result, Verdict
from ninfer_lifecycle.qualify.budget import prober_share_ppm

STYLES = {Result.PASSED: "green", Result.FAILED: "red", Result.INCONCLUSIVE: "yellow"}


def walls_table(evidence: Evidence) -> Table:
    """One row a template and epoch: the cold wall, each fork's wall in order, the ratio of medians, who was hot."""
    table = Table(box=None, pad_edge=False)
    for column in ("template", "epoch", "cold s", "fork s, in order", "fork/cold", "hot", "resume s"):
        table.add_column(column, justify="left" if column == "fork s, in order" else "right")
    sizes = sorted({record.template_tokens for record in evidence.of(Step.BASE)})
    for tokens in sizes:
        cold = _walls(evidence.of(Step.BASE, tokens))
        for epoch in sorted({record.epoch for record in evidence.of(Step.FORK, tokens)}):
            forks = evidence.of(Step.FORK, tokens, epoch)
            walls, resumes = _walls(forks), _walls(evidence.of(Step.RESUME, tokens, epoch))
            ratio = f"{statistics.median(walls) / statistics.median(cold):.4f}" if walls and cold else "-"
            hot = sum((reported_reuse(record) or 0) >= tokens for record in forks if not is_failed(record))
            table.add_row(f"{tokens:,}", str(epoch), _seconds(cold) if epoch == 0 else "", _seconds(walls), ratio,
                          f"{hot}/{len(forks)}", _seconds(resumes))
    return table


def verdict_text(verdict: Verdict) -> Text:
    """The result first, then what did not pass, failing checks before inconclusive ones."""
    settled = len(verdict.checks) + len(verdict.controls)
    text = Text.assemble((verdict.result.value, f"bold {STYLES[verdict.result]}"),
                         f"  {settled - len(verdict.not_passed)} of {settled} checks passed")
    for check in verdict.not_passed:
        text.append(f"\n  {check.result.value}", style=STYLES[check.result])
        text.append(f"  {check.title}: {check.reason}")
    return text


def overhead_text(evidence: Evidence) -> str:
    """The prober's own share of the run, so that its load is seen not to be the result."""
    share = prober_share_ppm(evidence.steps)
    wall = sum(step.wall_us for step in evidence.steps) / 1e6
    return f"{len(evidence.requests)} requests in {wall:.1f} s, {(share or 0) / 10_000:.2f}% of it the prober's own"


def _walls(records: Sequence[RequestEvidence]) -> list[int]:
    return [record.wall_us for record in records if not is_failed(record) and record.wall_us is not None]


def _seconds(walls: Sequence[int]) -> str:
    return " ".join(f"{wall / 1e6:.3f}" for wall in walls) or "-"
