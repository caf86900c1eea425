"""Keyrings: roles, thresholds, rotation by the old and the new root, revocation, expiry."""

import json
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from receipt_cases import NOW, check, expectations, receipt, signer

from ninfer_lifecycle.errors import NinferError, RefusedError, UsageError
from ninfer_lifecycle.receipts import dsse
from ninfer_lifecycle.receipts.canonical import canonical
from ninfer_lifecycle.receipts.errors import MalformedError, UntrustedError
from ninfer_lifecycle.receipts.keyring import (
    PAYLOAD_TYPE,
    Keyring,
    follow,
    key_entry,
    load_keyring,
    parse_keyring,
    sign_keyring,
)
from ninfer_lifecycle.receipts.keyring_edit import Change, find_key, first_keyring, revoked, rotated
from ninfer_lifecycle.receipts.trust import Role
from ninfer_lifecycle.receipts.verify import Step

YEAR = NOW + timedelta(days=365)
ROOT, QUALIFIER, RELEASE, NEXT_ROOT = 11, 1, 12, 13


def public(number: int):  # type: ignore[no-untyped-def]
    return signer(number).public_key


def ring(**thresholds: int) -> Keyring:
    members = [(Role.ROOT, public(ROOT)), (Role.QUALIFIER, public(QUALIFIER)), (Role.RELEASE, public(RELEASE))]
    return first_keyring(members, {Role(name): count for name, count in thresholds.items()}, NOW, YEAR)


FIRST = ring()
FIRST_RAW = sign_keyring(FIRST, [signer(ROOT)])


def test_a_keyring_comes_back_as_it_was_signed() -> None:
    assert parse_keyring(FIRST_RAW).keyring == FIRST
    assert load_keyring([FIRST_RAW], NOW) == FIRST


def test_a_receipt_verifies_by_the_qualifier_of_the_ring_and_by_no_other_role() -> None:
    assert check(receipt(), expected=expectations(trust=FIRST.trust(Role.QUALIFIER))).receipt is not None
    outcome = check(receipt(), expected=expectations(trust=FIRST.trust(Role.RELEASE)))
    assert outcome.refusal is not None
    assert outcome.refusal.step is Step.SIGNATURE


def test_a_keyring_signed_by_a_stranger_or_by_too_few_is_refused() -> None:
    for raw in (dsse.encode(dsse.sign(PAYLOAD_TYPE, canonical(FIRST.to_json()), [signer(QUALIFIER)])),
                dsse.encode(dsse.sign(PAYLOAD_TYPE, canonical(FIRST.to_json()), [signer(99)]))):
        with pytest.raises(UntrustedError):
            parse_keyring(raw)
    two = rotated(FIRST, Change(add=[(Role.ROOT, public(NEXT_ROOT))], thresholds={Role.ROOT: 2}), NOW, YEAR)
    with pytest.raises(UntrustedError, match="1 of 2"):
        sign_keyring(two, [signer(ROOT)], FIRST)
    assert parse_keyring(sign_keyring(two, [signer(ROOT), signer(NEXT_ROOT)], FIRST)).keyring.version == 2


def test_a_keyring_signed_as_a_receipt_is_none() -> None:
    with pytest.raises(MalformedError, match="payload type"):
        parse_keyring(dsse.encode(dsse.sign(dsse.IN_TOTO, canonical(FIRST.to_json()), [signer(ROOT)])))


def test_a_new_version_is_signed_by_the_old_and_the_new_root() -> None:
    change = Change(add=[(Role.ROOT, public(NEXT_ROOT))], remove=[(Role.ROOT, public(ROOT).keyid[:12])])
    second = rotated(FIRST, change, NOW, YEAR)
    for signers in ([signer(ROOT)], [signer(NEXT_ROOT)]):
        with pytest.raises(UntrustedError):
            sign_keyring(second, signers, FIRST)
    raw = sign_keyring(second, [signer(ROOT), signer(NEXT_ROOT)], FIRST)
    assert follow(FIRST, raw).keyring == second
    assert load_keyring([FIRST_RAW, raw], NOW, [public(ROOT)]) == second


def test_a_version_that_only_its_own_root_signed_is_not_followed() -> None:
    usurper = first_keyring([(Role.ROOT, public(99)), (Role.QUALIFIER, public(99))], {}, NOW, YEAR)
    second = usurper.model_copy(update={"version": 2})
    raw = sign_keyring(second, [signer(99)])
    assert parse_keyring(raw).keyring.version == 2
    with pytest.raises(UntrustedError, match="root of version 1"):
        follow(FIRST, raw)


@pytest.mark.parametrize("version", [1, 3, 7])
def test_versions_follow_one_another_without_gap_or_step_back(version: int) -> None:
    other = FIRST.model_copy(update={"version": version})
    with pytest.raises(UntrustedError, match="does not follow"):
        follow(FIRST, sign_keyring(other, [signer(ROOT)], FIRST))


def test_pinned_roots_must_have_signed_the_first_version() -> None:
    load_keyring([FIRST_RAW], NOW, [public(ROOT)])
    with pytest.raises(UntrustedError, match="pinned"):
        load_keyring([FIRST_RAW], NOW, [public(NEXT_ROOT)])


def test_an_expired_keyring_gives_no_trust_but_may_have_led_to_a_newer_one() -> None:
    with pytest.raises(UntrustedError, match="expired"):
        load_keyring([FIRST_RAW], YEAR)
    second = rotated(FIRST, Change(), YEAR, YEAR + timedelta(days=365))
    assert load_keyring([FIRST_RAW, sign_keyring(second, [signer(ROOT)], FIRST)], YEAR).version == 2


