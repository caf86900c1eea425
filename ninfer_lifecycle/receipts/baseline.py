"""Comparing the walls of two receipts: like with like, or not at all."""

from dataclasses import dataclass

from ninfer_lifecycle.gates.blocks import MIN_BLOCKS, Block, RatioInterval, compare
from ninfer_lifecycle.gates.timing import fork_walls
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.verify import VerifiedReceipt


@dataclass(frozen=True)
class BaselineComparison:
    """Fork walls of a receipt over those of its baseline; blocks are templates and epochs that both have."""

    result: Result
    reason: str
    interval: RatioInterval | None = None


def compare_with_baseline(
    candidate: VerifiedReceipt, baseline: VerifiedReceipt, max_ratio_ppm: int
) -> BaselineComparison:
    """PASSED within the margin, FAILED beyond; INCONCLUSIVE for another lane, host or hardware, or too few blocks."""
    for name, mine, theirs in (
        ("lane", candidate.predicate.lane, baseline.predicate.lane),
        ("host", candidate.predicate.environment.host, baseline.predicate.environment.host),
        ("hardware", candidate.predicate.environment.hardware_class, baseline.predicate.environment.hardware_class),
    ):
        if mine != theirs:
            return BaselineComparison(Result.INCONCLUSIVE, f"another {name}: {mine} against {theirs}")
    blocks = _blocks(candidate, baseline)
    result, interval = compare(blocks, max_ratio_ppm)
    if interval is None:
        return BaselineComparison(result, "the two have no template and epoch in common")
    figures = f"forks take {_percent(interval.ratio_ppm)} of the baseline's wall ({_percent(interval.low_ppm)} to " \
              f"{_percent(interval.high_ppm)} over {interval.blocks} blocks), allowed are {_percent(max_ratio_ppm)}"
    few = f"; {MIN_BLOCKS} blocks are needed" if interval.blocks < MIN_BLOCKS else ""
    return BaselineComparison(result, figures + few, interval)


def _blocks(candidate: VerifiedReceipt, baseline: VerifiedReceipt) -> list[Block]:
    blocks = []
    for tokens in candidate.policy.plan.template_tokens:
        for epoch in range(candidate.policy.plan.epochs):
            mine = fork_walls(candidate.evidence, tokens, epoch)
            theirs = fork_walls(baseline.evidence, tokens, epoch)
            if mine and theirs:
                blocks.append(Block(f"{tokens}/{epoch}", tuple(mine), tuple(theirs)))
    return blocks


def _percent(ppm: int) -> str:
    return f"{ppm // 10_000}.{ppm // 1000 % 10}%"
