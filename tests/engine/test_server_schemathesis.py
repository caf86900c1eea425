"""The OpenAPI document against the running server, by schemathesis: whatever the document allows gets an answer that
the document describes, never a fault; and the engine, a real one, is idle afterwards and has lost nothing."""

from collections.abc import Iterator

import pytest
import schemathesis
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from real_server import RealServed, real_server
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_harness import tiny_model

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.server.app import create_app
from ninfer_engine.server.request_log import RequestLog

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
EXAMPLES = 40


def _document() -> schemathesis.BaseSchema:
    """The document alone needs no socket; the cases are sent to the served one."""
    model = tiny_model()
    app = create_app(FakeEngine(lambda _: []), model, EngineFlags(model="tiny"), None, RequestLog(None, "x"))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


OPERATIONS = [found.ok() for found in _document().get_all_operations()]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServed]:
    """A server that takes every case, with replies short enough for many."""
    store = tmp_path_factory.mktemp("schemathesis")
    with real_server(max_context=256, default_max_tokens=8, session_checkpoint_dir=str(store)) as server:
        yield server
        server.create()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_what_the_document_allows_gets_what_the_document_says(
    operation: schemathesis.APIOperation, target: RealServed
) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy())
    def each(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "tiny"  # so that most cases get past the name
        case.call_and_validate(base_url=target.url, checks=CHECKS, timeout=20)

    each()
