"""The keyring: which keys have which role, how many must sign, until when. Versioned, expiring, signed by its root.

A keyring is believed because its version was signed by a threshold of the root keys of the version before, and of its
own; the chain ends at root keys that the reader pinned, or at a first version that the reader was handed in person.
Old versions prove the way to the newest; only the newest gives trust.

Reference for the rules: The Update Framework's root metadata, reduced to what a single document needs.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from ninfer_engine.contract.base import Sha256Hex
from ninfer_lifecycle.gates.base import SignedDocument
from ninfer_lifecycle.receipts import dsse, strict_json
from ninfer_lifecycle.receipts.attachments import first_error
from ninfer_lifecycle.receipts.canonical import canonical, is_canonical
from ninfer_lifecycle.receipts.errors import KeyFileError, MalformedError, UntrustedError
from ninfer_lifecycle.receipts.keys import PublicKey, Signer
from ninfer_lifecycle.receipts.times import Timestamp, parse_time
from ninfer_lifecycle.receipts.trust import Role, RoleTrust, TrustedKey

PAYLOAD_TYPE = "application/vnd.ninfer.keyring+json"
"""Its own type, so that a signature over a keyring can never pass for one over a receipt, nor the other way round."""

MAX_KEYRING_BYTES = 1024 * 1024


class KeyEntry(SignedDocument):
    """A key of the ring. spki: base64 of its SPKI DER. revoked_on and compromised as in trust.TrustedKey."""

    spki: str
    label: str = ""
    revoked_on: Timestamp | None = None
    compromised: bool = False

    @property
    def key(self) -> PublicKey:
        """The key. Raises KeyFileError for what is no canonical Ed25519 SPKI."""
        try:
            return PublicKey.from_spki(base64.b64decode(self.spki, validate=True))
        except binascii.Error:
            raise KeyFileError("spki is not base64", "The keyring is damaged.") from None


class RoleEntry(SignedDocument):
    """Who has a role: key ids, each once, and how many of them must sign."""

    keyids: tuple[Sha256Hex, ...] = Field(min_length=1)
    threshold: int = Field(ge=1)


class Keyring(SignedDocument):
    """One version of the keyring. Every key stands under the id computed from it, so none can stand twice."""

    type: Literal["ninfer_keyring"] = "ninfer_keyring"
    schema_version: Literal[1] = 1
    version: int = Field(ge=1)
    issued_on: Timestamp
    expires_on: Timestamp
    keys: dict[Sha256Hex, KeyEntry]
    roles: dict[Role, RoleEntry]

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if parse_time(self.issued_on) >= parse_time(self.expires_on):
            raise ValueError("a keyring expires after it was issued")
        for keyid, entry in self.keys.items():
            try:
                computed = entry.key.keyid
            except KeyFileError as error:
                raise ValueError(f"key {keyid[:16]}: {error.message}") from None
            if computed != keyid:
                raise ValueError(f"key {keyid[:16]} stands under an id that is not its own")
        if Role.ROOT not in self.roles:
            raise ValueError("a keyring has a root role")
        for role, members in self.roles.items():
            self._check_role(role, members)
        return self

    def _check_role(self, role: Role, entry: RoleEntry) -> None:
        if len(set(entry.keyids)) != len(entry.keyids):
            raise ValueError(f"role {role} names a key twice")
        if not set(entry.keyids) <= set(self.keys):
            raise ValueError(f"role {role} names a key that is not in the ring")
        if entry.threshold > len(entry.keyids):
            raise ValueError(f"role {role} needs {entry.threshold} of {len(entry.keyids)} keys")

    def trust(self, role: Role) -> RoleTrust:
        """The role's keys. Raises UntrustedError for a role that nobody has."""
        entry = self.roles.get(role)
        if entry is None:
            raise UntrustedError(f"nobody has the role {role}", f"Add a key: ninfer key rotate --add {role}=KEY.pub")
        keys = tuple(self._trusted(keyid) for keyid in entry.keyids)
        return RoleTrust(role, keys, entry.threshold, self.version)

    def refuse_expired(self, now: datetime) -> None:
        """Raise UntrustedError when this version is no longer, or not yet, to be used."""
        if now >= parse_time(self.expires_on):
            raise UntrustedError(f"keyring version {self.version} expired at {self.expires_on}",
                                 "Get a newer one, or sign one: ninfer key rotate")

    def _trusted(self, keyid: str) -> TrustedKey:
        entry = self.keys[keyid]
        revoked = parse_time(entry.revoked_on) if entry.revoked_on else None
        return TrustedKey(entry.key, revoked, entry.compromised)


