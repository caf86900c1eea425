"""Sigstore bundle v0.3 with a public key hint, as cosign and @sigstore/verify read it. Exactly one signature."""

import base64
from typing import Any

from ninfer_lifecycle.receipts import strict_json
from ninfer_lifecycle.receipts.canonical import canonical
from ninfer_lifecycle.receipts.dsse import MAX_ENVELOPE_BYTES, Envelope, RawEnvelope, envelope_of
from ninfer_lifecycle.receipts.errors import MalformedError

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_ADVICE = "Verify the .intoto.json file instead, or take the bundle from its source again."


def encode_bundle(envelope: Envelope) -> bytes:
    """The bundle of an envelope with one signature that names its key."""
    if len(envelope.signatures) != 1 or len(envelope.signatures[0].keyid) != 64:
        raise MalformedError("a bundle holds exactly one signature, with its keyid")
    hint = base64.b64encode(bytes.fromhex(envelope.signatures[0].keyid)).decode()
    value = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": hint}},
        "dsseEnvelope": envelope.to_json(),
    }
    return canonical(value) + b"\n"


def parse_file(raw: bytes) -> RawEnvelope:
    """The envelope in a receipt file of either kind; a bundle is known by its mediaType."""
    value = strict_json.parse_object(raw, max_bytes=MAX_ENVELOPE_BYTES)
    return _parse_bundle(value) if "mediaType" in value else envelope_of(value)


def _parse_bundle(value: dict[str, Any]) -> RawEnvelope:
    """Bundles are read as protobuf's JSON is: an unknown member is an error."""
    material, envelope = value.get("verificationMaterial"), value.get("dsseEnvelope")
    known = {"mediaType", "verificationMaterial", "dsseEnvelope"}
    if set(value) != known or value["mediaType"] != MEDIA_TYPE or not isinstance(envelope, dict):
        raise MalformedError("not a sigstore bundle v0.3 of an envelope", _ADVICE)
    key = material.get("publicKey") if isinstance(material, dict) and set(material) <= _MATERIAL else None
    hint = key.get("hint") if isinstance(key, dict) and set(key) == {"hint"} else None
    if not isinstance(hint, str) or (isinstance(material, dict) and material.get("tlogEntries", []) != []):
        raise MalformedError("the bundle names no public key, or things that are not checked here", _ADVICE)
    raw = envelope_of(envelope, hint)
    if len(raw.signatures) != 1:
        raise MalformedError("a bundle holds exactly one signature", _ADVICE)
    return raw


_MATERIAL = {"publicKey", "tlogEntries"}
