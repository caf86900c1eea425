"""JSON as signed documents need it: one reading only.

Refused: duplicate members (two readers would see two documents), NaN and infinities, floats (their text differs between
writers), lone surrogates, invalid UTF-8, a byte order mark, anything after the value, more than `max_bytes` or
`max_depth`. pydantic alone accepts duplicate members, even in strict mode; hence this parser in front of it.
"""

import json
import re
from typing import Any

from ninfer_lifecycle.receipts.errors import MalformedError

MAX_DEPTH = 32
_ADVICE = "The file is damaged or was not written by a tool of this kind; take it from its source again."
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def parse(raw: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> Any:
    """The JSON value in `raw`. Raises MalformedError for everything that the module's docstring refuses."""
    if len(raw) > max_bytes:
        raise MalformedError(f"{len(raw)} bytes are more than the {max_bytes} allowed here", _ADVICE)
    _refuse_depth(raw, max_depth)
    try:
        text = raw.decode("utf-8", "strict")
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_refuse_float
        )
        # Escapes can smuggle in halves of surrogate pairs, which no UTF-8 reader could give back.
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8", "strict")
    except MalformedError:
        raise
    except (ValueError, RecursionError) as error:  # JSONDecodeError, UnicodeError, oversized integers
        raise MalformedError(f"not JSON: {_short(error)}", _ADVICE) from None
    return value


def parse_object(raw: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """As `parse`, and the value is an object."""
    value = parse(raw, max_bytes=max_bytes, max_depth=max_depth)
    if not isinstance(value, dict):
        raise MalformedError(f"a JSON object is expected here, not {type(value).__name__}", _ADVICE)
    return value


def _refuse_depth(raw: bytes, max_depth: int) -> None:
    if raw.count(b"[") + raw.count(b"{") <= max_depth:
        return  # a line of evidence, most often: it cannot be too deep
    depth = 0
    for match in _BRACKET.finditer(_STRING.sub(b"", raw)):
        depth += 1 if match[0] in b"[{" else -1
        if depth > max_depth:
            raise MalformedError(f"nested deeper than {max_depth}", _ADVICE)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedError(f"member {twice[:40]!r} stands twice in one object", _ADVICE)
    return value


def _refuse_constant(name: str) -> Any:
    raise MalformedError(f"{name} is not a number of JSON", _ADVICE)


def _refuse_float(text: str) -> Any:
    raise MalformedError(f"{text[:40]} is not an integer; these documents hold integers only", _ADVICE)


def _short(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0][:120]
