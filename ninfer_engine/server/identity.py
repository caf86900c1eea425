"""Who asks: the session and the request id, from the body or the header."""

import re
import secrets
from typing import Any

from starlette.requests import Request

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.server.errors import ApiError

SESSION_HEADER = "x-ninfer-session"
REQUEST_ID_HEADER = "x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_HEX64 = re.compile(r"[0-9a-f]{64}")


def new_request_id() -> str:
    """A request id for a request that brought none."""
    return secrets.token_hex(32)


def request_id_of(request: Request) -> str:
    """The id of a request: that of its header x-request-id when it is one of letters, digits, `.`, `_` and `-`, at most
    128, else a new one. It names the request in the reply, the logs, the diagnostics and the traces."""
    given = request.headers.getlist(REQUEST_ID_HEADER)
    return given[0] if len(given) == 1 and _REQUEST_ID.fullmatch(given[0]) else new_request_id()


def header_session(request: Request) -> str | None:
    """The session of header X-NInfer-Session, if any."""
    values = request.headers.getlist(SESSION_HEADER)
    if len(values) > 1:
        raise _identity("X-NInfer-Session is given more than once", SESSION_HEADER)
    return _checked(values[0], SESSION_HEADER) if values else None


def take_identity(request: Request, body: dict[str, Any]) -> str | None:
    """The session of a request. Takes the two identity fields out of `body`; a request id of the client's becomes the
    id of this request (`request.state.request_id`), in the reply, the log and the diagnostics."""
    given = body.pop("ninfer_request_id", None)
    if given is not None:
        request.state.request_id = _checked(given, "ninfer_request_id")
    in_body = body.pop("ninfer_session", None)
    session = None if in_body is None else _checked(in_body, "ninfer_session")
    return same_session(header_session(request), session, "ninfer_session")


def same_session(header: str | None, other: str | None, param: str) -> str | None:
    """The one session that both name; two different ones are refused."""
    if header is not None and other is not None and header != other:
        raise _identity(f"{param} and X-NInfer-Session name different sessions", param)
    return header if other is None else other


def _checked(value: Any, param: str) -> str:
    if not isinstance(value, str) or not _HEX64.fullmatch(value):
        raise _identity(f"{param} must be 64 lowercase hex characters", param)
    return value


def _identity(message: str, param: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_NINFER_IDENTITY, message, param)
