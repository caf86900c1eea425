"""The API key: `Authorization: Bearer KEY` or `x-api-key: KEY`, compared in constant time. /health is open."""

import hmac

from starlette.requests import Request

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.server.errors import ApiError


class KeyCheck:
    """Checks requests against one key; None: every request passes."""

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else key.encode()

    def check(self, request: Request) -> None:
        """Raises invalid_api_key."""
        if self._key is None or request.scope["path"] == "/health":
            return
        if not any([hmac.compare_digest(given, self._key) for given in _given(request)]):  # noqa: C419 - compare all
            raise ApiError(
                ErrorCode.INVALID_API_KEY, "send the API key as `Authorization: Bearer KEY` or as `x-api-key: KEY`"
            )


def _given(request: Request) -> list[bytes]:
    found = [value.encode("latin-1") for value in request.headers.getlist("x-api-key")]
    for value in request.headers.getlist("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            found.append(token.strip().encode("latin-1"))
    return found
