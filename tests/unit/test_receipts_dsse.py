"""Envelopes: the specification's own example, strict reading, and what a threshold counts."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from receipt_cases import signer

from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.receipts import bundle, dsse
from ninfer_lifecycle.receipts.dsse import Envelope, Signature
from ninfer_lifecycle.receipts.errors import MalformedError


def test_the_encoding_is_that_of_the_specification() -> None:
    # The example of the DSSE protocol document.
    assert dsse.pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world")


def test_lengths_are_of_bytes_not_of_characters() -> None:
    assert dsse.pae("ä", "€".encode()) == b"DSSEv1 2 \xc3\xa4 3 \xe2\x82\xac"


@given(st.binary(max_size=200), st.text(max_size=40))
def test_an_envelope_comes_back_as_it_was_written(payload: bytes, payload_type: str) -> None:
    envelope = dsse.sign(payload_type, payload, [signer(1), signer(2)])
    assert dsse.decode(dsse.parse_envelope(dsse.encode(envelope))) == envelope


@given(st.binary(max_size=200))
def test_both_alphabets_of_base64_are_read_and_a_mix_is_not(data: bytes) -> None:
    standard = base64.b64encode(data).decode()
    assert dsse.decode_base64(standard) == dsse.decode_base64(base64.urlsafe_b64encode(data).decode()) == data
    with pytest.raises(MalformedError):
        dsse.decode_base64(base64.b64encode(b"\xff\xef\xff").decode()
                           + base64.urlsafe_b64encode(b"\xff\xef\xff").decode())


@pytest.mark.parametrize("text", ["YQ", "YQ=", "YR==", "Y Q==", "YQ==\n", "YQ==YQ==", "====", "Y\u0430=="])
def test_base64_with_a_second_reading_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        dsse.decode_base64(text)


def test_one_key_counts_once_however_often_and_under_whatever_id_it_signs() -> None:
    message = dsse.pae(dsse.IN_TOTO, b"{}")
    key, other = signer(1), signer(2)
    signature = key.sign(message)
    envelope = Envelope(dsse.IN_TOTO, b"{}", (
        Signature(key.public_key.keyid, signature), Signature("", signature),
        Signature(other.public_key.keyid, signature)))
    assert dsse.verifying_keys(envelope, [key.public_key, other.public_key, key.public_key]) == (key.public_key,)


def test_a_missing_or_empty_keyid_narrows_nothing_and_a_strangers_keyid_is_left_out() -> None:
    key = signer(1)
    signature = base64.b64encode(key.sign(dsse.pae(dsse.IN_TOTO, b"{}"))).decode()
    for entry, counts in (({"sig": signature}, 1), ({"keyid": "", "sig": signature}, 1),
                          ({"keyid": "ab" * 32, "sig": signature}, 0)):
        raw = json.dumps({"payload": "e30=", "payloadType": dsse.IN_TOTO, "signatures": [entry]}).encode()
        envelope = dsse.decode(dsse.parse_envelope(raw))
        assert len(dsse.verifying_keys(envelope, [key.public_key])) == counts


def test_unknown_members_of_an_envelope_are_ignored() -> None:
    value = dsse.sign(dsse.IN_TOTO, b"{}", [signer(1)]).to_json()
    value["hint"] = ["for", {"other": "tools"}]
    value["signatures"][0]["extension"] = {"kind": "x"}
    assert dsse.decode(dsse.parse_envelope(json.dumps(value).encode())).payload == b"{}"


@pytest.mark.parametrize("raw", [
    b"", b"[]", b"null", b"{}", b'{"payload":"","payloadType":"x"}',
    b'{"payload":"","payloadType":"x","signatures":[]}',
    b'{"payload":"","payloadType":"x","signatures":[{}]}', b'{"payload":"","payloadType":"x","signatures":[{"sig":1}]}',
    b'{"payload":1,"payloadType":"x","signatures":[{"sig":""}]}', b'{"payload":"","signatures":[{"sig":""}]}',
    b'{"payload":"","payload":"YQ==","payloadType":"x","signatures":[{"sig":""}]}',
    b'{"payload":"","payloadType":"x","signatures":[{"sig":"","keyid":null}]}',
    b'{"payload":"","payloadType":"x","signatures":[{"sig":""}]}{}',
    b'\xef\xbb\xbf{"payload":"","payloadType":"x","signatures":[{"sig":""}]}',
    b'{"payload":"\xff","payloadType":"x","signatures":[{"sig":""}]}',
])
def test_what_is_no_envelope_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        dsse.parse_envelope(raw)


def test_more_signatures_than_anyone_needs_are_refused() -> None:
    value = dsse.sign(dsse.IN_TOTO, b"{}", [signer(1)]).to_json()
    value["signatures"] *= 33
    with pytest.raises(MalformedError):
        dsse.parse_envelope(json.dumps(value).encode())


def test_a_bundle_holds_the_same_envelope_and_names_its_key() -> None:
    envelope = dsse.sign(dsse.IN_TOTO, b"{}", [signer(1)])
    read = dsse.decode(bundle.parse_file(bundle.encode_bundle(envelope)))
    assert (read.payload, read.signatures) == (envelope.payload, envelope.signatures)
    assert read.hint == signer(1).public_key.hint


def test_a_bundle_has_exactly_one_signature() -> None:
    with pytest.raises(RefusedError):
        bundle.encode_bundle(dsse.sign(dsse.IN_TOTO, b"{}", [signer(1), signer(2)]))
    value = json.loads(bundle.encode_bundle(dsse.sign(dsse.IN_TOTO, b"{}", [signer(1)])))
    value["dsseEnvelope"]["signatures"] *= 2
    with pytest.raises(MalformedError):
        bundle.parse_file(json.dumps(value).encode())


@pytest.mark.parametrize("change", [
    {"mediaType": "application/vnd.dev.sigstore.bundle.v0.4+json"}, {"extra": 1},
    {"verificationMaterial": {"certificate": {"rawBytes": ""}}}, {"verificationMaterial": {"publicKey": {"hint": 5}}},
    {"verificationMaterial": {"publicKey": {"hint": "x"}, "tlogEntries": [{}]}}, {"dsseEnvelope": []},
    {"verificationMaterial": []}, {"verificationMaterial": {"publicKey": {"hint": "x", "more": 1}}},
])
def test_a_bundle_of_another_kind_is_refused(change: dict[str, object]) -> None:
    value = json.loads(bundle.encode_bundle(dsse.sign(dsse.IN_TOTO, b"{}", [signer(1)])))
    with pytest.raises(MalformedError):
        bundle.parse_file(json.dumps(value | change).encode())