def test_no_keyring_at_all_is_refused() -> None:
    with pytest.raises(UntrustedError):
        load_keyring([], NOW)


def test_a_dated_revocation_spares_what_was_signed_before_and_compromise_spares_nothing() -> None:
    keyid = public(QUALIFIER).keyid
    finished = NOW - timedelta(hours=1)
    for on, step in ((finished + timedelta(minutes=1), None), (finished, Step.FRESHNESS), (None, Step.SIGNATURE)):
        trust = revoked(FIRST, keyid, NOW, YEAR, on).trust(Role.QUALIFIER)
        refusal = check(receipt(), expected=expectations(trust=trust)).refusal
        assert (refusal and refusal.step) == step


def test_a_revoked_root_key_leaves_the_root_role_and_the_last_one_cannot() -> None:
    with pytest.raises(UsageError):
        revoked(FIRST, public(ROOT).keyid, NOW, YEAR, None)
    two = rotated(FIRST, Change(add=[(Role.ROOT, public(NEXT_ROOT))]), NOW, YEAR)
    third = revoked(two, public(ROOT).keyid[:10], NOW, YEAR, None)
    assert third.roles[Role.ROOT].keyids == (public(NEXT_ROOT).keyid,)
    assert third.keys[public(ROOT).keyid].compromised


def test_a_key_without_a_role_leaves_the_ring_and_a_revoked_one_stays_readable() -> None:
    gone = rotated(FIRST, Change(remove=[(Role.RELEASE, public(RELEASE).keyid)]), NOW, YEAR)
    assert public(RELEASE).keyid not in gone.keys
    assert Role.RELEASE not in gone.roles
    with pytest.raises(UntrustedError, match="nobody has the role"):
        gone.trust(Role.RELEASE)
    marked = revoked(FIRST, public(RELEASE).keyid, NOW, YEAR, None)
    kept = rotated(marked, Change(remove=[(Role.RELEASE, public(RELEASE).keyid)]), NOW, YEAR)
    assert kept.keys[public(RELEASE).keyid].compromised


@pytest.mark.parametrize("text", ["", "zz", "abc", "ffffffff"])
def test_a_key_id_names_one_key_or_none(text: str) -> None:
    with pytest.raises(UsageError):
        find_key(FIRST, text)
    assert find_key(FIRST, public(ROOT).keyid[:8].upper()) == public(ROOT).keyid


def test_two_ids_of_one_key_cannot_stand_in_a_ring() -> None:
    """The threshold would be met by one key; here its second id is refused, being not its own."""
    value = FIRST.to_json()
    keyid = public(QUALIFIER).keyid
    other = "ab" * 32
    value["keys"][other] = value["keys"][keyid]
    value["roles"]["qualifier"] = {"keyids": [keyid, other], "threshold": 2}
    with pytest.raises(MalformedError, match="not its own"):
        parse_keyring(dsse.encode(dsse.sign(PAYLOAD_TYPE, canonical(value), [signer(ROOT)])))


@pytest.mark.parametrize("change", [
    {"roles": {"root": {"keyids": [], "threshold": 1}}}, {"roles": {}}, {"version": 0}, {"version": "1"},
    {"expiresOn": "2020-01-01T00:00:00Z"}, {"expiresOn": "2027-01-01T00:00:00"}, {"type": "other"}, {"more": 1},
    {"roles": {"root": {"keyids": ["0" * 64], "threshold": 1}}},
    {"roles": {"root": {"keyids": [signer(ROOT).public_key.keyid] * 2, "threshold": 2}}},
    {"roles": {"root": {"keyids": [signer(ROOT).public_key.keyid], "threshold": 2}}},
    {"roles": {"admin": {"keyids": [signer(ROOT).public_key.keyid], "threshold": 1}}},
    {"keys": {signer(ROOT).public_key.keyid: {"spki": "!!"}}},
    {"keys": {signer(ROOT).public_key.keyid: key_entry(signer(2).public_key).to_json()}},
])
def test_a_keyring_that_does_not_hold_together_is_refused(change: dict[str, object]) -> None:
    raw = dsse.encode(dsse.sign(PAYLOAD_TYPE, canonical(FIRST.to_json() | change), [signer(ROOT)]))
    with pytest.raises(MalformedError):
        parse_keyring(raw)


def test_a_flipped_bit_at_any_byte_of_a_keyring_is_refused() -> None:
    for at in range(len(FIRST_RAW)):
        flipped = bytearray(FIRST_RAW)
        flipped[at] ^= 1 << (at % 8)
        with pytest.raises(RefusedError):
            parse_keyring(bytes(flipped))


ROLES = st.sampled_from(list(Role))
MEMBERS = st.lists(st.tuples(ROLES, st.integers(20, 25)), max_size=6)


@given(MEMBERS, st.dictionaries(ROLES, st.integers(1, 3)), st.lists(st.tuples(ROLES, st.integers(20, 25)), max_size=3))
@settings(max_examples=60, deadline=None)
def test_any_change_gives_a_ring_that_holds_together_or_advice(
    members: list[tuple[Role, int]], thresholds: dict[Role, int], leaving: list[tuple[Role, int]]
) -> None:
    change = Change(add=[(role, public(number)) for role, number in members], thresholds=thresholds,
                    remove=[(role, public(number).keyid) for role, number in leaving])
    try:
        found = rotated(FIRST, change, NOW, YEAR)
    except NinferError as error:
        assert error.advice
        return
    assert found.version == 2
    assert Keyring.model_validate_json(json.dumps(found.to_json()), strict=True) == found
    for role, entry in found.roles.items():
        assert len(found.trust(role).keys) >= entry.threshold
