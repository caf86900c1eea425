"""Canonical JSON (RFC 8785): the only bytes that are signed or hashed here."""

import json
from typing import Any

import rfc8785

from ninfer_lifecycle.receipts.errors import MalformedError

_MAX_INTEGER = 2**53 - 1


def canonical(value: Any) -> bytes:
    """RFC 8785 bytes of a value of str, int, bool, None, lists and string-keyed dicts.

    Raises MalformedError for integers beyond 2^53 - 1 (readers of doubles would see others) and for lone surrogates.
    """
    try:
        if _is_simple(value):
            return _SIMPLE.encode(value).encode()
        return bytes(rfc8785.dumps(value))
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise MalformedError(f"no canonical form: {str(error)[:120]}") from None


def is_canonical(raw: bytes, value: Any) -> bool:
    """Whether `raw` is exactly the canonical form of what was parsed from it."""
    return canonical(value) == raw


_SIMPLE = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _is_simple(value: Any) -> bool:
    """Whether the standard encoder gives the RFC's bytes: ASCII keys (their order is that of UTF-16), small integers.

    Every document of ours is so; the pure Python encoder takes ten times as long. A property test holds the two equal.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_MAX_INTEGER <= value <= _MAX_INTEGER)
    if kind is dict:
        return all(type(key) is str and key.isascii() for key in value) and all(map(_is_simple, value.values()))
    return kind is list and all(map(_is_simple, value))
