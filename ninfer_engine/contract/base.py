"""The base of every document of the contract, and its canonical bytes."""

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Document(BaseModel):
    """An immutable document; a field that it does not know is an error, not a shrug."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Reply(BaseModel):
    """An immutable document that a newer engine may extend: unknown fields are kept out, not refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no spaces, UTF-8, no NaN: the bytes that identities are hashed over.

    For values made of str, int, bool, None, lists and string-keyed dicts this equals RFC 8785 up to key order of
    characters outside the basic plane; floats are refused, since their text differs between writers.
    """
    _refuse_floats(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(data: bytes) -> str:
    """SHA-256 of `data` in lowercase hex."""
    return hashlib.sha256(data).hexdigest()


def _refuse_floats(value: Any) -> None:
    match value:
        case float():
            raise TypeError("canonical JSON holds no floats: use integers with a unit in the name")
        case dict():
            for item in value.values():
                _refuse_floats(item)
        case list() | tuple():
            for item in value:
                _refuse_floats(item)
        case _:
            return
