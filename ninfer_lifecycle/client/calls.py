"""The client itself: one method a route, one way to send, one way to read."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from ninfer_engine.contract.checkpoints import CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.errors import ErrorBody
from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client.errors import (
    EngineDeadlineError,
    EngineProtocolError,
    EngineReplyError,
    EngineUnreachableError,
)
from ninfer_lifecycle.client.replies import Deleted, Health, HttpReply, ModelCard, ModelList, ResponseReply, TokenCount
from ninfer_lifecycle.client.streaming import StreamedReply, events, is_output, last_reply

MAX_REPLY_BYTES = 64 * 2**20

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds for a whole exchange: `quick` for health, status and bookkeeping, `generate` and `save` for work."""

    connect_s: float = 5.0
    quick_s: float = 10.0
    generate_s: float = 900.0
    save_s: float = 300.0


DEFAULT_DEADLINES = Deadlines()


class EngineClient:
    """Calls one engine. Safe to share between threads. Proxies from the environment are never used.

    `transport`, `clock` and `sleep` are for tests. Raises the errors above and nothing of httpx.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        deadlines: Deadlines = DEFAULT_DEADLINES,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.base_url = base_url.rstrip("/")
        self.deadlines = deadlines
        self._clock = clock
        self._sleep = sleep
        # Kept for less time than servers do (uvicorn: 5 s): else a POST may meet a connection that is being closed.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=2.0)
        self._http = httpx.Client(base_url=self.base_url, headers=headers, transport=transport, trust_env=False,
                                  limits=limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def has_key(self) -> bool:
        """Whether it sends a key. The key itself is not told."""
        return "authorization" in self._http.headers

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    # Health and bookkeeping

    def health(self, timeout_s: float | None = None) -> Health:
        """Whether the engine can serve; an engine that says 503 is a value, one that does not answer an error."""
        reply = self._once("GET", "/health", None, {}, timeout_s or self.deadlines.quick_s)
        return Health(ok=reply.status == 200, http_status=reply.status)

    def status(self, timeout_s: float | None = None) -> StatusDocument:
        """The status document. While the engine loads (503 with a document) that document is returned too."""
        reply = self._get("/v1/ninfer/status", {}, timeout_s or self.deadlines.quick_s)
        if reply.status == 503 and b'"ninfer_server_status"' in reply.body:
            return _parse(StatusDocument, reply)
        return _parse(StatusDocument, _successful(reply))

    def models(self) -> tuple[ModelCard, ...]:
        """What /v1/models lists."""
        return _parse(ModelList, _successful(self._get("/v1/models", {}, self.deadlines.quick_s))).data

    # Responses

    def create_response(
        self, body: Mapping[str, Any], session: str | None = None, timeout_s: float | None = None
    ) -> ResponseReply:
        """POST /v1/responses without streaming, sent once. session: header X-NInfer-Session."""
        reply = self._once("POST", "/v1/responses", body, _session_header(session),
                           timeout_s or self.deadlines.generate_s)
        return _parse(ResponseReply, _successful(reply))

    def stream_response(
        self, body: Mapping[str, Any], session: str | None = None, timeout_s: float | None = None,
        on_output: Callable[[], None] = lambda: None,
    ) -> StreamedReply:
        """POST /v1/responses as a stream, sent once. on_output is called at each piece of output.

        Raises EngineProtocolError when it ends without a last event.
        """
        limit_s = timeout_s or self.deadlines.generate_s
        started, arrivals = self._clock(), list[float]()
        what = f"POST {self.base_url}/v1/responses as a stream"
        timeout = httpx.Timeout(limit_s, connect=min(self.deadlines.connect_s, limit_s))
        try:
            with self._http.stream("POST", "/v1/responses", json={**body, "stream": True},
                                   headers=_session_header(session), timeout=timeout) as reply:
                if reply.status_code != 200:
                    _successful(HttpReply(reply.status_code, dict(reply.headers), reply.read(), 0.0))
                for event in events(reply.iter_lines()):
                    at = self._clock() - started
                    if at > limit_s:
                        raise EngineDeadlineError(f"{what}: not whole after {limit_s:g} s", _SLOW)
                    if is_output(event):
                        arrivals.append(at)
                        on_output()
                    if (last := last_reply(event)) is not None:
                        return StreamedReply(last, tuple(arrivals))
        except httpx.TimeoutException as error:
            raise EngineDeadlineError(f"{what}: no reply within {limit_s:g} s", _SLOW) from error
        except httpx.HTTPError as error:
            raise EngineUnreachableError(f"{what}: {_reason(error)}", "read the engine's log") from error
        raise EngineProtocolError(f"{what}: it ended without a last event")

    def input_tokens(self, body: Mapping[str, Any], session: str | None = None) -> int:
        """POST /v1/responses/input_tokens: tokens that this input would be. Changes nothing."""
        reply = self._once("POST", "/v1/responses/input_tokens", body, _session_header(session), self.deadlines.quick_s)
        return _parse(TokenCount, _successful(reply)).input_tokens

    def get_response(self, response_id: str, session: str | None = None) -> ResponseReply:
        """A stored response; EngineReplyError with code response_not_found when there is none."""
        reply = self._get(f"/v1/responses/{response_id}", _session_header(session), self.deadlines.quick_s)
        return _parse(ResponseReply, _successful(reply))

    def delete_response(self, response_id: str, session: str | None = None) -> bool:
        """Delete a stored response."""
        reply = self._once("DELETE", f"/v1/responses/{response_id}", None, _session_header(session),
                           self.deadlines.quick_s)
        return _parse(Deleted, _successful(reply)).deleted

    # Checkpoints

    def save(self, session: str, timeout_s: float | None = None) -> SaveReply:
        """Save a session now. 404 means a server without explicit saves: EngineReplyError with status 404."""
        reply = self._once("POST", "/v1/ninfer/checkpoints", {"session_sha256": session}, _session_header(session),
                           timeout_s or self.deadlines.save_s)
        return _parse(SaveReply, _successful(reply))

    def checkpoint_status(self, session: str) -> CheckpointStatus:
        """What the durable store holds of a session."""
        reply = self._get("/v1/ninfer/checkpoints/status", _session_header(session), self.deadlines.quick_s)
        return _parse(CheckpointStatus, _successful(reply))

    def delete_checkpoint(self, session: str) -> DeleteReply:
        """Forget a session in the durable store."""
        reply = self._once("DELETE", "/v1/ninfer/checkpoints", {"session_sha256": session}, _session_header(session),
                           self.deadlines.save_s)
        return _parse(DeleteReply, _successful(reply))

    def raw(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> "HttpReply":
        """Send these very bytes once and give the reply as it is, whatever its status: for conformance checks."""
        return self._send(method, path, content, headers or {}, timeout_s or self.deadlines.quick_s)

    # Transport

    def _get(self, path: str, headers: Mapping[str, str], timeout_s: float) -> HttpReply:
        """A GET, tried again while no connection can be made, within `timeout_s`."""
        ends = self._clock() + timeout_s
        while True:
            try:
                return self._once("GET", path, None, headers, max(0.001, ends - self._clock()))
            except EngineUnreachableError:
                if self._clock() + 0.1 >= ends:
                    raise
                self._sleep(0.1)

    def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], timeout_s: float
    ) -> HttpReply:
        """Send one request with a JSON body, if any, and read its whole reply; the deadline covers both."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        return self._send(method, path, content, headers, timeout_s)

    def _send(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> HttpReply:
        started = self._clock()
        ends = started + timeout_s
        timeout = httpx.Timeout(timeout_s, connect=min(self.deadlines.connect_s, timeout_s))
        sent = dict(headers) if content is None else {**headers, "Content-Type": "application/json"}
        what = f"{method} {self.base_url}{path}"
        try:
            with self._http.stream(method, path, content=content, headers=sent, timeout=timeout) as reply:
                read = bytearray()
                for chunk in reply.iter_bytes():
                    read += chunk
                    if len(read) > MAX_REPLY_BYTES:
                        raise EngineProtocolError(f"{what}: a reply of more than {MAX_REPLY_BYTES} bytes")
                    if self._clock() > ends:
                        raise EngineDeadlineError(f"{what}: the reply was not whole after {timeout_s:g} s", _SLOW)
                return HttpReply(reply.status_code, dict(reply.headers), bytes(read), self._clock() - started)
        except (httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
            raise EngineDeadlineError(f"{what}: no reply within {timeout_s:g} s", _SLOW) from error
        except httpx.HTTPError as error:
            raise EngineUnreachableError(f"{what}: {_reason(error)}", "check that the engine runs: `ninfer status`; "
                                         "its last lines are in `ninfer logs`") from error


_SLOW = "the engine may still be working: look at its status, and give a longer deadline if that is expected"


def _session_header(session: str | None) -> dict[str, str]:
    return {"X-NInfer-Session": session} if session else {}


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _successful(reply: HttpReply) -> HttpReply:
    """The reply if it is 2xx; otherwise the engine's own error, or what was said instead of one."""
    if 200 <= reply.status < 300:
        return reply
    try:
        error = ErrorBody.model_validate_json(reply.body).error
    except ValidationError:
        said = reply.body[:200].decode(errors="replace")
        raise EngineReplyError(reply.status, None, f"no error body but {said!r}") from None
    raise EngineReplyError(reply.status, error.code, error.message, error.param)


def _parse(model: type[ModelT], reply: HttpReply) -> ModelT:
    try:
        return model.model_validate_json(reply.body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise EngineProtocolError(
            f"a reply that is no {model.__name__}: {where}: {first['msg']}",
            "engine and tool differ in version, or something else answers at this address",
        ) from error
