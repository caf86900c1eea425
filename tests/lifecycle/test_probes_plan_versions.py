"""What plans claim is a format: receipts with claims verify for ever, and a plan's claims change with its version only.

See docs/probes.md and make_claim_receipts.py, which made the receipts once.
"""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ninfer_lifecycle.gates.plans import PART_CLAIMS, PLAN_PARTS, Asked, compared_sizes, part_size, summary_of
from ninfer_lifecycle.gates.verdict import CheckName, Result
from ninfer_lifecycle.receipts.keys import load_public_key
from ninfer_lifecycle.receipts.sources import read_receipt
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verify import Expectations, VerifiedReceipt, verify

CLAIMS = Path(__file__).parents[1] / "data/receipts/claims"
AT = datetime(2026, 12, 15, tzinfo=UTC)

RELEASE_OF_VERSION_1 = {
    "sibling_continue.fork": 3, "sibling_continue.alive": 3, "sibling_continue.deep": 3,
    "sibling_continue.after_parent_deleted": 1, "sibling_continue.after_sibling_deleted": 2,
    "sibling_continue.deleted_parent_is_gone": 1, "pressure.fork_between_strangers": 11,
    "pressure.reuse_after_full_catalogs": 4, "pressure.newcomer_after_full_catalogs": 3, "multi_session.turn": 18,
    "concurrency.fork_at_once": 6, "concurrency.all_answered": 1, "concurrency.work_is_accounted": 1,
    "concurrency.idle_afterwards": 1, "equivalence.resumed": 4, "equivalence.twin_is_cold": 4,
    "equivalence.same_greedy_tokens": 4, "isolation.continue": 1, "isolation.read": 1, "isolation.delete": 1,
    "isolation.still_there": 1, "isolation.checkpoint": 1, "isolation.identity_conflict": 1,
    "isolation.salts_share_nothing": 1, "isolation.owner_is_hot": 1, "protocol.status": 22, "protocol.error_body": 15,
    "protocol.request_id": 22, "protocol.tokens_add_up": 1, "protocol.status_is_already_true": 1, "leaks.turn": 24,
    "leaks.device_images": 1, "leaks.host_images": 1, "leaks.catalog": 1, "leaks.active_references": 1, "leaks.idle": 1,
    "leaks.counters_rise": 1, "durability.graceful_stop_saves": 1, "durability.hot_after_graceful_stop": 1,
    "durability.kill_keeps_what_was_saved": 1, "durability.hot_after_kill": 1, "durability.damage_is_refused": 1,
}


def asked(plan: str, **more: object) -> Asked:
    return Asked.model_validate({"plan": plan, "sizes": (200, 300), "forks": 4, "repeats": 1, "restarts": 1, **more})


def read(name: str) -> VerifiedReceipt:
    folder = CLAIMS / "v3" if name.startswith("plans3") else CLAIMS
    found = read_receipt(folder / name / f"{name}.test.000001.intoto.json")
    return verify(found.raw, found.files, Expectations(
        trust=trust_keys(Role.QUALIFIER, load_public_key(folder / "qualifier.pub")), now=AT, lock=found.own_lock(),
        results=frozenset(Result))).require()


@pytest.mark.parametrize(("name", "result"), [
    ("plans1", Result.PASSED), ("plans2", Result.PASSED), ("plans2-failed", Result.FAILED),
    ("plans2-open", Result.INCONCLUSIVE), ("plans3", Result.PASSED), ("plans3-failed", Result.FAILED),
    ("plans3-open", Result.INCONCLUSIVE)])
def test_a_receipt_with_claims_verifies_with_its_result(name: str, result: Result) -> None:
    assert read(name).predicate.result is result


