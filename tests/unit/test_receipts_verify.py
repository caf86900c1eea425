"""Verification: every step refuses what it is there for, in its order, and nothing after it is reached."""

import dataclasses
import json
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from receipt_cases import (
    LOCK,
    NOW,
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

from ninfer_engine.contract.base import canonical_json, sha256_hex
from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.gates.plans import Asked, summary_of
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts import dsse
from ninfer_lifecycle.receipts.build import ReceiptFiles
from ninfer_lifecycle.receipts.canonical import canonical
from ninfer_lifecycle.receipts.trust import Role, RoleTrust, TrustedKey, trust_keys
from ninfer_lifecycle.receipts.verify import Step, StepState, Verification

GOOD = receipt()
ANY = frozenset(Result)


def payload_of(made: ReceiptFiles = GOOD) -> bytes:
    return dsse.decode(dsse.parse_envelope(made.files[made.receipt_name])).payload


def resigned(payload: bytes, key: int = 1, payload_type: str = dsse.IN_TOTO) -> bytes:
    """What a trusted key would sign if its holder wanted to deceive."""
    return dsse.encode(dsse.sign(payload_type, payload, [signer(key)]))


def stated(change: Callable[[dict[str, Any]], None], made: ReceiptFiles = GOOD) -> bytes:
    value = json.loads(payload_of(made))
    change(value)
    return resigned(canonical(value))


def refused_at(outcome: Verification, step: Step) -> str:
    assert outcome.receipt is None
    refusal = outcome.refusal
    assert refusal is not None
    assert refusal.step is step, f"refused at {refusal.step}: {refusal.detail}"
    states = [report.state for report in outcome.steps]
    at = states.index(StepState.FAILED)
    assert [report.step for report in outcome.steps] == list(Step)
    assert set(states[:at]) <= {StepState.PASSED}
    assert set(states[at + 1 :]) <= {StepState.NOT_REACHED}
    return refusal.detail


def test_an_honest_receipt_passes_every_step_and_gives_a_typed_value() -> None:
    for name in (GOOD.receipt_name, GOOD.bundle_name):
        outcome = check(GOOD, raw=GOOD.files[name])
        assert [report.state for report in outcome.steps] == [StepState.PASSED] * len(Step)
        found = outcome.require()
        assert found.predicate.result is Result.PASSED
        assert found.signers == (signer(1).public_key,)
        assert found.payload_sha256 == sha256_hex(payload_of())


def test_a_huge_file_is_refused_by_its_size() -> None:
    refused_at(check(GOOD, raw=b" " * (dsse.MAX_ENVELOPE_BYTES + 1)), Step.SIZE)


def test_what_is_no_envelope_is_refused_at_its_shape() -> None:
    refused_at(check(GOOD, raw=b'{"payload":"e30="}'), Step.ENVELOPE)


def test_stray_base64_is_refused() -> None:
    value = json.loads(GOOD.files[GOOD.receipt_name])
    value["payload"] += "\n"
    refused_at(check(GOOD, raw=json.dumps(value).encode()), Step.BASE64)


def test_a_key_that_is_not_trusted_is_refused_although_its_signature_is_good() -> None:
    refused_at(check(GOOD, expected=expectations(2)), Step.SIGNATURE)


def test_a_compromised_key_counts_for_nothing() -> None:
    trust = RoleTrust(Role.QUALIFIER, (TrustedKey(signer(1).public_key, compromised=True),))
    refused_at(check(GOOD, expected=expectations(trust=trust)), Step.SIGNATURE)


def test_a_signature_over_another_payload_type_is_refused() -> None:
    refused_at(check(GOOD, raw=resigned(payload_of(), payload_type="application/json")), Step.PAYLOAD_TYPE)


def test_a_payload_type_swapped_after_signing_breaks_the_signature() -> None:
    envelope = dsse.decode(dsse.parse_envelope(GOOD.files[GOOD.receipt_name]))
    swapped = dsse.encode(dataclasses.replace(envelope, payload_type="text/plain"))
    refused_at(check(GOOD, raw=swapped), Step.SIGNATURE)


def test_one_key_under_two_ids_does_not_meet_a_threshold_of_two() -> None:
    envelope = dsse.decode(dsse.parse_envelope(GOOD.files[GOOD.receipt_name]))
    twice = dataclasses.replace(envelope, signatures=(
        envelope.signatures[0], dataclasses.replace(envelope.signatures[0], keyid="")))
    trust = RoleTrust(Role.QUALIFIER, tuple(TrustedKey(signer(n).public_key) for n in (1, 2)), threshold=2)
    outcome = check(GOOD, raw=dsse.encode(twice), expected=expectations(trust=trust))
    assert refused_at(outcome, Step.THRESHOLD) == "1 of 2 keys signed"


def test_two_keys_meet_a_threshold_of_two() -> None:
    both = dsse.encode(dsse.sign(dsse.IN_TOTO, payload_of(), [signer(1), signer(2)]))
    trust = RoleTrust(Role.QUALIFIER, tuple(TrustedKey(signer(n).public_key) for n in (1, 2)), threshold=2)
    assert len(check(GOOD, raw=both, expected=expectations(trust=trust)).require().signers) == 2


@pytest.mark.parametrize("spoiled", [
    lambda p: p.replace(b'"lane":"default"', b'"lane":"default","lane":"default"'),
    lambda p: p.replace(b'"sequence":1', b'"sequence":NaN'),
    lambda p: p.replace(b'"sequence":1', b'"sequence":1.0'),
    lambda p: p + p,
    lambda p: p + b"{}",
    lambda p: p[:-1],
    lambda p: b"\xff" + p,
])
def test_signed_text_with_more_than_one_reading_is_refused(spoiled: Callable[[bytes], bytes]) -> None:
    refused_at(check(GOOD, raw=resigned(spoiled(payload_of()))), Step.STRICT_JSON)


@pytest.mark.parametrize("spoiled", [
    lambda p: p + b"\n",
    lambda p: p.replace(b":", b": "),
    lambda p: json.dumps(dict(reversed(json.loads(p).items())), separators=(",", ":")).encode(),
    lambda p: p.replace(b'"default"', b'"d\\u0065fault"'),
    lambda p: p.replace(b'"sequence":1', b'"sequence":-0'),
])
def test_three_texts_of_one_document_do_not_all_pass(spoiled: Callable[[bytes], bytes]) -> None:
    refused_at(check(GOOD, raw=resigned(spoiled(payload_of()))), Step.CANONICAL)


def test_signer_and_verifier_agree_on_text_that_canonicalisers_disagree_on() -> None:
    hard = ("Grüße \u20ac \U0001f600", 'quote " backslash \\ slash /', "line\u2028separator",
            "bell \x07 nul-ish \x1f del \x7f")
    made = receipt(limitations=hard)
    assert check(made).require().predicate.limitations == hard


@pytest.mark.parametrize(("field", "value"), [
    ("predicateType", "https://in-toto.io/attestation/test-result/v0.1"),
    ("predicateType", "https://ninfer.dev/attestations/qualification/v2"),
    ("predicateType", None),
    ("_type", "https://in-toto.io/Statement/v0.1"),
])
def test_a_statement_of_another_type_is_refused(field: str, value: str | None) -> None:
    def change(statement: dict[str, Any]) -> None:
        statement.pop(field) if value is None else statement.update({field: value})

    assert field in refused_at(check(GOOD, raw=stated(change)), Step.TYPES)


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(statement: dict[str, Any]) -> None:
        at: Any = statement
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            at = at[part]
        at[last] = value

    return change


@pytest.mark.parametrize(("path", "value"), [
    ("predicate.result", "pending"), ("predicate.limitations", ["Pending "]),
    ("predicate.environment.kernel", "PENDING"),
    ("predicate.environment.kernel", None), ("predicate.pending", 1), ("predicate.result", "passed"),
    ("predicate.startedOn", "2026-09-05T10:00:00"), ("predicate.startedOn", "2026-09-05T10:00:00+00:00"),
    ("predicate.finishedOn", "2026-02-30T10:00:00Z"), ("predicate.finishedOn", "2020-01-01T00:00:00Z"),
    ("predicate.sequence", 0), ("predicate.sequence", "1"), ("predicate.sequence", True), ("predicate.sequence", 2),
    ("predicate.checks.0.result", "FAILED"), ("predicate.checks.0.misses", 1), ("predicate.checks", []),
    ("predicate.result", "INCONCLUSIVE"), ("predicate.unknownField", 1),
    ("predicate.evidence.0.name", "../../etc/passwd"),
    ("predicate.evidence.0.name", "a/b.jsonl"), ("predicate.policy.uri", "..\\x"), ("predicate.policy.uri", ".hidden"),
    ("subject.0.name", "../lock.json"), ("subject.0.digest.sha256", "0" * 63), ("subject.0.digest.sha256", "G" * 64),
    ("subject.0.digest", {}), ("subject", []), ("predicate.evidence.0.bytes", -1), ("predicate.profile", ""),
    ("predicate.evidence.0.digest.sha256", "A" * 64), ("predicate.checks.1.boundPpm", 1_000_001),
])
def test_values_that_break_the_format_are_refused(path: str, value: Any) -> None:
    refused_at(check(GOOD, raw=stated(_set(path, value))), Step.TYPES)


def test_a_second_subject_cannot_hide_behind_the_first() -> None:
    def change(statement: dict[str, Any]) -> None:
        statement["subject"].append({"name": "other.lock.json", "digest": {"sha256": "0" * 64}})

    refused_at(check(GOOD, raw=stated(change)), Step.TYPES)


def test_a_digest_of_the_right_length_is_not_enough() -> None:
    refused_at(check(GOOD, raw=stated(_set("subject.0.digest.sha256", "0" * 64))), Step.SUBJECT)


def test_a_receipt_for_another_lock_file_is_refused() -> None:
    detail = refused_at(check(GOOD, expected=expectations(lock=LOCK + b" ")), Step.SUBJECT)
    assert sha256_hex(LOCK)[:16] in detail


def test_without_a_lock_file_in_hand_nothing_is_verified() -> None:
    refused_at(check(GOOD, expected=expectations(lock=None)), Step.SUBJECT)


def test_another_policy_than_the_wanted_one_is_refused() -> None:
    refused_at(check(GOOD, expected=expectations(policy_sha256="0" * 64)), Step.POLICY)
    named = GOOD.statement.predicate.policy.digest.sha256
    assert check(GOOD, expected=expectations(policy_sha256=named)).receipt is not None


def test_a_policy_file_that_was_exchanged_or_lost_is_refused() -> None:
    name = GOOD.statement.predicate.policy.uri
    weak = canonical({**POLICY.to_json(), "thresholds": {"forkMinReusePpm": 0}})
    refused_at(check(GOOD, files={name: weak}), Step.POLICY)
    lost = dataclasses.replace(GOOD, files={key: data for key, data in GOOD.files.items() if key != name})
    refused_at(check(lost), Step.POLICY)


ASKED = Asked(plan="fanout", sizes=(1000, 480), forks=4, repeats=1, restarts=1)
PINNED = QualificationPolicy(plan=summary_of(ASKED), thresholds=Thresholds())


def lock_with(gates: Thresholds, **probes: Any) -> bytes:
    pinned = ASKED.model_dump(mode="json") | probes
    return canonical_json({"artifact_type": "ninfer_profile_lock", "probes": pinned,
                           "gates": gates.model_dump(mode="json", exclude_none=True)})


def pinned_receipt(lock: bytes, evidence: Evidence | None = None, policy: QualificationPolicy = PINNED) -> ReceiptFiles:
    return receipt(evidence or honest_evidence(PINNED.plan), lock=lock, policy=policy)


def test_a_profile_lock_pins_the_thresholds_and_the_plan() -> None:
    lock = lock_with(Thresholds())
    assert check(pinned_receipt(lock), expected=expectations(lock=lock)).receipt is not None
    for other in (lock_with(Thresholds(never_seen_max_reused_tokens=8)), lock_with(Thresholds(), sizes=[1000, 480, 77]),
                  lock_with(Thresholds(), forks=8), lock_with(Thresholds(), restarts=2),
                  lock_with(Thresholds(), repeats=3), lock_with(Thresholds(), plan="no-such-plan"),
                  lock_with(Thresholds(), sizes=[]), lock_with(Thresholds(), sizes="480")):
        refused_at(check(pinned_receipt(other), expected=expectations(lock=other)), Step.POLICY)


def test_weaker_thresholds_than_the_lock_pins_are_refused_although_the_receipt_names_them() -> None:
    weak = QualificationPolicy(plan=PINNED.plan, thresholds=Thresholds(fork_min_reuse_ppm=0))
    lock = lock_with(Thresholds())
    cold = spoil(honest_evidence(PINNED.plan), is_fork(1000, 0, 2), reused_tokens=0, cached_tokens=0,
                 computed_tokens=1058, counter_computed_tokens=1058)
    made = pinned_receipt(lock, cold, weak)
    assert made.verdict.result is Result.PASSED
    refused_at(check(made, expected=expectations(lock=lock)), Step.POLICY)


COLD = spoil(honest_evidence(), is_fork(1000, 0, 2), reused_tokens=0, cached_tokens=0, computed_tokens=1058,
             counter_computed_tokens=1058)


def test_a_forged_pass_over_failing_evidence_is_refused_although_a_trusted_key_signed_it() -> None:
    """Everything but the evidence is that of a passing run, and every digest fits."""
    failing = receipt(COLD)
    assert failing.verdict.result is Result.FAILED
    value = json.loads(payload_of(failing))
    honest = json.loads(payload_of(GOOD))["predicate"]
    value["predicate"] |= {key: honest[key] for key in ("result", "checks", "controls")}
    forged = resigned(canonical(value))
    detail = refused_at(check(failing, raw=forged, expected=expectations(results=ANY)), Step.RECOMPUTED)
    assert "FAILED" in detail


@pytest.mark.parametrize(("path", "value"), [
    ("predicate.checks.1.trials", 400), ("predicate.checks.1.boundPpm", 10), ("predicate.checks.1.observed", 99_999),
    ("predicate.checks.1.threshold", 1), ("predicate.checks.1.clusters", 4), ("predicate.checks.1.evidence", ["x"]),
    ("predicate.checks.1.templateTokens", 79_957), ("predicate.steps.0.failed", 3), ("predicate.steps.0.requests", 99),
    ("predicate.epochs.0.containerId", "another"), ("predicate.epochs", []), ("predicate.steps", []),
    ("predicate.evidence.0.records", 21), ("predicate.evidence.0.bytes", 21), ("predicate.controls", []),
])
def test_a_stated_figure_that_the_evidence_does_not_give_is_refused(path: str, value: Any) -> None:
    refused_at(check(GOOD, raw=stated(_set(path, value))), Step.RECOMPUTED)


def test_a_check_left_out_of_the_statement_is_missed() -> None:
    refused_at(check(GOOD, raw=stated(lambda statement: statement["predicate"]["checks"].pop())), Step.RECOMPUTED)


@pytest.mark.parametrize("kind", ["requests", "saves", "epochs"])
def test_evidence_that_was_changed_lost_or_cut_is_refused(kind: str) -> None:
    name = next(item.name for item in GOOD.statement.predicate.evidence if item.kind == kind)
    data = GOOD.files[name]
    for spoiled in (data.replace(b'"epoch":0', b'"epoch":1', 1), data[:-1], data + data, b""):
        refused_at(check(GOOD, files={name: spoiled}), Step.RECOMPUTED)
    lost = dataclasses.replace(GOOD, files={key: item for key, item in GOOD.files.items() if key != name})
    refused_at(check(lost), Step.RECOMPUTED)


@pytest.mark.parametrize("spoiled", [
    lambda line: line.replace(b'"epoch":0', b'"epoch":0,"epoch":0'),
    lambda line: line.replace(b'"epoch":0', b'"epoch": 0'),
    lambda line: line.replace(b'"epoch":0', b'"epoch":"0"'),
    lambda line: line.replace(b'"epoch":0', b'"epoch":0.0'),
    lambda line: line.replace(b'"epoch":0', b'"epoch":true'),
    lambda line: line.replace(b'{', b'{"a_new_key":1,', 1),
    lambda line: line.replace(b'"path":"root",', b'"path":null,'),
])
def test_signed_evidence_that_is_not_strict_is_refused(spoiled: Callable[[bytes], bytes]) -> None:
    name = next(item.name for item in GOOD.statement.predicate.evidence if item.kind == "requests")
    first, rest = GOOD.files[name].split(b"\n", maxsplit=1)
    data = spoiled(first) + b"\n" + rest
    assert data != GOOD.files[name]

    def change(statement: dict[str, Any]) -> None:
        entry = next(item for item in statement["predicate"]["evidence"] if item["kind"] == "requests")
        entry |= {"digest": {"sha256": sha256_hex(data)}, "bytes": len(data)}

    refused_at(check(GOOD, raw=stated(change), files={name: data}), Step.RECOMPUTED)


def test_an_authentic_failed_receipt_is_refused_by_its_result_and_shown_where_all_results_are_wanted() -> None:
    failing = receipt(COLD)
    assert "says FAILED" in refused_at(check(failing), Step.RESULT)
    found = check(failing, expected=expectations(results=ANY)).require()
    assert found.verdict.not_passed[0].misses == 1


def test_an_inconclusive_receipt_is_no_pass() -> None:
    unsaid = receipt(spoil(honest_evidence(), is_fork(480, 0, 0), cached_tokens=None))
    assert "says INCONCLUSIVE" in refused_at(check(unsaid), Step.RESULT)


def test_an_expired_receipt_is_refused_from_its_last_second_on() -> None:
    until = NOW + timedelta(days=90)
    assert check(GOOD, expected=expectations(now=until - timedelta(seconds=1))).receipt is not None
    refused_at(check(GOOD, expected=expectations(now=until)), Step.FRESHNESS)
    assert check(GOOD, expected=expectations(now=until, allow_expired=True)).receipt is not None


def test_a_receipt_from_the_future_is_refused() -> None:
    refused_at(check(GOOD, expected=expectations(now=NOW - timedelta(hours=2))), Step.FRESHNESS)


def test_a_receipt_that_is_too_old_for_the_policy_is_refused() -> None:
    refused_at(check(GOOD, expected=expectations(max_age=timedelta(minutes=59))), Step.FRESHNESS)
    assert check(GOOD, expected=expectations(max_age=timedelta(hours=1))).receipt is not None


def test_a_key_revoked_before_the_run_does_not_count_and_one_revoked_after_it_does() -> None:
    finished = NOW - timedelta(hours=1)
    for revoked_on, counts in ((finished, False), (finished + timedelta(seconds=1), True)):
        trust = RoleTrust(Role.QUALIFIER, (TrustedKey(signer(1).public_key, revoked_on=revoked_on),))
        outcome = check(GOOD, expected=expectations(trust=trust))
        if counts:
            assert outcome.receipt is not None
        else:
            refused_at(outcome, Step.FRESHNESS)


def test_a_naive_reference_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="zone"):
        check(GOOD, expected=expectations(now=NOW.replace(tzinfo=None)))
    with pytest.raises(ValueError, match="zone"):
        receipt(started_on=NOW.replace(tzinfo=None))


