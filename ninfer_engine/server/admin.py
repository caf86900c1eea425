"""Health, models, the status document, checkpoints, metrics."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ninfer_engine.contract.checkpoints import CheckpointRequest
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.server.body import validate
from ninfer_engine.server.context import Context, context, json_body, no_such_model
from ninfer_engine.server.errors import ApiError, invalid
from ninfer_engine.server.identity import header_session, same_session
from ninfer_engine.server.json_reply import JsonReply
from ninfer_engine.server.metrics import CONTENT_TYPE


async def health(request: Request) -> Response:
    """200 while the engine can serve. Needs no key."""
    engine = context(request).engine
    status = engine.status().status
    if engine.healthy() and status == "ok":
        return JsonReply({"status": "ok"})
    error = ApiError(ErrorCode.ENGINE_UNAVAILABLE, "the engine cannot serve")
    return JsonReply({"status": "loading" if status == "loading" else "unavailable", **error.body()}, 503)


async def list_models(request: Request) -> Response:
    """The one model served."""
    return JsonReply({"object": "list", "data": [_model(context(request))]})


async def get_model(request: Request) -> Response:
    """One model by its id."""
    ctx = context(request)
    if request.path_params["model_id"] != ctx.model.model_id:
        raise no_such_model(ctx)
    return JsonReply(_model(ctx))


def _model(ctx: Context) -> dict[str, Any]:
    return {
        "id": ctx.model.model_id,
        "object": "model",
        "created": ctx.model.created,
        "owned_by": "ninfer",
        "max_model_len": ctx.max_context,
    }


async def status(request: Request) -> Response:
    """The status document; 503 until the engine can serve."""
    document = context(request).engine.status()
    return JsonReply(document, 200 if document.status == "ok" else 503)


async def save_checkpoint(request: Request) -> Response:
    """Save a session now."""
    ctx = context(request)
    session = await _session_of_body(request)
    try:
        reply = await ctx.engine.save_session(session)
    except EngineRefusedError as refused:
        ctx.metrics.checkpoint("save", refused.code.value)
        raise
    ctx.metrics.checkpoint("save", "saved")
    return JsonReply(reply)


async def delete_checkpoint(request: Request) -> Response:
    """Forget a session in the durable store; the session is in the body or in the path."""
    in_path = request.path_params.get("sha")
    session = _session_of_path(request, in_path) if in_path is not None else await _session_of_body(request)
    ctx = context(request)
    reply = await ctx.engine.delete_checkpoint(session)
    ctx.metrics.checkpoint("delete", "deleted" if reply.deleted else "missing")
    return JsonReply(reply)


async def checkpoint_status(request: Request) -> Response:
    """What the durable store holds of a session; the session is in the header or in the path."""
    in_path = request.path_params.get("sha")
    session = header_session(request) if in_path is None else _session_of_path(request, in_path)
    if session is None:
        raise invalid("name the session in header X-NInfer-Session", "x-ninfer-session")
    return JsonReply(await context(request).engine.checkpoint_status(session))


async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(context(request).metrics.render(), media_type=CONTENT_TYPE)


async def _session_of_body(request: Request) -> str:
    session = validate(CheckpointRequest, await json_body(request)).session_sha256
    return same_session(header_session(request), session, "session_sha256") or session


def _session_of_path(request: Request, sha: str) -> str:
    session = validate(CheckpointRequest, {"session_sha256": sha}).session_sha256
    return same_session(header_session(request), session, "session_sha256") or session
