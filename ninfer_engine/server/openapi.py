"""The OpenAPI document, made from the models that read the requests, so that it cannot say anything else."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from ninfer_engine import __version__
from ninfer_engine.contract.checkpoints import CheckpointRequest, CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.errors import ErrorBody
from ninfer_engine.contract.status import StatusDocument
from ninfer_engine.server import chat_schema, messages_schema, replies, responses_schema
from ninfer_engine.server.chat_schema import ChatRequest, CompletionRequest
from ninfer_engine.server.messages_schema import CountRequest, MessageRequest
from ninfer_engine.server.responses_schema import CreateResponse

_HEX64 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_IDENTITY = {name: {"anyOf": [_HEX64, {"type": "null"}]} for name in ("ninfer_session", "ninfer_request_id")}
_ONLY: dict[type[BaseModel], Mapping[str, tuple[Any, ...]]] = {
    CreateResponse: responses_schema.ONLY,
    ChatRequest: chat_schema.CHAT_ONLY,
    CompletionRequest: chat_schema.COMPLETION_ONLY,
    MessageRequest: messages_schema.ONLY,
    CountRequest: messages_schema.ONLY,
}
_REQUESTS: dict[tuple[str, str], type[BaseModel]] = {
    ("post", "/v1/responses"): CreateResponse,
    ("post", "/v1/responses/input_tokens"): CreateResponse,
    ("post", "/v1/chat/completions"): ChatRequest,
    ("post", "/v1/completions"): CompletionRequest,
    ("post", "/v1/messages"): MessageRequest,
    ("post", "/v1/messages/count_tokens"): CountRequest,
    ("post", "/v1/ninfer/checkpoints"): CheckpointRequest,
    ("delete", "/v1/ninfer/checkpoints"): CheckpointRequest,
}
_REPLIES: dict[tuple[str, str], type[BaseModel]] = {
    ("get", "/health"): replies.Healthy,
    ("get", "/v1/models"): replies.Models,
    ("get", "/v1/models/{model_id}"): replies.Model,
    ("post", "/v1/responses"): replies.ResponseObject,
    ("post", "/v1/responses/input_tokens"): replies.InputTokens,
    ("get", "/v1/responses/{response_id}"): replies.ResponseObject,
    ("delete", "/v1/responses/{response_id}"): replies.DeletedResponse,
    ("get", "/v1/responses/{response_id}/input_items"): replies.InputItems,
    ("post", "/v1/responses/{response_id}/cancel"): replies.ResponseObject,
    ("post", "/v1/chat/completions"): replies.ChatCompletion,
    ("post", "/v1/completions"): replies.Completion,
    ("post", "/v1/messages"): replies.Message,
    ("post", "/v1/messages/count_tokens"): replies.MessageTokens,
    ("get", "/v1/ninfer/status"): StatusDocument,
    ("post", "/v1/ninfer/checkpoints"): SaveReply,
    ("delete", "/v1/ninfer/checkpoints"): DeleteReply,
    ("delete", "/v1/ninfer/checkpoints/{sha}"): DeleteReply,
    ("get", "/v1/ninfer/checkpoints/status"): CheckpointStatus,
    ("get", "/v1/ninfer/checkpoints/{sha}/status"): CheckpointStatus,
}
_REQUEST_ID = {"X-Request-Id": {"required": True, "schema": {"type": "string"}}}
_SSE = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}, "required": ["data"]}
_STREAMED = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/messages"})


def document(routes: list[tuple[str, str, str]]) -> dict[str, Any]:
    """The document for `routes`: (method, path, what it does) in lower case, as the app has them."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, text in routes:
        shown = path.replace(":path", "")
        paths.setdefault(shown, {})[method] = _operation(method, shown, text)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ninfer engine", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(method: str, path: str, text: str) -> dict[str, Any]:
    reply = _REPLIES.get((method, path))
    content: dict[str, Any] = {"application/json": {"schema": _ref(reply) if reply else {"type": "object"}}}
    if path == "/metrics":
        content = {"text/plain": {"schema": {"type": "string"}}}
    if path in _STREAMED:
        content["text/event-stream"] = {"schema": _SSE}
    made: dict[str, Any] = {
        "summary": text,
        "parameters": _parameters(path),
        "responses": {
            "200": {"description": "as asked", "headers": _REQUEST_ID, "content": content},
            "default": {"description": "refused", "headers": _REQUEST_ID,
                        "content": {"application/json": {"schema": _ref(_error(path))}}},
        },
    }
    request = _REQUESTS.get((method, path))
    if request is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    return made


def _error(path: str) -> type[BaseModel]:
    return replies.MessagesError if path.startswith("/v1/messages") else ErrorBody


def _parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    found = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    found.append({"name": "X-NInfer-Session", "in": "header", "required": False, "schema": _HEX64})
    found.append({"name": "X-Request-Id", "in": "header", "required": False, "schema": {"type": "string"}})
    if path.endswith("/input_items"):
        found += [
            {"name": "after", "in": "query", "schema": {"type": "string"}},
            {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100}},
            {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"], "default": "desc"}},
        ]
    return found


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _schemas() -> dict[str, Any]:
    requests = dict.fromkeys(_REQUESTS.values())
    made_with: dict[type[BaseModel], None] = dict.fromkeys([*_REPLIES.values(), ErrorBody, replies.MessagesError])
    read: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in requests]
    sent: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "serialization") for model in made_with]
    _, made = models_json_schema(read + sent, ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = made["$defs"]
    for model, only in _ONLY.items():
        properties = schemas[model.__name__]["properties"]
        properties |= {name: {"enum": [*allowed, None]} for name, allowed in only.items()} | _IDENTITY
    return schemas
