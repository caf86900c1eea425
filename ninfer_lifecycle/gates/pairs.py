"""Claims against a baseline: the same requests to two engines in interleaved blocks, judged over blocks."""

from collections.abc import Sequence
from typing import Literal, assert_never

from ninfer_lifecycle.evidence import RequestEvidence
from ninfer_lifecycle.gates.blocks import Block, compare
from ninfer_lifecycle.gates.tally import Evidence, is_failed
from ninfer_lifecycle.gates.thresholds import Claim
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result, Unit

Measure = Literal["first_token", "decode"]


def ratio_check(claim: Claim, evidence: Evidence) -> Check:
    """The check of a ratio claim. A block that has a side without a measured answer is a gap, and no block."""
    records = [record for record in evidence.requests if record.purpose == claim.name and record.block is not None]
    measure, limit = claim.measure or "first_token", claim.max_ratio_ppm or 0
    numbers = sorted({record.block for record in records if record.block is not None})
    blocks = [block for number in numbers if (block := _block(number, records, measure)) is not None]
    result, interval = compare(blocks, limit)
    reason = None
    if len(blocks) < claim.trials:
        result, reason = Result.INCONCLUSIVE, f"{len(blocks)} of {claim.trials} planned blocks have both sides"
    elif result is not Result.PASSED and interval is not None:
        reason = f"{interval.ratio_ppm} ppm of the baseline, {interval.low_ppm} to {interval.high_ppm} over blocks, " \
                 f"allowed are {limit}"
    return Check(
        name=CheckName.BASELINE_RATIO, subject=claim.name, trials=len(blocks), misses=int(result is Result.FAILED),
        unreported=max(0, claim.trials - len(blocks)), failed=0, unit=Unit.PPM, threshold=limit,
        observed=interval.ratio_ppm if interval else None, result=result, reason=reason,
        evidence=tuple(record.request_id for record in records))


def _block(number: int, records: Sequence[RequestEvidence], measure: Measure) -> Block | None:
    sides: dict[str | None, list[int]] = {None: [], "baseline": []}
    for record in records:
        value = measured(record, measure)
        if record.block == number and value:
            sides[record.engine].append(value)
    if not sides[None] or not sides["baseline"]:
        return None
    return Block(str(number), tuple(sides[None]), tuple(sides["baseline"]))


def measured(record: RequestEvidence, measure: Measure) -> int | None:
    """What a request took: microseconds to the first token, or picoseconds a decoded token; None of no answer.

    By the engine's own clock where it reports one, so that the network and the prober are not in it.
    """
    if is_failed(record):
        return None
    match measure:
        case "first_token":
            return record.engine_ttft_us or record.first_token_us
        case "decode":
            took, tokens = record.engine_decode_us or record.decode_us, record.completion_tokens
            return took * 1_000_000 // (tokens - 1) if took and tokens and tokens > 1 else None
        case _:
            assert_never(measure)
