"""Claims of ratios: two kinds of requests in interleaved blocks, to two engines or to one, judged over blocks."""

from collections.abc import Sequence
from typing import Literal, assert_never

from ninfer_lifecycle.evidence import RequestEvidence
from ninfer_lifecycle.gates.blocks import Block, compare
from ninfer_lifecycle.gates.tally import Evidence, is_failed
from ninfer_lifecycle.gates.thresholds import Claim
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result, Unit

Measure = Literal["first_token", "decode", "seen_first_token"]


def ratio_check(claim: Claim, evidence: Evidence) -> Check:
    """The check of a ratio claim. A block that has a side without a measured answer is a gap, and no block."""
    records = [record for record in evidence.requests
               if record.purpose in {claim.name, claim.against or claim.name} and record.block is not None]
    limit = claim.max_ratio_ppm or 0
    numbers = sorted({record.block for record in records if record.block is not None})
    blocks = [block for number in numbers if (block := _block(number, records, claim)) is not None]
    result, interval = compare(blocks, limit)
    reason = None
    if len(blocks) < claim.trials:
        result, reason = Result.INCONCLUSIVE, f"{len(blocks)} of {claim.trials} planned blocks have both sides"
    elif result is not Result.PASSED and interval is not None:
        reason = f"{interval.ratio_ppm} ppm of {claim.against or 'the baseline'}, {interval.low_ppm} to " \
                 f"{interval.high_ppm} over blocks, allowed are {limit}"
    return Check(
        name=CheckName.BASELINE_RATIO, subject=claim.name, trials=len(blocks), misses=int(result is Result.FAILED),
        unreported=max(0, claim.trials - len(blocks)), failed=0, unit=Unit.PPM, threshold=limit,
        observed=interval.ratio_ppm if interval else None, result=result, reason=reason,
        evidence=tuple(record.request_id for record in records))


def _block(number: int, records: Sequence[RequestEvidence], claim: Claim) -> Block | None:
    own: list[int] = []
    other: list[int] = []
    for record in records:
        value = measured(record, claim.measure or "first_token")
        if record.block == number and value:
            theirs = record.purpose == claim.against if claim.against else record.engine == "baseline"
            (other if theirs else own).append(value + (claim.floor_us or 0))
    return Block(str(number), tuple(own), tuple(other)) if own and other else None


def measured(record: RequestEvidence, measure: Measure) -> int | None:
    """What a request took: microseconds to the first token, or picoseconds a decoded token; None of no answer.

    By the engine's own clock where it reports one, so that the network and the prober are not in it; seen_first_token
    is by the prober's clock alone, as any client sees it.
    """
    if is_failed(record):
        return None
    match measure:
        case "first_token":
            return record.engine_ttft_us or record.first_token_us
        case "seen_first_token":
            return record.first_token_us
        case "decode":
            took, tokens = record.engine_decode_us or record.decode_us, record.completion_tokens
            return took * 1_000_000 // (tokens - 1) if took and tokens and tokens > 1 else None
        case _:
            assert_never(measure)
