"""Who wrote a record: a key derived from the API key signs what is saved. The key itself is never stored.

Digests prove that bytes are whole; only the signature proves that they come from an engine that knew the key.
"""

import hashlib
import hmac
from dataclasses import dataclass

NO_KEY_ID = bytes(8)
TAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class OriginKey:
    """A signing key and its public name `key_id` (8 bytes, says nothing about the key)."""

    secret: bytes
    key_id: bytes

    @classmethod
    def from_api_key(cls, api_key: str | None) -> "OriginKey":
        """The key of an engine with this API key. Without one records are unsigned: integrity, no origin."""
        if api_key is None:
            return cls(b"", NO_KEY_ID)
        secret = hmac.new(b"ninfer-store-origin-1", api_key.encode(), hashlib.sha256).digest()
        return cls.from_secret(secret)

    @classmethod
    def from_secret(cls, secret: bytes | None) -> "OriginKey":
        """The key made of derived secret bytes; None: unsigned."""
        if not secret:
            return cls(b"", NO_KEY_ID)
        return cls(secret, hmac.new(secret, b"ninfer-store-key-id", hashlib.sha256).digest()[:8])

    @property
    def signs(self) -> bool:
        """Whether this key signs at all."""
        return bool(self.secret)

    def tag(self, data: bytes) -> bytes:
        """The signature of `data`; zeroes when unsigned."""
        if not self.signs:
            return bytes(TAG_BYTES)
        return hmac.digest(self.secret, data, "sha256")[:TAG_BYTES]

    def verifies(self, data: bytes, tag: bytes) -> bool:
        """Whether `tag` is this key's signature of `data`, compared in constant time."""
        return hmac.compare_digest(self.tag(data), tag)