@dataclass(frozen=True)
class SignedKeyring:
    """A keyring with the envelope that it came in; its own root threshold has signed it, nothing more is known."""

    keyring: Keyring
    envelope: dsse.Envelope


def parse_keyring(raw: bytes) -> SignedKeyring:
    """Read one version and check that a threshold of *its own* root keys signed it. Raises RefusedError.

    That alone is no reason to believe it: anyone can sign a ring of their own keys.
    """
    envelope = dsse.decode(dsse.parse_envelope(raw))
    if envelope.payload_type != PAYLOAD_TYPE:
        raise MalformedError(f"payload type {envelope.payload_type[:60]!r} is not {PAYLOAD_TYPE}", "Not a keyring.")
    value = strict_json.parse_object(envelope.payload, max_bytes=MAX_KEYRING_BYTES)
    if not is_canonical(envelope.payload, value):
        raise MalformedError("the keyring is not canonical JSON")
    try:
        keyring = Keyring.model_validate_json(envelope.payload, strict=True)
    except ValidationError as error:
        raise MalformedError(f"keyring: {first_error(error)}") from None
    require_root(envelope, keyring, "its own root")
    return SignedKeyring(keyring, envelope)


def require_root(envelope: dsse.Envelope, keyring: Keyring, whose: str) -> None:
    """Raise UntrustedError unless a threshold of `keyring`'s usable root keys signed `envelope`.

    A revoked root key does not sign keyrings: its date would be its thief's word.
    """
    trust = keyring.trust(Role.ROOT)
    usable = tuple(item.key for item in trust.keys if not item.compromised and item.revoked_on is None)
    have = len(dsse.verifying_keys(envelope, usable))
    if have < trust.threshold:
        raise UntrustedError(f"{have} of {trust.threshold} keys of {whose} signed the keyring",
                             "Get the keyring from its source again, or have its root keys sign it.")


def follow(current: Keyring, raw: bytes) -> SignedKeyring:
    """The next version, where the root of `current` and its own root both signed it. Raises RefusedError."""
    following = parse_keyring(raw)
    if following.keyring.version != current.version + 1:
        raise UntrustedError(f"version {following.keyring.version} does not follow version {current.version}",
                             "Give every version in between; older ones than the one you have are refused.")
    require_root(following.envelope, current, f"the root of version {current.version}")
    return following


def load_keyring(versions: Sequence[bytes], now: datetime, pinned_roots: Sequence[PublicKey] = ()) -> Keyring:
    """The newest of consecutive `versions`, walked from the first; it alone must not have expired.

    pinned_roots: keys of which a threshold must have signed the first version given; without any, the first version is
    believed as handed over. Raises RefusedError.
    """
    if not versions:
        raise UntrustedError("there is no keyring", "Give one: --keyring FILE")
    first = parse_keyring(versions[0])
    if pinned_roots:
        _require_pinned(first, pinned_roots)
    keyring = first.keyring
    for raw in versions[1:]:
        keyring = follow(keyring, raw).keyring
    keyring.refuse_expired(now)
    return keyring


def _require_pinned(first: SignedKeyring, pinned: Sequence[PublicKey]) -> None:
    need = first.keyring.roles[Role.ROOT].threshold
    have = len(dsse.verifying_keys(first.envelope, list(pinned)))
    if have < need:
        raise UntrustedError(f"{have} of {need} pinned root keys signed the first keyring given",
                             "It is not the ring that you pinned; start from a version that the pinned root signed.")


def sign_keyring(keyring: Keyring, signers: Sequence[Signer], previous: Keyring | None = None) -> bytes:
    """The file of a version, signed. Raises UntrustedError when `signers` do not reach the thresholds of its own root
    and of the root of `previous`: a ring that no one could follow is never written.
    """
    envelope = dsse.sign(PAYLOAD_TYPE, canonical(keyring.to_json()), signers)
    require_root(envelope, keyring, "its own root")
    if previous is not None:
        require_root(envelope, previous, f"the root of version {previous.version}")
    return dsse.encode(envelope)


def key_entry(key: PublicKey, label: str = "", **more: Any) -> KeyEntry:
    """The entry of a key."""
    return KeyEntry(spki=base64.b64encode(key.spki).decode(), label=label, **more)
