"""Paired comparisons of timings: one ratio a block, an interval over blocks, a margin, three outcomes.

Blocks (the same size in the same epoch, or A/B/B/A rounds) carry what drifts, so that only their ratios are compared.
The bootstrap draws from a counter-mode SHA-256 stream, so that an interval is the same wherever it is computed.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ninfer_lifecycle.gates.base import PPM
from ninfer_lifecycle.gates.errors import GateError
from ninfer_lifecycle.gates.stats import median, percentile
from ninfer_lifecycle.gates.verdict import Result

MIN_BLOCKS = 6
_RESAMPLES = 2000


@dataclass(frozen=True)
class Block:
    """One comparison under like conditions: microseconds of the candidate and of the baseline."""

    name: str
    candidate_us: tuple[int, ...]
    baseline_us: tuple[int, ...]


@dataclass(frozen=True)
class RatioInterval:
    """Median of the block ratios, candidate over baseline, in ppm, with a two-sided 90% bootstrap interval."""

    blocks: int
    ratio_ppm: int
    low_ppm: int
    high_ppm: int


def block_ratio_ppm(block: Block) -> int:
    """Ratio of the medians of one block in ppm, rounded up. A side without samples or without time is an error."""
    baseline = median(block.baseline_us)
    if baseline <= 0:
        raise GateError(f"block {block.name}: the baseline took no time", "Check the prober's clock.")
    return -(-median(block.candidate_us) * PPM // baseline)


def ratio_interval(blocks: Sequence[Block]) -> RatioInterval:
    """Bootstrap over blocks (not over samples: siblings of one block are not independent)."""
    ratios = [block_ratio_ppm(block) for block in blocks]
    draws = _draws(ratios)
    medians = [median([ratios[next(draws)] for _ in ratios]) for _ in range(_RESAMPLES)]
    return RatioInterval(len(ratios), median(ratios), percentile(medians, 50_000), percentile(medians, 950_000))


def compare(blocks: Sequence[Block], max_ratio_ppm: int) -> tuple[Result, RatioInterval | None]:
    """PASSED when the whole interval is within the margin, FAILED when all of it is beyond, else INCONCLUSIVE.

    Fewer than MIN_BLOCKS blocks are INCONCLUSIVE, whatever their ratios; of none there is no interval.
    """
    if not blocks:
        return Result.INCONCLUSIVE, None
    interval = ratio_interval(blocks)
    if interval.blocks < MIN_BLOCKS:
        return Result.INCONCLUSIVE, interval
    if interval.high_ppm <= max_ratio_ppm:
        return Result.PASSED, interval
    return (Result.FAILED if interval.low_ppm > max_ratio_ppm else Result.INCONCLUSIVE), interval


def _draws(ratios: Sequence[int]) -> Iterator[int]:
    """Indices into `ratios`, uniform to within 2^-56, seeded by the ratios themselves."""
    seed = ",".join(map(str, ratios)).encode()
    counter = 0
    while True:
        digest = hashlib.sha256(seed + b"/" + str(counter).encode()).digest()
        counter += 1
        for start in range(0, 32, 8):
            yield int.from_bytes(digest[start : start + 8], "big") * len(ratios) >> 64
