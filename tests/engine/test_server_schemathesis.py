"""The OpenAPI document against the running server, by schemathesis: whatever the document allows gets an answer that
the document describes, never a fault; and the engine is idle afterwards."""

from collections.abc import Iterator

import pytest
import schemathesis
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_harness import Served, running, tiny_model

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.server.app import create_app
from ninfer_engine.server.request_log import RequestLog

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
EXAMPLES = 15


def _document() -> schemathesis.BaseSchema:
    """The document alone needs no socket; the cases are sent to the served one."""
    model = tiny_model()
    app = create_app(FakeEngine(lambda _: []), model, EngineFlags(model="tiny"), None, RequestLog(None, "x"))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


OPERATIONS = [found.ok() for found in _document().get_all_operations()]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that takes every case; afterwards it must be idle and well."""
    with running(tmp_path_factory.mktemp("schemathesis")) as server:
        yield server
        assert server.http.get("/health").status_code == 200
        status = server.http.get("/v1/ninfer/status").json()["scheduler"]
        assert (status["running"], status["waiting"]) == (0, 0)
        server.create()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_what_the_document_allows_gets_what_the_document_says(
    operation: schemathesis.APIOperation, target: Served
) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy())
    def each(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "tiny"  # so that most cases get past the name
        case.call_and_validate(base_url=str(target.http.base_url), checks=CHECKS, timeout=20)

    each()
