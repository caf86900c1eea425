"""Traces: one span a generation under the caller's trace, a child a stage, no text in any of them."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_engine import FakeEngine, Misbehaviour
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from server_harness import Says, running, tiny_model
from starlette.testclient import TestClient

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.server import traces
from ninfer_engine.server.app import create_app
from ninfer_engine.server.request_log import RequestLog

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a secret of mine"}]}


def traced(misbehaviour: Misbehaviour | None = None) -> list[ReadableSpan]:
    """The spans of one chat completion."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    complete(traces.OtelTraces(provider, "tiny"), misbehaviour)
    return list(exporter.get_finished_spans())


def complete(told: traces.Traces, misbehaviour: Misbehaviour | None = None) -> None:
    """One chat completion of which `told` is told."""
    model = tiny_model()
    engine = FakeEngine(Says(model, "another secret"))
    engine.misbehaviour = misbehaviour
    app = create_app(engine, model, EngineFlags(model="tiny"), None, RequestLog(None, "x"), traces=told)
    TestClient(app).post("/v1/chat/completions", json=BODY, headers={"traceparent": PARENT, "x-request-id": "abc"})


def test_a_generation_is_a_span_of_the_callers_trace_with_its_stages() -> None:
    spans = traced()
    *stages, whole = sorted(spans, key=lambda span: span.name.startswith("generate"))
    assert {span.name for span in stages} == {"queue", "plan", "restore", "prefill", "decode"}
    assert whole.parent is not None and whole.parent.span_id == 0xB7AD6B7169203331
    assert {span.context.trace_id for span in spans} == {int(TRACE, 16)}
    assert all(span.parent is not None and span.parent.span_id == whole.context.span_id for span in stages)
    assert whole.attributes is not None
    assert (whole.attributes["ninfer.request_id"], whole.attributes["ninfer.path"]) == ("abc", "root")
    assert "secret" not in str([span.to_json() for span in spans])


def test_a_request_that_is_refused_is_an_error_span() -> None:
    [span] = traced(Misbehaviour.OVERLOADED)
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "server_overloaded")


class Collector(BaseHTTPRequestHandler):
    """What an OpenTelemetry collector answers to spans over HTTP; `spans` keeps them."""

    spans: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        """Take spans."""
        body = self.rfile.read(int(self.headers["content-length"]))
        sent = ExportTraceServiceRequest.FromString(body)
        self.spans.extend(span for of in sent.resource_spans for scope in of.scope_spans for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_spans_reach_a_collector_before_the_server_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        told = traces.from_environment("tiny")
        complete(told)
        told.close()
        collector.shutdown()
    assert {span.name for span in Collector.spans} == {
        "generate tiny", "queue", "plan", "restore", "prefill", "decode"}
    assert {span.trace_id.hex() for span in Collector.spans} == {TRACE}


def test_tracing_that_is_asked_for_and_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "find_spec", lambda _: None)
    assert isinstance(traces.from_environment("tiny"), traces.NoTraces)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(traces.TracingError, match="ninfer\\[otel\\]"):
        traces.from_environment("tiny")


def test_without_tracing_nothing_is_different(tmp_path: Path) -> None:
    with running(tmp_path) as served:
        assert served.http.post("/v1/chat/completions", json=BODY, headers={"traceparent": "junk"}).status_code == 200
