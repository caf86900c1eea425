"""The OpenAPI document: every route is in it, and what the server accepts and replies is what it says."""

import json
from typing import Any

import httpx
import jsonschema
import pytest
from fake_engine import Misbehaviour
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_harness import Served
from test_server_fuzz import BODIES, JSON, changed, places


@pytest.fixture(scope="module")
def document(shared: Served) -> dict[str, Any]:
    made: dict[str, Any] = shared.http.get("/openapi.json").json()
    return made


def validator(document: dict[str, Any], path: str) -> jsonschema.Draft202012Validator:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})


def replied(document: dict[str, Any], method: str, path: str, reply: httpx.Response) -> Any:
    """The reply's JSON, which is as the document says."""
    responses = document["paths"][path][method]["responses"]
    content = responses["200" if reply.status_code == 200 else "default"]["content"]
    schema = {**content["application/json"]["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(reply.json())
    return reply.json()


def test_every_route_answers_and_every_reference_resolves(shared: Served, document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method in operations:
            reply = shared.http.request(method.upper(), path)
            assert reply.json()["error"]["code"] not in ("not_found", "method_not_allowed") if reply.is_error else True
    names = set(document["components"]["schemas"])
    text = json.dumps(document)
    used = {part.split('"', 1)[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= names


@pytest.mark.parametrize("path", BODIES)
def test_good_bodies_are_valid(document: dict[str, Any], path: str) -> None:
    validator(document, path).validate(BODIES[path])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*BODIES]), st.data())
def test_what_the_server_accepts_is_valid(shared: Served, document: dict[str, Any], path: str, data: Any) -> None:
    body = BODIES[path]
    body = changed(body, data.draw(st.sampled_from(places(body))), data.draw(JSON), data.draw(st.booleans()))
    if shared.http.post(path, content=json.dumps(body)).status_code == 200:
        validator(document, path).validate(body)


SAYS = '<think>\nhm\n</think>\n\nLook.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
CREATES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [{}, {"n": 2, "logprobs": True, "top_logprobs": 2}, {"max_tokens": 3}],
    "/v1/completions": [{}, {"n": 2, "logprobs": 2}, {"max_tokens": 3}],
    "/v1/messages": [{}, {"max_tokens": 3}, {"stop_sequences": ["ook"]}],
    "/v1/messages/count_tokens": [{}],
    "/v1/responses": [{}, {"max_output_tokens": 3}, {"top_logprobs": 1, "metadata": {"a": "b"}, "store": False},
                      {"tool_choice": {"type": "function", "name": "f"}, "reasoning": {"effort": "low"}},
                      {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
                          {"type": "function", "name": "f"}]}, "text": {"format": {"type": "json_object"}}}],
    "/v1/responses/input_tokens": [{}],
}
TOOLS: dict[str, Any] = {
    "/v1/chat/completions": [{"type": "function", "function": {"name": "f"}}], "/v1/completions": None,
    "/v1/messages": [{"name": "f", "input_schema": {"type": "object"}}],
    "/v1/responses": [{"type": "function", "name": "f", "description": "Does it."}],
}


@pytest.mark.parametrize("path", CREATES)
def test_every_reply_is_what_the_document_says(served: Served, path: str) -> None:
    document = served.http.get("/openapi.json").json()
    served.says.text = SAYS
    route = next(one for one in TOOLS if path.startswith(one))
    prompt = {"/v1/completions": {"prompt": "x"}, "/v1/responses": {"input": "x"}}.get(
        route, {"messages": [{"role": "user", "content": "x"}]})
    limit = {"max_tokens": 99} if path == "/v1/messages" else {}
    tools = {"tools": TOOLS[route]} if TOOLS[route] else {}
    for fields in CREATES[path]:
        body = {"model": "tiny", **prompt, **limit, **tools, **fields}
        made = replied(document, "post", path, served.http.post(path, json=body))
        assert made.get("content") != []
    refused = replied(document, "post", path, served.http.post(path, json={"model": "none", **prompt, **limit}))
    assert refused["error"]["code"] == "model_not_found"


def test_what_is_stored_replies_as_the_document_says(served: Served) -> None:
    document = served.http.get("/openapi.json").json()
    items = BODIES["/v1/responses"]["input"]
    made = served.create(items, tools=TOOLS["/v1/responses"])
    url, path = f"/v1/responses/{made['id']}", "/v1/responses/{response_id}"
    assert replied(document, "get", path, served.http.get(url)) == made
    page = replied(document, "get", f"{path}/input_items", served.http.get(f"{url}/input_items"))
    assert len(page["data"]) == len(items)
    assert replied(document, "post", f"{path}/cancel", served.http.post(f"{url}/cancel")) == made
    assert replied(document, "delete", path, served.http.delete(url))["deleted"]
    assert replied(document, "get", path, served.http.get(url))["error"]["code"] == "response_not_found"
    replied(document, "get", "/v1/models", served.http.get("/v1/models"))
    replied(document, "get", "/v1/models/{model_id}", served.http.get("/v1/models/tiny"))
    assert replied(document, "get", "/health", served.http.get("/health")) == {"status": "ok"}
    served.engine.misbehaviour = Misbehaviour.DEAD
    assert replied(document, "get", "/health", served.http.get("/health"))["status"] == "unavailable"


def test_the_status_document_is_valid(shared: Served, document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["StatusDocument"]
    status = shared.http.get("/v1/ninfer/status").json()
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(status)
