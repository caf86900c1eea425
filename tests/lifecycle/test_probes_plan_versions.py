"""What plans claim is a format: receipts with claims verify for ever, and a plan's claims change with its version only.

See docs/probes.md and make_claim_receipts.py, which made the receipts once.
"""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ninfer_lifecycle.gates.plans import PART_CLAIMS, PLAN_PARTS, Asked, summary_of
from ninfer_lifecycle.gates.verdict import CheckName, Result
from ninfer_lifecycle.receipts.keys import load_public_key
from ninfer_lifecycle.receipts.sources import read_receipt
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verify import Expectations, VerifiedReceipt, verify

CLAIMS = Path(__file__).parents[1] / "data/receipts/claims"
AT = datetime(2026, 12, 1, tzinfo=UTC)

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
    found = read_receipt(CLAIMS / name / f"{name}.test.000001.intoto.json")
    return verify(found.raw, found.files, Expectations(
        trust=trust_keys(Role.QUALIFIER, load_public_key(CLAIMS / "qualifier.pub")), now=AT, lock=found.own_lock(),
        results=frozenset(Result))).require()


@pytest.mark.parametrize(("name", "result"), [
    ("plans1", Result.PASSED), ("plans2", Result.PASSED), ("plans2-failed", Result.FAILED),
    ("plans2-open", Result.INCONCLUSIVE)])
def test_a_receipt_with_claims_verifies_with_its_result(name: str, result: Result) -> None:
    assert read(name).predicate.result is result


def test_what_did_not_pass_then_is_what_did_not_pass() -> None:
    assert [check.subject for check in read("plans2-failed").verdict.not_passed] == ["equivalence.logprobs"]
    assert {check.subject for check in read("plans2-open").verdict.not_passed} == {
        "recall.from_anchor", "recall.after_strangers", "recall.after_restart"}


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
    first, second = (summary_of(asked(plan, planVersion=version)) for version in (1, 2))
    assert {claim.name: claim for claim in first.claims}.items() <= {
        claim.name: claim for claim in second.claims}.items()
    assert second.model_copy(update={"claims": first.claims}) == first


def test_parts_of_a_profile_are_claimed_beside_the_plans_own_and_those_that_restart_come_last() -> None:
    from ninfer_lifecycle.gates.plans import parts_of
    composed = asked("quick", parts=("durability", "recall", "leaks"), planVersion=2)
    assert parts_of(composed).parts == ("isolation", "protocol", "equivalence", "leaks", "recall", "durability")
    assert summary_of(composed).later_epochs == 4


def test_every_claim_has_one_name_over_all_parts() -> None:
    everything = asked("fanout", parts=tuple(PART_CLAIMS), baseline="other", topLogprobs=3, planVersion=2)
    names = [claim.name for claim in summary_of(everything).claims]
    assert len(names) == len(set(names))
