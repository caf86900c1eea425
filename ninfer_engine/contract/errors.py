"""The error body of every route, and the codes that clients may rely on."""

from enum import StrEnum

from ninfer_engine.contract.base import Reply


class ErrorCode(StrEnum):
    """Machine-readable codes; the HTTP status of each is `HTTP_STATUS[code]`."""

    INVALID_REQUEST = "invalid_request"
    INVALID_JSON = "invalid_json"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    INVALID_NINFER_IDENTITY = "invalid_ninfer_identity"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_FOUND = "model_not_found"
    RESPONSE_NOT_FOUND = "response_not_found"
    PREVIOUS_RESPONSE_NOT_FOUND = "previous_response_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOTHING_TO_SAVE = "nothing_to_save"
    CHECKPOINT_UNAVAILABLE = "checkpoint_unavailable"
    REQUEST_TOO_LARGE = "request_too_large"
    SERVER_OVERLOADED = "server_overloaded"
    REQUEST_QUEUE_TIMEOUT = "request_queue_timeout"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    INTERNAL_ERROR = "internal_error"


HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.INVALID_JSON: 400,
    ErrorCode.UNKNOWN_PARAMETER: 400,
    ErrorCode.UNSUPPORTED_PARAMETER: 400,
    ErrorCode.INVALID_NINFER_IDENTITY: 400,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: 400,
    ErrorCode.INVALID_API_KEY: 401,
    ErrorCode.MODEL_NOT_FOUND: 404,
    ErrorCode.RESPONSE_NOT_FOUND: 404,
    ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND: 404,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.NOTHING_TO_SAVE: 409,
    ErrorCode.CHECKPOINT_UNAVAILABLE: 409,
    ErrorCode.REQUEST_TOO_LARGE: 413,
    ErrorCode.SERVER_OVERLOADED: 429,
    ErrorCode.REQUEST_QUEUE_TIMEOUT: 503,
    ErrorCode.ENGINE_UNAVAILABLE: 503,
    ErrorCode.INTERNAL_ERROR: 500,
}


class ErrorDetail(Reply):
    """What went wrong, for a person (`message`) and for a program (`code`, `param`)."""

    message: str
    type: str
    code: str | None = None
    param: str | None = None


class ErrorBody(Reply):
    """`{"error": {...}}`, the body of every reply that is not a success."""

    error: ErrorDetail


def error_type(code: ErrorCode) -> str:
    """The OpenAI `type` that goes with a code's HTTP status."""
    status = HTTP_STATUS[code]
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
