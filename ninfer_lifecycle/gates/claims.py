"""Claims of the plans beside fan-out: reuse as deep as the prober's ledger allows, and facts that must hold.

A plan names its claims and how many trials each needs, so that what is missing shows; the evidence holds, for each
request or fact, what was seen and what it is held to. One that does not hold fails its claim.
"""

from typing import assert_never

from ninfer_lifecycle.evidence import FactEvidence, RequestEvidence
from ninfer_lifecycle.gates.pairs import ratio_check
from ninfer_lifecycle.gates.tally import Evidence, Judgement, Place, reported_reuse, settle, simple, tally
from ninfer_lifecycle.gates.thresholds import Claim
from ninfer_lifecycle.gates.verdict import Check, CheckName, Unit


def claim_checks(claims: tuple[Claim, ...], evidence: Evidence) -> list[Check]:
    """One check a claim, in the plan's order."""
    return [_check(claim, evidence) for claim in claims]


def _check(claim: Claim, evidence: Evidence) -> Check:
    match claim.kind:
        case "reuse":
            return _reuse(claim, evidence)
        case "fact":
            return _fact(claim, evidence)
        case "ratio":
            return ratio_check(claim, evidence)
        case _:
            assert_never(claim.kind)


def _reuse(claim: Claim, evidence: Evidence) -> Check:
    records = [record for record in evidence.requests if record.purpose == claim.name and record.engine == claim.engine]
    counted = tally(records, _judge)
    check = settle(CheckName.REUSE_AS_EXPECTED, Place(), counted, expected=claim.trials, unit=Unit.TOKENS,
                   threshold=0, observed=max(counted.observed, default=None))
    return check.model_copy(update={"subject": claim.name})


def _judge(record: RequestEvidence) -> Judgement:
    """The figure is what is missing to the expected reuse, 0 for a hit."""
    reused, expected = reported_reuse(record), record.expected_reuse_tokens
    if reused is None or expected is None:
        return Judgement(None)
    return Judgement(reused >= expected, max(0, expected - reused))


def _fact(claim: Claim, evidence: Evidence) -> Check:
    facts = [fact for fact in evidence.facts if fact.claim == claim.name]
    seen = [fact for fact in facts if fact.observed is not None]
    misses = [_sentence(fact) for fact in seen if not holds(fact)]
    gaps = [f"fact/{fact.order} was not observed: {fact.detail or 'no reason given'}"
            for fact in facts if fact.observed is None]
    if len(facts) < claim.trials:
        gaps.append(f"{len(facts)} of {claim.trials} planned trials were made")
    ids = [f"fact/{fact.order}" for fact in facts]
    check = simple(CheckName.FACT_HOLDS, Place(), ids=ids, misses=misses, gaps=gaps, trials=len(seen))
    return check.model_copy(update={"subject": claim.name})


def holds(fact: FactEvidence) -> bool:
    """Whether what was observed is as required."""
    if fact.observed is None:
        return False
    match fact.relation:
        case "equal":
            return fact.observed == fact.required
        case "at_most":
            return fact.observed <= fact.required
        case "at_least":
            return fact.observed >= fact.required
        case _:
            assert_never(fact.relation)


def _sentence(fact: FactEvidence) -> str:
    words = {"equal": "", "at_most": "at most ", "at_least": "at least "}[fact.relation]
    return f"fact/{fact.order} is {fact.observed}, required {words}{fact.required}" + (
        f" ({fact.detail})" if fact.detail else "")
