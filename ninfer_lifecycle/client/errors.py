"""What can go wrong in a call: values with advice, and nothing of httpx."""

from ninfer_engine.contract.errors import ErrorCode
from ninfer_lifecycle.errors import EngineError


class EngineUnreachableError(EngineError):
    """No connection, or it broke before the reply was whole."""


class EngineDeadlineError(EngineError):
    """No whole reply within the deadline."""


class EngineProtocolError(EngineError):
    """A reply that the contract does not know: not JSON, or fields missing."""


class EngineReplyError(EngineError):
    """The engine answered with an error body: `status`, `code` and `param` are its own."""

    def __init__(self, status: int, code: str | None, message: str, param: str | None = None) -> None:
        where = f" (parameter {param})" if param else ""
        super().__init__(f"engine answered {status} {code or 'without a code'}: {message}{where}", _ADVICE.get(
            code or "", "read the engine's log (`ninfer logs`) for the request"))
        self.status = status
        self.code = code
        self.param = param


_ADVICE: dict[str, str] = {
    ErrorCode.INVALID_API_KEY.value: "give the key that the engine was started with (--api-key-file)",
    ErrorCode.CONTEXT_LENGTH_EXCEEDED.value: "raise max_context in the profile, or send less",
    ErrorCode.SERVER_OVERLOADED.value: "raise max_concurrency or max_pending_requests, or send fewer at once",
    ErrorCode.REQUEST_QUEUE_TIMEOUT.value: "raise pending_timeout_ms, or send fewer at once",
    ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND.value: "send the whole input again: this response is not stored here",
    ErrorCode.NOTHING_TO_SAVE.value: "store a response in the session before saving it",
    ErrorCode.ENGINE_UNAVAILABLE.value: "the engine cannot serve; read its log and restart it",
}
