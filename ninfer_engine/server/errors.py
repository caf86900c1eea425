"""One place where every failure becomes an HTTP body: `{"error": {message, type, code, param}}`."""

from collections.abc import Sequence

from ninfer_engine.contract.errors import HTTP_STATUS, ErrorBody, ErrorCode, ErrorDetail, error_type
from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.server.json_reply import JsonReply

ANTHROPIC_TYPE = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


PROMPT_FIELD = {"/v1/chat/completions": "messages", "/v1/messages": "messages", "/v1/completions": "prompt"}
"""What a route calls its prompt, where it is not `input`."""


class ApiError(Exception):
    """A request that gets an error body. The message is for the client and never repeats prompt text. allow: the
    methods that there are, of method_not_allowed."""

    def __init__(self, code: ErrorCode, message: str, param: str | None = None, allow: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.allow = allow

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return HTTP_STATUS[self.code]

    @classmethod
    def of(cls, refusal: EngineRefusedError) -> "ApiError":
        """What the engine refused, as this server says it."""
        return cls(refusal.code, refusal.message, refusal.param)

    def detail(self, path: str = "") -> ErrorDetail:
        """The inner object of the body. The engine knows a prompt, and no route's name for it."""
        too_long = self.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
        param = PROMPT_FIELD.get(path, self.param) if too_long else self.param
        return ErrorDetail(message=self.message, type=error_type(self.code), code=self.code.value, param=param)

    def body(self, path: str = "") -> dict[str, object]:
        """The whole body; on /v1/messages it also has the outer `type` that Anthropic clients read."""
        body: dict[str, object] = ErrorBody(error=self.detail(path)).model_dump()
        if path.startswith("/v1/messages"):
            error = {**self.detail(path).model_dump(), "type": ANTHROPIC_TYPE[self.status]}
            body = {"type": "error", "error": error}
        return body

    def response(self, path: str = "") -> JsonReply:
        """The HTTP reply."""
        headers: dict[str, str] = {}
        match self.code:
            case ErrorCode.INVALID_API_KEY:
                headers["www-authenticate"] = "Bearer"
            case ErrorCode.METHOD_NOT_ALLOWED:
                headers["allow"] = ", ".join(self.allow)
            case ErrorCode.SERVER_OVERLOADED | ErrorCode.REQUEST_QUEUE_TIMEOUT:
                headers["retry-after"] = "1"
            case _:
                pass
        return JsonReply(self.body(path), self.status, headers)


class ClientGoneError(Exception):
    """The client went away; there is nobody to answer."""


def invalid(message: str, param: str | None = None) -> ApiError:
    """A 400 invalid_request."""
    return ApiError(ErrorCode.INVALID_REQUEST, message, param)


def prompt_too_long(count: int, limit: int) -> ApiError:
    """A 400 context_length_exceeded, as the engine says it."""
    return ApiError(ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                    f"the prompt has {count} tokens, the limit is {limit} for prompt and reply together", "prompt")


def internal_error(request_id: str) -> ApiError:
    """The 500 of a fault of ours."""
    return ApiError(ErrorCode.INTERNAL_ERROR, f"an internal error occurred; quote request id {request_id}")


def unsupported(param: str, why: str) -> ApiError:
    """A 400 for something of the public API that this engine does not do: named, never ignored."""
    return ApiError(ErrorCode.UNSUPPORTED_PARAMETER, f"{param} is not supported: {why}", param)
