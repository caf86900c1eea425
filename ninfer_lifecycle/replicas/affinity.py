"""Which replica a request belongs to, read from the request alone. Pure; standard library only.

A fork goes on from a response, and a response lives where it was made. So a request names what it stands on: a stored
response (previous_response_id, or an id in the path), and beside it the session that the response belongs to.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_RESPONSE_IN_PATH = re.compile(rb"^/v1/responses/(resp_[A-Za-z0-9_-]+)(?:/|$)")
_SESSION_IN_PATH = re.compile(rb"^/v1/ninfer/checkpoints/([0-9a-f]{64})(?:/|$)")
_SESSION = re.compile(r"[0-9a-f]{64}")
_RESPONSE = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True, slots=True)
class Belongs:
    """What a request stands on. response: id of a stored response. session: 64 hex digits. Both None: on nothing."""

    response: str | None = None
    session: str | None = None


def belongs(target: bytes, session_header: bytes | None, body: bytes) -> Belongs:
    """Read it from path, header and body. What cannot be read belongs to nothing: the engine says what is wrong."""
    path = target.partition(b"?")[0]
    in_path, held = _RESPONSE_IN_PATH.match(path), _SESSION_IN_PATH.match(path)
    document = _object(body)
    response = in_path.group(1).decode() if in_path else _text(document.get("previous_response_id"), _RESPONSE)
    session = (held.group(1).decode() if held else _text(document.get("ninfer_session"), _SESSION)
               or _text(document.get("session_sha256"), _SESSION)
               or _text((session_header or b"").decode("ascii", "replace"), _SESSION))
    return Belongs(response, session)


def preferred(session: str, replicas: Sequence[str]) -> str:
    """The replica of a session that nobody holds yet: the same for every front that sees the same replicas, and moved
    for as few sessions as can be when one of them goes (highest random weight). replicas: not empty.
    """
    return max(sorted(replicas), key=lambda name: hashlib.sha256(f"{session} {name}".encode()).digest())


def _object(body: bytes) -> dict[str, object]:
    if body.lstrip()[:1] != b"{":
        return {}
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text(value: object, form: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and form.fullmatch(value) else None
