"""The ASGI app: routes, and what goes around every request: its id, the key, and an error body for whatever is raised.

One class and no middleware: each layer between the socket and a route costs every request its share of a millisecond.
"""

import logging
import time
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.runtime.api import EngineApi, EngineRefusedError
from ninfer_engine.server import admin, chat, completions, messages, openapi, responses, stored
from ninfer_engine.server.auth import KeyCheck
from ninfer_engine.server.context import Context, Limits
from ninfer_engine.server.errors import ApiError, ClientGoneError, internal_error
from ninfer_engine.server.identity import new_request_id, request_id_of
from ninfer_engine.server.json_reply import JsonReply
from ninfer_engine.server.metrics import Metrics
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.routing import Router
from ninfer_engine.server.runs import Runs
from ninfer_engine.server.traces import NoTraces, Traces

logger = logging.getLogger("ninfer.server")


async def openapi_document(_request: Request) -> Response:
    """This document."""
    described = [
        (method.lower(), route.path, (route.endpoint.__doc__ or "").split("\n", 1)[0])
        for route in ROUTES
        for method in sorted(route.methods or ())
        if method != "HEAD"
    ]
    return JsonReply(openapi.document(described))


ROUTES = [
    Route("/openapi.json", openapi_document, methods=["GET"]),
    Route("/health", admin.health, methods=["GET"]),
    Route("/metrics", admin.metrics, methods=["GET"]),
    Route("/v1/models", admin.list_models, methods=["GET"]),
    Route("/v1/models/{model_id:path}", admin.get_model, methods=["GET"]),
    Route("/v1/responses", responses.create_response, methods=["POST"]),
    Route("/v1/responses/input_tokens", responses.count_input_tokens, methods=["POST"]),
    Route("/v1/responses/{response_id}", stored.get_response, methods=["GET"]),
    Route("/v1/responses/{response_id}", stored.delete_response, methods=["DELETE"]),
    Route("/v1/responses/{response_id}/input_items", stored.list_input_items, methods=["GET"]),
    Route("/v1/responses/{response_id}/cancel", stored.cancel_response, methods=["POST"]),
    Route("/v1/chat/completions", chat.create_chat_completion, methods=["POST"]),
    Route("/v1/completions", completions.create_completion, methods=["POST"]),
    Route("/v1/messages", messages.create_message, methods=["POST"]),
    Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
    Route("/v1/ninfer/status", admin.status, methods=["GET"]),
    Route("/v1/ninfer/checkpoints", admin.save_checkpoint, methods=["POST"]),
    Route("/v1/ninfer/checkpoints", admin.delete_checkpoint, methods=["DELETE"]),
    Route("/v1/ninfer/checkpoints/status", admin.checkpoint_status, methods=["GET"]),
    Route("/v1/ninfer/checkpoints/{sha}/status", admin.checkpoint_status, methods=["GET"]),
    Route("/v1/ninfer/checkpoints/{sha}", admin.delete_checkpoint, methods=["DELETE"]),
]
GENERATING = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/messages"})


class App:
    """Serves HTTP over an engine. `context` holds its parts."""

    def __init__(self, context: Context, key: KeyCheck) -> None:
        self.context = context
        self._key = key
        self._router = Router(ROUTES)
        self._ids: set[str] = set()  # of requests in flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this app serves HTTP, and was asked for {scope['type']}")
        scope["app"] = self
        request = Request(scope, receive)
        state = request.state
        state.arrived = time.monotonic()
        request_id = state.request_id = self._unused(request_id_of(request))
        self._ids.add(request_id)
        state.logged = False
        reply = _Reply(request, send)
        path = "unknown"
        try:
            self._key.check(request)
            route = self._router.find(scope)
            path = route.path
            made: Response = await route.endpoint(request)
            await made(scope, receive, reply.send)
        except ClientGoneError:
            reply.status = 499  # nobody is there to read it; the metric says what happened
        except Exception as error:  # noqa: BLE001 - the last line: every fault gets a body, the server goes on
            await self._answer(request, reply, receive, _as_api_error(error, request))
        finally:
            self._ids.discard(request_id)
            self.context.metrics.request(path, reply.status)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("request", extra={"request_id": state.request_id, "method": request.method,
                                               "route": path, "status": reply.status})

    def _unused(self, request_id: str) -> str:
        """The id, with a suffix while another request with the same header runs: a proxy may send one id twice."""
        return f"{request_id}-{new_request_id()[:8]}" if request_id in self._ids else request_id

    async def _answer(self, request: Request, reply: "_Reply", receive: Receive, error: ApiError) -> None:
        path = request.scope["path"]
        if path in GENERATING and not request.state.logged:
            log, request_id = self.context.log, request.state.request_id
            if error.code is ErrorCode.INTERNAL_ERROR:
                log.request_error(request_id, path, error.code.value)
            else:
                log.request_rejected(request_id, path, error.code.value, error.status)
        if reply.status == 0:
            await error.response(path)(request.scope, receive, reply.send)


class _Reply:
    """Adds the request id to whatever is sent, and remembers the status (0: nothing sent yet)."""

    def __init__(self, request: Request, send: Send) -> None:
        self._request = request
        self._send = send
        self._anthropic = request.scope["path"].startswith("/v1/messages")  # whose SDK reads the id under its own name
        self.status = 0

    async def send(self, message: Message) -> None:
        """ASGI send."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            request_id = str(self._request.state.request_id).encode()
            names = (b"x-request-id", b"request-id") if self._anthropic else (b"x-request-id",)
            message["headers"] = [*message.get("headers", []), *((name, request_id) for name in names)]
        await self._send(message)


def create_app(
    engine: EngineApi,
    model: ServedModel,
    flags: EngineFlags,
    api_key: str | None,
    request_log: RequestLog,
    *,
    limits: Limits | None = None,
    traces: Traces = NoTraces(),  # noqa: B008 - no state
) -> App:
    """The server's app over an engine that is ready to run."""
    metrics = Metrics(engine.status, engine.counts)
    runs = Runs(engine, request_log, metrics, traces)
    longest = engine.status().runtime.max_context
    request_log.server_start(
        model_id=model.model_id,
        model_name=PurePath(flags.model).name,
        config_sha256=flags.config_sha256,
        max_concurrency=flags.max_concurrency,
    )
    bounds = limits or Limits.of(longest)
    return App(Context(engine, model, flags, request_log, metrics, runs, bounds, longest), KeyCheck(api_key))


def _as_api_error(error: Exception, request: Request) -> ApiError:
    match error:
        case ApiError():
            return error
        case EngineRefusedError():
            return ApiError.of(error)
        case _:
            request_id = request.state.request_id
            logger.error("request failed", exc_info=error, extra={"request_id": request_id})
            return internal_error(request_id)