def test_the_chain_is_followed_and_a_gap_a_fork_and_a_replay_are_refused() -> None:
    second = receipt(head=chained(GOOD))
    third = receipt(head=chained(second))
    assert check(second, expected=expectations(previous=chained(GOOD))).receipt is not None
    refused_at(check(third, expected=expectations(previous=chained(GOOD))), Step.SEQUENCE)
    forked = receipt(lane="default", head=dataclasses.replace(chained(GOOD), payload_sha256="0" * 64))
    refused_at(check(forked, expected=expectations(previous=chained(GOOD))), Step.SEQUENCE)
    refused_at(check(second, expected=expectations(minimum_sequence=3)), Step.SEQUENCE)


def test_a_refused_verification_raises_with_its_step_where_a_receipt_is_required() -> None:
    with pytest.raises(RefusedError, match="signature"):
        check(GOOD, expected=expectations(trust=trust_keys(Role.QUALIFIER, signer(9).public_key))).require()


def test_a_failing_run_cannot_be_stated_as_passed_at_all() -> None:
    """The same evidence always gives the same verdict: there is nothing to pass in."""
    assert receipt(COLD).statement.predicate.result is Result.FAILED


PLANS = st.builds(
    lambda sizes, **more: PlanSummary(template_tokens=tuple(sorted(sizes)), **more),
    st.sets(st.integers(1, 5000), min_size=1, max_size=3), epochs=st.integers(1, 3), forks=st.integers(1, 3),
    saves=st.integers(0, 2), resumes=st.integers(0, 1))
CHANGES = st.dictionaries(
    st.sampled_from(["cached_tokens", "reused_tokens", "computed_tokens", "prompt_tokens", "counter_computed_tokens",
                     "wall_us", "sibling", "http_status", "predicted_now_us"]),
    st.none() | st.integers(-1, 6000), max_size=3) | st.dictionaries(
    st.sampled_from(["error", "witness_conflict", "parent_response_id", "miss_reason"]), st.text(max_size=12),
    max_size=2)


@given(PLANS, st.lists(CHANGES, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_whatever_was_observed_an_honest_receipt_of_it_verifies(
    plan: PlanSummary, changes: list[dict[str, Any]], chance: Random
) -> None:
    evidence = honest_evidence(plan)
    for change in changes:
        picked = chance.choice(evidence.requests)
        evidence = spoil(evidence, lambda record, picked=picked: record is picked, **change)
    limits = Thresholds(max_fork_to_cold_ppm=900_000, max_miss_bound_ppm=960_000, max_median_plan_error_ppm=500_000)
    made = receipt(evidence, policy=QualificationPolicy(plan=plan, thresholds=limits))
    found = check(made, expected=expectations(results=ANY)).require()
    assert found.verdict == made.verdict
    assert found.evidence == evidence
