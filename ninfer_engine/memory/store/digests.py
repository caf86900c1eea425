"""Names of stored objects: 32-byte keyed digests, equal for equal content in every process and on every host.

A page's name is a chain over the tokens from root, keyed by the fingerprint: equal names mean equal tokens at equal
positions under an equal model and configuration. Nothing here depends on a process or its seed.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterable, Mapping, Sequence

from ninfer_engine.contract.base import canonical_json

DIGEST_BYTES = 32
PAGE_TOKENS = 64


class ObjectNames:
    """The names of one configuration's objects. `salt` separates sessions that must share nothing."""

    def __init__(self, fingerprint: Mapping[str, str], salt: str = "") -> None:
        self._key = hashlib.sha256(b"ninfer-objects-1\0" + canonical_json([dict(fingerprint), salt])).digest()

    def pages(self, tokens: Sequence[int]) -> list[bytes]:
        """The name of every page of a sequence, the last one for as many tokens as it holds."""
        names, chain = [], self._key
        for start in range(0, len(tokens), PAGE_TOKENS):
            run = tokens[start:start + PAGE_TOKENS]
            chain = self.next_page(chain, run)
            names.append(chain)
        return names

    def next_page(self, before: bytes | None, run: Sequence[int]) -> bytes:
        """The name of the page that holds `run` (1 to 64 tokens) behind the full page named `before` (None: root)."""
        return self.next_packed_page(before, pack_tokens(run))

    def next_packed_page(self, before: bytes | None, run: bytes) -> bytes:
        """`next_page` of tokens that are packed already."""
        return self._digest(b"page", before or self._key, run)

    def image(self, last_page: bytes | None, frontier_tokens: int) -> bytes:
        """The name of the state image at a frontier whose last (full or partial) page is `last_page`."""
        return self._digest(b"image", last_page or self._key, struct.pack("<Q", frontier_tokens))

    def content(self, kind: str, data: bytes) -> bytes:
        """The name of an object that is named by its own bytes: token runs ("tokens"), response documents."""
        return self._digest(kind.encode(), data)

    def _digest(self, kind: bytes, *parts: bytes) -> bytes:
        measured = (piece for part in parts for piece in (struct.pack("<Q", len(part)), part))
        return hmac.digest(self._key, b"".join((kind, *measured)), "sha256")


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as little-endian uint32."""
    listed = list(tokens)
    return struct.pack(f"<{len(listed)}I", *listed)


def unpack_tokens(data: bytes | bytearray | memoryview) -> tuple[int, ...]:
    """The token ids in bytes made by `pack_tokens`."""
    return struct.unpack(f"<{len(data) // 4}I", data)
