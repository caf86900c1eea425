"""OpenTelemetry traces of generations, behind the extra `otel`: one span a generation with a child for each stage.

On when the standard variable OTEL_EXPORTER_OTLP_ENDPOINT (or its form for traces) is set, or when a provider is handed
in. A caller's `traceparent` is the parent. Attributes are ids, counts and names; no text and no keys.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from ninfer_engine.runtime.api import Finished, GenerationRequest

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_STAGES = ("queue", "plan", "restore", "prefill", "decode")


class TracingError(Exception):
    """The environment asks for traces that cannot be sent; the message says what to do."""


class Traces(Protocol):
    """Told of every generation when it has ended. Times are Unix nanoseconds."""

    def generation(
        self, request: GenerationRequest, route: str, headers: Mapping[str, str], started_ns: int, ended_ns: int,
        finished: Finished | None, ended_by: str | None,
    ) -> None:
        """finished: it ran to its end; else ended_by says how it ended."""

    def close(self) -> None:
        """Send what is left."""


class NoTraces:
    """Tracing is off."""

    def generation(
        self, request: GenerationRequest, route: str, headers: Mapping[str, str], started_ns: int, ended_ns: int,
        finished: Finished | None, ended_by: str | None,
    ) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class OtelTraces:
    """Spans through an OpenTelemetry provider."""

    def __init__(self, provider: "TracerProvider", model_id: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("ninfer")
        self._model_id = model_id

    def generation(
        self, request: GenerationRequest, route: str, headers: Mapping[str, str], started_ns: int, ended_ns: int,
        finished: Finished | None, ended_by: str | None,
    ) -> None:
        """One span, with the stages that the engine timed inside it."""
        from opentelemetry import trace  # noqa: PLC0415 - the extra may be missing
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        parent = TraceContextTextMapPropagator().extract(dict(headers))
        span = self._tracer.start_span(
            f"generate {self._model_id}", parent, trace.SpanKind.SERVER, self._attributes(request, route),
            start_time=started_ns)
        if finished is not None:
            span.set_attributes(_outcome(finished))
            self._stages(trace.set_span_in_context(span), started_ns, finished)
        else:
            span.set_status(trace.Status(trace.StatusCode.ERROR, ended_by or "unknown"))
        span.end(ended_ns)

    def close(self) -> None:
        """Send what is left."""
        shutdown = getattr(self._provider, "shutdown", None)
        if shutdown is not None:
            shutdown()

    def _attributes(self, request: GenerationRequest, route: str) -> dict[str, Any]:
        return {
            "http.route": route, "gen_ai.operation.name": "generate", "gen_ai.request.model": self._model_id,
            "gen_ai.request.max_tokens": request.sampling.max_new_tokens, "ninfer.request_id": request.request_id,
        }

    def _stages(self, context: Any, started_ns: int, finished: Finished) -> None:
        timings = finished.record.timings
        at = started_ns
        for stage in _STAGES:
            length = round(getattr(timings, f"{stage}_s") * 1e9)
            self._tracer.start_span(stage, context, start_time=at).end(at + length)
            at += length


def _outcome(finished: Finished) -> dict[str, Any]:
    record, result = finished.record, finished.log_result
    return {
        "gen_ai.usage.input_tokens": result.prompt_tokens, "gen_ai.usage.output_tokens": result.completion_tokens,
        "gen_ai.response.finish_reasons": [finished.reason], "ninfer.path": record.path.value,
        "ninfer.reused_tokens": record.reused_tokens, "ninfer.computed_tokens": record.computed_tokens,
        "ninfer.miss_reason": record.miss_reason.value if record.miss_reason is not None else "",
    }


def from_environment(model_id: str) -> Traces:
    """Traces as the environment asks for them. Raises TracingError when it asks and the extra is not installed."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return NoTraces()
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise TracingError("OTEL_EXPORTER_OTLP_ENDPOINT is set, but tracing is not installed: "
                           "pip install 'ninfer[otel]', or unset it")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - the extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": "ninfer-engine"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTraces(provider, model_id)
