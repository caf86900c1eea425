"""Changes of a keyring: each gives the next version as a value; signing it is another step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.receipts.attachments import first_error
from ninfer_lifecycle.receipts.keyring import KeyEntry, Keyring, RoleEntry, key_entry
from ninfer_lifecycle.receipts.keys import PublicKey
from ninfer_lifecycle.receipts.times import format_time
from ninfer_lifecycle.receipts.trust import Role


@dataclass(frozen=True)
class Change:
    """What a rotation does. add, remove: (role, key id or key); a key that no role has any more leaves the ring
    unless it is revoked, for a revocation must stay readable.
    """

    add: Sequence[tuple[Role, PublicKey]] = ()
    remove: Sequence[tuple[Role, str]] = ()
    thresholds: Mapping[Role, int] = field(default_factory=dict)


def first_keyring(members: Sequence[tuple[Role, PublicKey]], thresholds: Mapping[Role, int], now: datetime,
                  expires_on: datetime) -> Keyring:
    """Version 1."""
    return _ring(_Draft(1), Change(add=members, thresholds=thresholds), now, expires_on)


def rotated(keyring: Keyring, change: Change, now: datetime, expires_on: datetime) -> Keyring:
    """The next version with `change`. Raises UsageError for what would not hold together."""
    roles = {role: list(entry.keyids) for role, entry in keyring.roles.items()}
    thresholds = {role: entry.threshold for role, entry in keyring.roles.items()}
    return _ring(_Draft(keyring.version + 1, keyring.keys, roles, thresholds), change, now, expires_on)


def revoked(keyring: Keyring, keyid: str, now: datetime, expires_on: datetime, on: datetime | None) -> Keyring:
    """The next version with a key revoked from `on`, or compromised when that is None. It stays in its roles, so that
    what it signed before `on` goes on being verified; from the root role it is removed.
    """
    full = find_key(keyring, keyid)
    entry = keyring.keys[full]
    update = {"compromised": True} if on is None else {"revoked_on": format_time(on)}
    keys = {**keyring.keys, full: KeyEntry.model_validate(entry.model_dump() | update)}
    roles = {role: [item for item in held.keyids if not (role is Role.ROOT and item == full)]
             for role, held in keyring.roles.items()}
    thresholds = {role: held.threshold for role, held in keyring.roles.items()}
    return _ring(_Draft(keyring.version + 1, keys, roles, thresholds), Change(), now, expires_on)


def find_key(keyring: Keyring, prefix: str) -> str:
    """The one key id that begins with `prefix`. Raises UsageError."""
    found = [keyid for keyid in keyring.keys if keyid.startswith(prefix.lower())]
    if len(found) != 1 or len(prefix) < 8:
        raise UsageError(f"{prefix!r} does not name one key of the ring", "Give 8 or more digits: ninfer key list")
    return found[0]


@dataclass(frozen=True)
class _Draft:
    version: int
    keys: dict[str, KeyEntry] = field(default_factory=dict)
    roles: dict[Role, list[str]] = field(default_factory=dict)
    thresholds: Mapping[Role, int] = field(default_factory=dict)


def _ring(draft: _Draft, change: Change, now: datetime, expires_on: datetime) -> Keyring:
    keys = dict(draft.keys)
    roles = {role: list(keyids) for role, keyids in draft.roles.items()}
    for role, prefix in change.remove:
        matching = [keyid for keyid in roles.get(role, []) if keyid.startswith(prefix.lower())]
        if len(matching) != 1:
            raise UsageError(f"{prefix!r} does not name one key of the role {role}", "See: ninfer key list")
        roles[role].remove(matching[0])
    for role, key in change.add:
        keys.setdefault(key.keyid, key_entry(key))
        if key.keyid not in roles.setdefault(role, []):
            roles[role].append(key.keyid)
    held = {keyid for keyids in roles.values() for keyid in keyids}
    kept = {keyid: entry for keyid, entry in keys.items()
            if keyid in held or entry.compromised or entry.revoked_on is not None}
    wanted = {**draft.thresholds, **change.thresholds}
    try:
        return Keyring(
            version=draft.version, issued_on=format_time(now), expires_on=format_time(expires_on), keys=kept,
            roles={role: RoleEntry(keyids=tuple(keyids), threshold=wanted.get(role, 1))
                   for role, keyids in roles.items() if keyids or role is Role.ROOT},
        )
    except ValidationError as error:
        raise UsageError(f"no such keyring: {first_error(error)}", "Check --add, --remove and --threshold.") from None
