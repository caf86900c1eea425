"""The gate of a release: what lets a lock file through, and every way in which it must not be talked into it."""

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from receipt_cases import (
    LOCK,
    NOW,
    PLAN,
    POLICY,
    chained,
    check,
    expectations,
    honest_evidence,
    is_fork,
    receipt,
    signer,
    spoil,
)

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.errors import RefusedError, UsageError
from ninfer_lifecycle.evidence import Step as Request
from ninfer_lifecycle.gates.release import ReleasePolicy
from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds
from ninfer_lifecycle.gates.verdict import CheckName, Result
from ninfer_lifecycle.receipts import dsse
from ninfer_lifecycle.receipts.attachments import MemoryFiles
from ninfer_lifecycle.receipts.baseline import compare_with_baseline
from ninfer_lifecycle.receipts.build import ReceiptFiles
from ninfer_lifecycle.receipts.canonical import canonical
from ninfer_lifecycle.receipts.decision import ALLOWED, DecisionInputs, build_decision, verify_decision
from ninfer_lifecycle.receipts.policy_file import default_policy, parse_policy
from ninfer_lifecycle.receipts.release_gate import Candidate, Decision, decide
from ninfer_lifecycle.receipts.statement import Environment
from ninfer_lifecycle.receipts.trust import Role, RoleTrust, TrustedKey, trust_keys
from ninfer_lifecycle.receipts.verify import Step

TRUST = trust_keys(Role.QUALIFIER, signer(1).public_key)
RULES = default_policy().policy
COLD = spoil(honest_evidence(), is_fork(1000, 0, 2), reused_tokens=0, cached_tokens=0, computed_tokens=1058,
             counter_computed_tokens=1058)
GOOD = receipt()


def candidate(made: ReceiptFiles, name: str = "a", raw: bytes | None = None) -> Candidate:
    return Candidate(name, made.files[made.receipt_name] if raw is None else raw, MemoryFiles(made.files))


def decided(*made: Candidate | ReceiptFiles, rules: ReleasePolicy = RULES, trust: RoleTrust = TRUST, now: Any = NOW,
            lock: bytes = LOCK) -> Decision:
    items = [item if isinstance(item, Candidate) else candidate(item, str(n)) for n, item in enumerate(made)]
    return decide(lock, items, rules, trust, now)


def reasons(decision: Decision) -> str:
    assert not decision.allowed
    assert decision.missing
    with pytest.raises(RefusedError):
        decision.require()
    return " | ".join(item.reason for item in (*decision.missing, *decision.refusals))


def test_a_fitting_receipt_lets_its_lock_through() -> None:
    decision = decided(GOOD)
    assert decision.allowed
    assert decision.require()[0].receipt.payload_sha256 == GOOD.payload_sha256


def test_nothing_lets_nothing_through() -> None:
    assert "there is none for this lock file" in reasons(decided())


def test_a_receipt_for_another_configuration_is_counted_but_not_taken() -> None:
    assert "1 receipts here are about other configurations" in reasons(decided(receipt(lock=b"another")))


