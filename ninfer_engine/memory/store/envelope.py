"""A manifest as it lies in the store: a header that can be read alone, a digest over all of it, a signature.

Four lines: header (canonical JSON), SHA-256 in hex, key id and signature in hex, manifest (canonical JSON). The
signature covers header, manifest and key id; the digest covers every other byte.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ninfer_engine.contract.base import Document, canonical_json
from ninfer_engine.memory.store.errors import StoreCorruptError, StoreIncompatibleError
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.memory.store.origin import OriginKey

FORMAT = 3  # 1: objects had SHA-256 for a checksum; 2: ends of deleted responses were not marked


class Header(Document):
    """What can be told of a saved session without its objects. bytes: everything that it takes in the store."""

    format: Literal[3] = 3
    session: str
    generation: Annotated[int, Field(ge=1)]
    fingerprint: dict[str, str]
    saved_unix_ms: int
    frontier_tokens: int
    response_records: int
    bytes: int


class Sealed(Document):
    """An opened envelope."""

    header: Header
    manifest: SessionManifest


def seal(header: Header, manifest: SessionManifest, key: OriginKey) -> bytes:
    """The bytes of an envelope, signed with `key`."""
    head, body = canonical_json(header.model_dump()), manifest.to_bytes()
    signature = (key.key_id + key.tag(_signed(head, body, key.key_id))).hex().encode()
    return b"\n".join((head, _digest(head, signature, body), signature, body))


def unseal(data: bytes, key: OriginKey, require_origin: bool) -> Sealed:
    """The envelope's content, once its digest, and where they can be checked its signature and format, hold.

    Raises StoreCorruptError (bytes changed), StoreIncompatibleError (newer format, unknown origin). The fingerprint
    is the caller's to compare (`differing_parts`).
    """
    head, digest, signature, body = _split(data)
    if _digest(head, signature, body) != digest:
        raise StoreCorruptError("the session's record does not match its digest")
    _check_origin(head, body, signature, key, require_origin)
    _check_format(head)
    try:
        sealed = Sealed(header=Header.model_validate_json(head), manifest=SessionManifest.model_validate_json(body))
    except ValidationError as error:
        raise StoreCorruptError(f"the session's record is not valid: {error.errors()[0]['msg']}") from error
    if sealed.header.session != sealed.manifest.session or sealed.header.generation != sealed.manifest.generation:
        raise StoreCorruptError("the session's record names two sessions or generations")
    return sealed


def differing_parts(stored: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the fingerprint parts that are not equal, sorted."""
    return tuple(sorted(name for name in stored.keys() | own.keys() if stored.get(name) != own.get(name)))


def _digest(head: bytes, signature: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"\n".join((head, signature, body))).hexdigest().encode()


def _signed(head: bytes, body: bytes, key_id: bytes) -> bytes:
    return hashlib.sha256(b"\n".join((b"manifest", key_id, head, body))).digest()


def _split(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    pieces = data.split(b"\n", 3)
    if len(pieces) != 4:
        raise StoreCorruptError("the session's record is cut short")
    return pieces[0], pieces[1], pieces[2], pieces[3]


def _check_origin(head: bytes, body: bytes, signature: bytes, key: OriginKey, require_origin: bool) -> None:
    raw = bytes.fromhex(signature.decode())
    signed_by, tag = raw[:8], raw[8:]
    if key.signs and signed_by == key.key_id:
        if not key.verifies(_signed(head, body, signed_by), tag):
            raise StoreCorruptError("the session's signature does not verify")
    elif require_origin:
        raise StoreIncompatibleError("the session was saved under another API key, or unsigned: "
                                     "use that key, or drop --session-checkpoint-require-origin-auth", ("origin",))


def _check_format(head: bytes) -> None:
    try:
        found = json.loads(head).get("format")
    except (ValueError, AttributeError) as error:
        raise StoreCorruptError("the session's header is unreadable") from error
    if isinstance(found, int) and found != FORMAT:
        raise StoreIncompatibleError(f"the session has store format {found}, this engine reads {FORMAT}: "
                                     "use the engine that wrote it, or replay", ("format",))
