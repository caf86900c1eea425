"""The OpenAPI document: every route is in it, and what the server accepts is what it says."""

import json
from typing import Any

import jsonschema
import pytest
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


def test_the_status_document_is_valid(shared: Served, document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["StatusDocument"]
    status = shared.http.get("/v1/ninfer/status").json()
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(status)