def test_a_changed_receipt_is_refused_by_name() -> None:
    raw = bytearray(GOOD.files[GOOD.receipt_name])
    raw[len(raw) // 2] ^= 1
    decision = decided(candidate(GOOD, "changed", bytes(raw)))
    assert decision.refusals[0].name == "changed"
    assert decision.refusals[0].step in (Step.SIGNATURE, Step.BASE64, Step.ENVELOPE)
    reasons(decision)


def test_a_failed_receipt_is_refused_with_the_check_that_failed() -> None:
    assert "fork_hits 1000 tokens epoch 0 is FAILED" in reasons(decided(receipt(COLD)))


def test_a_newer_failure_stands_in_the_way_of_an_older_pass() -> None:
    newer = receipt(COLD, head=chained(GOOD), finished_on=NOW - timedelta(minutes=5))
    assert "FAILED" in reasons(decided(GOOD, newer))
    assert "FAILED" in reasons(decided(newer, GOOD))


def test_an_older_failure_does_not_stand_in_the_way_of_a_newer_pass() -> None:
    older = receipt(COLD)
    newer = receipt(head=chained(older), finished_on=NOW - timedelta(minutes=5))
    decision = decided(older, newer)
    assert decision.require()[0].receipt.predicate.sequence == 2


def test_a_newer_inconclusive_receipt_is_passed_over_with_its_reason() -> None:
    unsaid = receipt(spoil(honest_evidence(), is_fork(480, 0, 0), cached_tokens=None), head=chained(GOOD),
                     finished_on=NOW - timedelta(minutes=5))
    decision = decided(GOOD, unsaid)
    assert decision.allowed
    assert decision.chosen[0].receipt.predicate.sequence == 1
    assert "INCONCLUSIVE" in decision.refusals[0].reason


def test_an_inconclusive_receipt_alone_lets_nothing_through() -> None:
    reasons(decided(receipt(spoil(honest_evidence(), is_fork(480, 0, 0), cached_tokens=None))))


@pytest.mark.parametrize(("now", "word"), [
    (NOW + timedelta(days=90), "expired"), (NOW + timedelta(days=89, hours=23, minutes=1), "older than"),
    (NOW - timedelta(days=1), "has not come yet")])
def test_age_is_checked_against_the_one_clock_value(now: Any, word: str) -> None:
    assert word in reasons(decided(GOOD, now=now))


def test_an_untrusted_key_lets_nothing_through() -> None:
    assert "no key of the role" in reasons(decided(receipt(key=2)))


def test_a_key_of_the_release_role_qualifies_nothing() -> None:
    trust = RoleTrust(Role.QUALIFIER, (TrustedKey(signer(5).public_key),))
    reasons(decided(GOOD, trust=trust))


def test_the_gates_own_thresholds_hold_whatever_the_run_was_held_to() -> None:
    """A run held to nothing passes by its own policy; the release policy reads its evidence anew."""
    weak = QualificationPolicy(plan=PLAN, thresholds=Thresholds(fork_min_reuse_ppm=0, require_work_accounted=False))
    made = receipt(COLD, policy=weak)
    assert made.verdict.result is Result.PASSED
    assert check(made).receipt is not None
    assert "fork_hits 1000 tokens epoch 0 is FAILED" in reasons(decided(made))


def test_stricter_thresholds_of_the_run_are_kept() -> None:
    strict = QualificationPolicy(plan=PLAN, thresholds=Thresholds(never_seen_max_reused_tokens=3))
    assert decided(receipt(policy=strict)).allowed
    held = receipt(spoil(honest_evidence(), lambda r: r.step is Request.CONTROL_NEVER_SEEN, reused_tokens=9,
                         cached_tokens=9, computed_tokens=701, counter_computed_tokens=701), policy=strict)
    assert "control_never_seen" in reasons(decided(held))


@pytest.mark.parametrize(("change", "word"), [
    ({"sizes": (1000, 57_853)}, "no template of 57853 tokens"),
    ({"min_sizes": 3}, "2 template sizes were probed"),
    ({"epochs": 3}, "2 lives of the engine"),
    ({"forks": 8}, "4 forks a template"),
    ({"min_trials": 17}, "16 forks were sampled"),
    ({"required_checks": (CheckName.FORK_TO_COLD,)}, "there is no check fork_to_cold"),
    ({"thresholds": Thresholds(max_slowest_fork_to_cold_ppm=1)}, "slowest_fork_to_cold"),
    ({"max_miss_bound_ppm": 10_000}, "bound the miss rate"),
    ({"max_age": "30m"}, "older than"),
    ({"lanes": ("gpu",)}, "there is none"),
])
def test_what_the_policy_asks_for_beyond_the_run_is_missed(change: dict[str, Any], word: str) -> None:
    assert word in reasons(decided(GOOD, rules=RULES.model_copy(update=change)))


def test_a_run_without_a_restart_does_not_prove_one() -> None:
    plan = PlanSummary(template_tokens=(1000, 480), epochs=1, forks=4, saves=2)
    made = receipt(honest_evidence(plan), policy=QualificationPolicy(plan=plan, thresholds=Thresholds()))
    assert made.verdict.result is Result.PASSED
    assert "lives of the engine" in reasons(decided(made))


def test_limitations_are_allowed_by_name_or_not_at_all() -> None:
    made = receipt(limitations=("the lane was shared with another job",))
    assert "limitation" in reasons(decided(made))
    for allowed in ("the lane was shared with another job", "the lane was*"):
        assert decided(made, rules=RULES.model_copy(update={"allowed_limitations": (allowed,)})).allowed
    reasons(decided(made, rules=RULES.model_copy(update={"allowed_limitations": ("the lane was",)})))


def test_every_lane_needs_its_own_receipt() -> None:
    rules = RULES.model_copy(update={"lanes": ("default", "gpu")})
    assert "lane gpu" in decided(GOOD, rules=rules).missing[0].name
    both = decided(GOOD, receipt(lane="gpu"), rules=rules)
    assert both.allowed
    assert {item.receipt.predicate.lane for item in both.chosen} == {"default", "gpu"}


def test_two_histories_at_one_place_of_a_chain_are_told() -> None:
    decision = decided(GOOD, receipt(limitations=("the model is the tiny one",)))
    assert any("same place in the chain" in item.reason for item in decision.refusals)


DECISION_INPUTS = DecisionInputs("a.lock.json", "default", b"policy", "https://example.org/gate", NOW)
RELEASE = trust_keys(Role.RELEASE, signer(5).public_key)


def test_a_decision_is_signed_for_what_is_allowed_and_for_nothing_else() -> None:
    raw = build_decision(decided(GOOD), DECISION_INPUTS, signer(5))
    found = verify_decision(raw, LOCK, RELEASE, NOW)
    assert found.lock_sha256 == sha256_hex(LOCK)
    assert found.receipts == (GOOD.payload_sha256,)
    assert found.policy_sha256 == sha256_hex(b"policy")
    with pytest.raises(RefusedError):
        build_decision(decided(receipt(COLD)), DECISION_INPUTS, signer(5))


def test_an_old_allow_does_not_serve_another_lock_file() -> None:
    raw = build_decision(decided(GOOD), DECISION_INPUTS, signer(5))
    with pytest.raises(RefusedError, match="not the lock file in hand"):
        verify_decision(raw, LOCK + b" ", RELEASE, NOW)


def test_a_decision_is_refused_by_key_age_and_revocation() -> None:
    raw = build_decision(decided(GOOD), DECISION_INPUTS, signer(5))
    with pytest.raises(RefusedError, match="keys of the role release"):
        verify_decision(raw, LOCK, trust_keys(Role.RELEASE, signer(1).public_key), NOW)
    with pytest.raises(RefusedError, match="too old"):
        verify_decision(raw, LOCK, RELEASE, NOW + timedelta(days=2), timedelta(days=1))
    with pytest.raises(RefusedError, match="time to come"):
        verify_decision(raw, LOCK, RELEASE, NOW - timedelta(days=1))
    with pytest.raises(RefusedError, match="revoked"):
        verify_decision(raw, LOCK, RoleTrust(Role.RELEASE, (TrustedKey(signer(5).public_key, NOW),)), NOW)


def _decision(**change: Any) -> bytes:
    envelope = dsse.decode(dsse.parse_envelope(build_decision(decided(GOOD), DECISION_INPUTS, signer(5))))
    value = json.loads(envelope.payload) | {key: item for key, item in change.items() if key != "predicate"}
    value["predicate"] |= change.get("predicate", {})
    return dsse.encode(dsse.sign(dsse.IN_TOTO, canonical(value), [signer(5)]))


@pytest.mark.parametrize("change", [
    {"predicateType": "https://in-toto.io/attestation/svr/v0.1"}, {"_type": "https://in-toto.io/Statement/v0.1"},
    {"predicate": {"properties": ["NINFER_RELEASE_REFUSED"]}}, {"predicate": {"properties": ALLOWED}},
    {"predicate": {"timeCreated": "2026-09-05T12:00:00"}}, {"subject": []},
    {"subject": [{"name": "a", "digest": {"sha256": "0" * 64}},
                 {"name": "b", "digest": {"sha256": sha256_hex(LOCK)}}]},
])
def test_signed_statements_that_are_no_decision_for_this_lock_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        verify_decision(_decision(**change), LOCK, RELEASE, NOW)


def test_a_receipt_is_no_decision_and_a_decision_is_no_receipt() -> None:
    with pytest.raises(RefusedError, match=r"svr/v0\.2"):
        verify_decision(GOOD.files[GOOD.receipt_name], LOCK, trust_keys(Role.RELEASE, signer(1).public_key), NOW)
    outcome = check(GOOD, raw=_decision(), expected=expectations(5))
    assert outcome.refusal is not None
    assert outcome.refusal.step is Step.TYPES


def _timed(micros: int, **more: Any) -> ReceiptFiles:
    plan = PlanSummary(template_tokens=(100, 200, 300), epochs=2, forks=2, saves=0)
    evidence = honest_evidence(plan)
    slowed = tuple(record.model_copy(update={"wall_us": micros + record.template_tokens})
                   if record.step is Request.FORK else record for record in evidence.requests)
    return receipt(dataclasses.replace(evidence, requests=slowed),
                   policy=QualificationPolicy(plan=plan, thresholds=Thresholds()), **more)


def test_a_baseline_is_compared_like_with_like_or_not_at_all() -> None:
    base = check(_timed(10_000)).require()
    same, slow = check(_timed(10_500)).require(), check(_timed(20_000)).require()
    assert compare_with_baseline(same, base, 1_100_000).result is Result.PASSED
    assert compare_with_baseline(slow, base, 1_100_000).result is Result.FAILED
    other = Environment(host="process", architecture="x86_64", cpu="Another CPU", cpu_count=2)
    for apart in ({"lane": "gpu"}, {"environment": other}):
        found = compare_with_baseline(check(_timed(10_000, **apart)).require(), base, 1_100_000)
        assert found.result is Result.INCONCLUSIVE
        assert found.interval is None
    few = compare_with_baseline(check(GOOD).require(), check(GOOD).require(), 1_100_000)
    assert few.result is Result.INCONCLUSIVE
    assert "6 blocks are needed" in few.reason


def test_the_default_policy_is_the_documented_one() -> None:
    assert RULES.max_age == "90d"
    assert RULES.thresholds.fork_min_reuse_ppm == 1_000_000
    assert {CheckName.FORK_HITS, CheckName.RESTART_PROVED, CheckName.CONTROL_NEVER_SEEN} <= set(RULES.required_checks)


@pytest.mark.parametrize("text", [
    "epochs: 2\nepochs: 1\n", "epoch: 2\n", "epochs: two\n", "epochs: 0\n", "maxAge: 90\n", "maxAge: soon\n", "- a\n",
    "",
    "requiredChecks: [no_such_check]\n", "thresholds: {forkMinReusePpm: 2000000}\n", "a: [\n", "&a [*a]\n",
    "!!python/object/apply:os.system ['true']\n", "thresholds: {epochs: 1, epochs: 2}\n", "maxAge: 2026-01-01\n",
])
def test_a_policy_with_a_mistake_in_it_is_refused_with_advice(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_policy("policy.yaml", text.encode())
    assert refused.value.advice


def test_a_policy_cannot_be_changed_once_read() -> None:
    with pytest.raises(ValidationError):
        RULES.epochs = 0  # type: ignore[misc]
    assert POLICY.plan == PLAN