def test_what_did_not_pass_then_is_what_did_not_pass() -> None:
    assert [check.subject for check in read("plans2-failed").verdict.not_passed] == ["equivalence.logprobs"]
    assert {check.subject for check in read("plans2-open").verdict.not_passed} == {
        "recall.from_anchor", "recall.after_strangers", "recall.after_restart"}
    assert [check.subject for check in read("plans3-failed").verdict.not_passed] == [
        "pressure_reduced.fork_between_strangers", "pressure_reduced.catalogs_were_full"]
    assert {check.title for check in read("plans3-open").verdict.not_passed} == {
        "multi_session.from_disk", "steps_done"}


def test_a_comparison_with_a_baseline_is_computed_anew_from_the_requests_to_both() -> None:
    found = read("plans2")
    ratios = [check for check in found.verdict.checks if check.name is CheckName.BASELINE_RATIO]
    assert [check.trials for check in ratios] == [6, 6, 6]
    assert "baseline" in {part.name for part in found.predicate.configuration}


def test_the_release_of_the_first_version_claims_what_it_did() -> None:
    claims = {claim.name: claim.trials for claim in summary_of(asked("release")).claims}
    assert claims == RELEASE_OF_VERSION_1


@pytest.mark.parametrize("plan", sorted(PLAN_PARTS))
def test_a_later_version_claims_all_that_an_earlier_one_did(plan: str) -> None:
    first, second, third = (summary_of(asked(plan, planVersion=version)) for version in (1, 2, 3))
    for earlier, later in ((first, second), (second, third)):
        # A quick look compares at one size from its third version on: the same claims, fewer trials.
        before, after = ({claim.name: claim for claim in summary.claims
                          if plan != "quick" or not claim.name.startswith("equivalence.")}
                         for summary in (earlier, later))
        assert before.items() <= after.items()
        assert {claim.name for claim in earlier.claims} <= {claim.name for claim in later.claims}
    assert second.model_copy(update={"claims": first.claims}) == first
    assert third.model_copy(update={"claims": first.claims, "later_epochs": first.later_epochs}) == first


@pytest.mark.parametrize(("plan", "sizes", "expected"), [
    ("quick", (57_853, 28_405), 1_024), ("quick", (2_048, 512), 512), ("release", (57_853, 28_405), 28_405)])
def test_the_parts_of_a_quick_look_are_short(plan: str, sizes: tuple[int, ...], expected: int) -> None:
    assert part_size(plan, sizes) == expected
    assert compared_sizes(asked(plan, sizes=sizes, planVersion=3)) == ((expected,) if plan == "quick" else sizes)


def test_a_quick_look_compares_with_cold_twins_at_one_size_alone() -> None:
    trials = {version: {claim.trials for claim in summary_of(asked("quick", planVersion=version)).claims
                        if claim.name.startswith("equivalence.")} for version in (2, 3)}
    assert trials == {2: {4}, 3: {2}}


def test_the_release_of_the_third_version_asks_every_question_but_recall() -> None:
    from ninfer_lifecycle.gates.plans import parts_of
    third = parts_of(asked("release", planVersion=3))
    assert third.fanout
    assert set(PART_CLAIMS) - set(third.parts) == {"recall"}
    assert third.parts[-2:] == ("pressure-reduced", "durability")
    assert summary_of(asked("release", planVersion=3)).later_epochs == 1 + 4


def test_parts_of_a_profile_are_claimed_beside_the_plans_own_and_those_that_restart_come_last() -> None:
    from ninfer_lifecycle.gates.plans import parts_of
    composed = asked("quick", parts=("durability", "recall", "leaks"), planVersion=2)
    assert parts_of(composed).parts == ("isolation", "protocol", "equivalence", "leaks", "recall", "durability")
    assert summary_of(composed).later_epochs == 4


def test_every_claim_has_one_name_over_all_parts() -> None:
    everything = asked("fanout", parts=tuple(PART_CLAIMS), baseline="other", topLogprobs=3, planVersion=2)
    names = [claim.name for claim in summary_of(everything).claims]
    assert len(names) == len(set(names))
