"""Whom to believe: the keys of one role, how many of them must have signed, and which of them no longer count."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ninfer_lifecycle.receipts.keys import PublicKey


class Role(StrEnum):
    """What a key may sign: receipts, release decisions, keyrings."""

    QUALIFIER = "qualifier"
    RELEASE = "release"
    ROOT = "root"


@dataclass(frozen=True)
class TrustedKey:
    """A key of a role. revoked_on: what it signed for later times does not count. compromised: nothing counts."""

    key: PublicKey
    revoked_on: datetime | None = None
    compromised: bool = False

    def counts_at(self, moment: datetime) -> bool:
        """Whether a statement of `moment` by this key counts. The moment is the signer's word: hence `compromised`."""
        return not self.compromised and (self.revoked_on is None or moment < self.revoked_on)


@dataclass(frozen=True)
class RoleTrust:
    """The keys of one role. The threshold counts distinct public keys. keyring_version: None for bare key files."""

    role: Role
    keys: tuple[TrustedKey, ...]
    threshold: int = 1
    keyring_version: int | None = None

    def usable(self) -> tuple[PublicKey, ...]:
        """Keys that may count at some time at all."""
        return tuple(trusted.key for trusted in self.keys if not trusted.compromised)

    def counting(self, keys: tuple[PublicKey, ...], moment: datetime) -> tuple[PublicKey, ...]:
        """Those of `keys` that count for a statement of `moment`."""
        spkis = {trusted.key.spki for trusted in self.keys if trusted.counts_at(moment)}
        return tuple(key for key in keys if key.spki in spkis)


def trust_keys(role: Role, *keys: PublicKey) -> RoleTrust:
    """Trust in bare public keys, any one of them: the simple start, without expiry or revocation."""
    return RoleTrust(role, tuple(TrustedKey(key) for key in keys))
