"""Dead Simple Signing Envelope 1.0.2: pre-authentication encoding, and a strict reading of envelopes.

Read in two stages, as verification names them: `parse_envelope` (JSON of the right shape) and `decode` (base64). Both
alphabets of base64 are read, the standard one is written. Unknown members of the envelope are ignored, as the
specification wants. A keyid only narrows which key is tried; one that is missing or empty narrows nothing.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_lifecycle.receipts import strict_json
from ninfer_lifecycle.receipts.canonical import canonical
from ninfer_lifecycle.receipts.errors import MalformedError
from ninfer_lifecycle.receipts.keys import PublicKey, Signer

IN_TOTO = "application/vnd.in-toto+json"
MAX_ENVELOPE_BYTES = 8 * 1024 * 1024
_MAX_SIGNATURES = 32
_ALPHABET = re.compile(r"[A-Za-z0-9+/]*={0,2}|[A-Za-z0-9_-]*={0,2}")
_ADVICE = "This is not an envelope that a signer wrote; take the file from its source again."


@dataclass(frozen=True)
class RawSignature:
    """A signature as it stands in the file."""

    keyid: str
    sig: str


@dataclass(frozen=True)
class RawEnvelope:
    """An envelope of the right shape, still in base64. hint: the public key hint where it came in a bundle."""

    payload_type: str
    payload: str
    signatures: tuple[RawSignature, ...]
    hint: str | None = None


@dataclass(frozen=True)
class Signature:
    """A signature's bytes and the hint of who made it ("" = none)."""

    keyid: str
    sig: bytes


@dataclass(frozen=True)
class Envelope:
    """A payload with its type and its signatures; nothing about it is verified."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]
    hint: str | None = None

    def pae(self) -> bytes:
        """The bytes that its signatures are of."""
        return pae(self.payload_type, self.payload)

    def to_json(self) -> dict[str, Any]:
        """The JSON value of the envelope."""
        return {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": self.payload_type,
            "signatures": [
                ({"keyid": signature.keyid} if signature.keyid else {})
                | {"sig": base64.b64encode(signature.sig).decode()}
                for signature in self.signatures
            ],
        }


def pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding; lengths are of bytes, not of characters."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def sign(payload_type: str, payload: bytes, signers: Sequence[Signer]) -> Envelope:
    """The envelope of `payload` signed by each of `signers`."""
    message = pae(payload_type, payload)
    return Envelope(
        payload_type, payload, tuple(Signature(signer.public_key.keyid, signer.sign(message)) for signer in signers)
    )


def encode(envelope: Envelope) -> bytes:
    """The file of an envelope: canonical JSON and a newline."""
    return canonical(envelope.to_json()) + b"\n"


def parse_envelope(raw: bytes) -> RawEnvelope:
    """First stage. Raises MalformedError."""
    return envelope_of(strict_json.parse_object(raw, max_bytes=MAX_ENVELOPE_BYTES))


def envelope_of(value: dict[str, Any], hint: str | None = None) -> RawEnvelope:
    """The envelope in a parsed JSON object."""
    signatures = value.get("signatures")
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= _MAX_SIGNATURES:
        raise MalformedError(f"an envelope has 1 to {_MAX_SIGNATURES} signatures", _ADVICE)
    payload, payload_type = _text(value, "payload"), _text(value, "payloadType")
    return RawEnvelope(payload_type, payload, tuple(map(_signature, signatures)), hint)


def decode(raw: RawEnvelope) -> Envelope:
    """Second stage. Raises MalformedError."""
    signatures = tuple(Signature(item.keyid, decode_base64(item.sig)) for item in raw.signatures)
    return Envelope(raw.payload_type, decode_base64(raw.payload), signatures, raw.hint)


def decode_base64(text: str) -> bytes:
    """Bytes of base64 in the standard or the URL-safe alphabet, never a mix, with padding, without white space.

    Unused bits must be zero: otherwise several texts would stand for the same bytes.
    """
    if len(text) % 4 or not _ALPHABET.fullmatch(text):
        raise MalformedError("not base64", _ADVICE)
    standard = text.replace("-", "+").replace("_", "/")
    try:
        data = base64.b64decode(standard, validate=True)
    except binascii.Error:
        raise MalformedError("not base64", _ADVICE) from None
    if base64.b64encode(data).decode() != standard:
        raise MalformedError("base64 with stray bits at its end", _ADVICE)
    return data


def verifying_keys(envelope: Envelope, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
    """Those of `keys` that verify a signature of the envelope, each once: what a threshold counts.

    A key that signed twice, or under two ids, is one key. A keyid that names none of `keys` leaves its signature out.
    """
    message = envelope.pae()
    found = {
        key.spki: key
        for signature in envelope.signatures
        for key in keys
        if signature.keyid in ("", key.keyid) and key.verifies(signature.sig, message)
    }
    return tuple(found.values())


def _signature(value: Any) -> RawSignature:
    if not isinstance(value, dict):
        raise MalformedError("a signature is an object", _ADVICE)
    keyid = value.get("keyid", "")
    if not isinstance(keyid, str):
        raise MalformedError("a keyid is a string", _ADVICE)
    if "keyid" not in value and set(value) != {"sig"}:
        # An unknown member *instead of* the keyid is what damage to its name looks like.
        raise MalformedError("a signature has members that are not known here, but no keyid", _ADVICE)
    return RawSignature(keyid, _text(value, "sig"))


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str):
        raise MalformedError(f"an envelope has a string {name}", _ADVICE)
    return text
