"""Canonical JSON (RFC 8785): the only bytes that are signed or hashed here."""

from typing import Any

import rfc8785

from ninfer_lifecycle.receipts.errors import MalformedError


def canonical(value: Any) -> bytes:
    """RFC 8785 bytes of a value of str, int, bool, None, lists and string-keyed dicts.

    Raises MalformedError for integers beyond 2^53 - 1 (readers of doubles would see others) and for lone surrogates.
    """
    try:
        return bytes(rfc8785.dumps(value))
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise MalformedError(f"no canonical form: {str(error)[:120]}") from None


def is_canonical(raw: bytes, value: Any) -> bool:
    """Whether `raw` is exactly the canonical form of what was parsed from it."""
    return canonical(value) == raw
