"""The parser in front of everything signed: one reading, or a typed refusal. Never another exception.

NINFER_FUZZ_SECONDS=600 fuzzes for ten minutes; without it, for as long as its examples take.
"""

import json
import math
import os
import random
import time

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st
from receipt_cases import check, receipt, signer

from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.receipts import bundle, dsse, strict_json
from ninfer_lifecycle.receipts.canonical import canonical, is_canonical
from ninfer_lifecycle.receipts.errors import MalformedError
from ninfer_lifecycle.receipts.keyring import parse_keyring

SMALL = 10_000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=20)


@given(VALUES)
def test_canonical_json_is_read_back_as_it_was(value: object) -> None:
    raw = canonical(value)
    assert strict_json.parse(raw, max_bytes=1_000_000) == value
    assert is_canonical(raw, value)
    assert json.loads(raw) == value


@given(VALUES)
def test_the_fast_encoder_gives_the_bytes_of_rfc_8785(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)


ASCII_KEYS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=6), inner, max_size=4), max_leaves=12)


@given(ASCII_KEYS)
def test_the_fast_encoder_gives_them_for_any_text_and_any_ascii_key(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)


# The sorting example of RFC 8785, section 3.2.3: keys in the order of their UTF-16 code units, not of code points.
RFC_8785 = {"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
            "\U0001f600": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis"}


def test_keys_are_ordered_as_rfc_8785_orders_them() -> None:
    order = list(json.loads(canonical(RFC_8785)).values())
    assert order == ["Carriage Return", "One", "Control", "Latin Small Letter O With Diaeresis", "Euro Sign",
                     "Emoji: Grinning Face", "Hebrew Letter Dalet With Dagesh"]


@pytest.mark.parametrize("raw", [
    b'{"a":1,"a":1}', b'{"a":{"b":1,"b":2}}', b'[{"x":0,"x":0}]', b'{"\\u0061":1,"a":2}', b"NaN", b"[Infinity]",
    b"-Infinity", b"1.0", b"[1e3]", b"{} ,", b"{}{}", b"{}\x00", b'"\xff"', b"\xef\xbb\xbf{}", b"", b" ", b"{", b"'a'",
    b'{"a":1,}',
    b"[01]", b'"\t"', b'"\\ud800"', b'{"\\udfff":1}', b"9" * 5000, b"[" * 40 + b"]" * 40,
    b'{"a":' * 50 + b"1" + b"}" * 50,
    b"[" * 9000, b"nul", b"/**/{}", b"0x10", b"+1",
])
def test_what_has_two_readings_or_none_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        strict_json.parse(raw, max_bytes=SMALL)


def test_size_is_checked_before_anything_is_read() -> None:
    with pytest.raises(MalformedError, match="more than"):
        strict_json.parse(b"[" * (SMALL + 1), max_bytes=SMALL)


def test_brackets_in_strings_are_no_depth() -> None:
    assert strict_json.parse(json.dumps("[" * 500 + '"\\{').encode(), max_bytes=SMALL) == "[" * 500 + '"\\{'


@pytest.mark.parametrize("value", [2**53, -(2**53), "\ud800", {"\udc00": 1}, math.nan])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(MalformedError):
        canonical(value)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_arbitrary_bytes_are_refused_and_never_crash(raw: bytes) -> None:
    for read in (lambda: bundle.parse_file(raw), lambda: parse_keyring(raw)):
        with pytest.raises(RefusedError):
            read()
    assert check(GOOD, raw=raw).receipt is None


GOOD = receipt()
_ENVELOPE = GOOD.files[GOOD.receipt_name]


_TOKENS = [b"{", b"}", b'"', b"[", b"]", b"\\u0000", b":", b",", b"null", b"-0", b"1e9"]


def _mutate(raw: bytes, chance: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at:at] = chance.randbytes(chance.randint(1, 4))
            case 1:
                del data[at : at + chance.randint(1, 30)]
            case 2:
                data[at:at] = data[chance.randrange(len(data) + 1) :][:40]
            case 3:
                data[at:at] = chance.choice(_TOKENS)
            case _:
                data[at : at + 1] = bytes([chance.randrange(256)])
        if not data:
            data = bytearray(b"{")
    return bytes(data)


def _fuzz_once(chance: random.Random) -> None:
    """Damage one of the things that a verifier reads: the file, the signed payload, a file beside it."""
    payload = dsse.decode(dsse.parse_envelope(_ENVELOPE)).payload
    names = sorted(set(GOOD.files) - {GOOD.receipt_name, GOOD.bundle_name})
    kind = chance.randrange(4)
    if kind == 0:
        outcome = check(GOOD, raw=_mutate(_ENVELOPE, chance))
    elif kind == 1:
        outcome = check(GOOD, raw=_mutate(GOOD.files[GOOD.bundle_name], chance))
    elif kind == 2:
        # What a trusted key signs may say another CPU or another tool version; it must not crash who reads it.
        check(GOOD, raw=dsse.encode(dsse.sign(dsse.IN_TOTO, _mutate(payload, chance), [signer(1)])))
        return
    else:
        name = chance.choice(names)
        outcome = check(GOOD, files={name: _mutate(GOOD.files[name], chance)})
    if outcome.receipt is not None:  # a mutation may undo itself, or touch a file that verification does not read
        assert outcome.receipt.statement.to_json() == GOOD.statement.to_json()


def test_damaged_files_are_refused_and_never_crash_the_verifier() -> None:
    seconds = float(os.environ.get("NINFER_FUZZ_SECONDS", "0"))
    seed = random.SystemRandom().randrange(2**32) if seconds else 8
    chance, end, count = random.Random(seed), time.monotonic() + seconds, 0
    while count < 300 or time.monotonic() < end:
        try:
            _fuzz_once(chance)
        except Exception as error:
            raise AssertionError(f"seed {seed}, example {count}: {error!r}") from error
        count += 1
