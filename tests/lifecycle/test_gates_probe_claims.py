"""Gates that the plans' third version brought: ratios within one engine, other engines, the prober's own share."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_lifecycle.evidence import RequestEvidence, Step, StepEvidence
from ninfer_lifecycle.gates.claims import claim_checks
from ninfer_lifecycle.gates.soundness import overhead_check
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import Claim, Thresholds
from ninfer_lifecycle.gates.verdict import Check, Result

TIMED = Claim(name="isolation.unknown", kind="ratio", trials=6, measure="seen_first_token",
              against="isolation.known", max_ratio_ppm=1_500_000, floor_us=20_000)


def request(number: int, purpose: str, **more: object) -> RequestEvidence:
    return RequestEvidence.model_validate({
        "request_id": f"{number:064x}", "epoch": 0, "order": number, "step": Step.OTHER, "template_tokens": 512,
        "http_status": 200, "purpose": purpose, **more})


def timed(unknown_us: int, known_us: int) -> Check:
    requests = []
    for block in range(6):
        for purpose, took in (("isolation.unknown", unknown_us), ("isolation.known", known_us)):
            requests += [request(len(requests), purpose, block=block, first_token_us=took, engine_ttft_us=1)]
    [check] = claim_checks((TIMED,), Evidence(tuple(requests)))
    return check


@settings(deadline=None, max_examples=40)  # each draws a bootstrap
@given(st.integers(1, 10_000_000), st.integers(1, 10_000_000))
def test_a_ratio_within_one_engine_is_of_what_the_client_saw_with_a_floor_on_both_sides(
    unknown_us: int, known_us: int
) -> None:
    check = timed(unknown_us, known_us)
    assert (check.result is Result.FAILED) == (2 * (unknown_us + 20_000) > 3 * (known_us + 20_000))
    assert check.result is not Result.INCONCLUSIVE  # all blocks are alike: the interval is a point


def test_blocks_without_one_of_the_sides_leave_the_ratio_open() -> None:
    requests = tuple(request(number, "isolation.unknown", block=number, first_token_us=9) for number in range(6))
    [check] = claim_checks((TIMED,), Evidence(requests))
    assert (check.result, check.trials, check.unreported) == (Result.INCONCLUSIVE, 0, 6)


def test_a_claim_about_another_engine_is_not_met_by_requests_to_the_one_under_test() -> None:
    claim = Claim(name="pressure_reduced.fork", kind="reuse", trials=1, engine="reduced")
    hit = {"expected_reuse_tokens": 10, "cached_tokens": 10, "reused_tokens": 10}
    own = Evidence((request(1, claim.name, **hit),))
    other = Evidence((request(1, claim.name, engine="reduced", **hit),))
    assert [claim_checks((claim,), seen)[0].result for seen in (own, other)] == [Result.INCONCLUSIVE, Result.PASSED]


def step(wall_us: int, prober_us: int) -> StepEvidence:
    return StepEvidence(epoch=0, order=1, name="a step", outcome="done", wall_us=wall_us, prober_us=prober_us)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**8)), min_size=1, max_size=20))
def test_the_probers_share_is_of_all_steps_and_held_to_its_limit(times: list[tuple[int, int]]) -> None:
    evidence = Evidence((), steps=tuple(step(*pair) for pair in times))
    [check] = overhead_check(Thresholds(max_prober_ppm=30_000), evidence)
    wall, prober = (sum(side) for side in zip(*times, strict=True))
    assert (check.result is Result.PASSED) == (prober * 100 <= wall * 3)


def test_no_limit_no_check_and_no_step_no_verdict() -> None:
    assert overhead_check(Thresholds(), Evidence((), steps=(step(10, 10),))) == []
    [check] = overhead_check(Thresholds(max_prober_ppm=30_000), Evidence(()))
    assert check.result is Result.INCONCLUSIVE
