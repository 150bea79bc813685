"""Trace context passes through, and spans carry the conventions' names."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gir.model.request import Api
from gir.telemetry import tracing
from gir.telemetry.otel import ExportQueue, OtelTracing
from gir.telemetry.tracing import TracingOff, make_tracing, operation, valid_traceparent

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"junk",
        PARENT.upper(),
        PARENT + b"-x",
        PARENT.replace(b"00-4b", b"ff-4b"),
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
    ],
)
def test_unusable_context_is_dropped(value: bytes | None) -> None:
    assert valid_traceparent(value) is None
    assert TracingOff().request(value).attempt("x", {}).traceparent is None


def test_off_the_callers_context_goes_on_unchanged() -> None:
    off = make_tracing(None, service="gir", version="1", instance="i")
    trace = off.request(PARENT)
    trace.set({"a": 1})
    off.named(trace, "chat llama")
    attempt = trace.attempt("eu-1", {})
    attempt.end({}, error="x")
    trace.end({})
    off.close()
    assert attempt.traceparent == PARENT
    assert trace.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> OtelTracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracing(provider)


def test_attempts_hang_under_the_request_and_the_request_under_its_caller(
    spans: OtelTracing, exporter: InMemorySpanExporter
) -> None:
    trace = spans.request(PARENT)
    spans.named(trace, f"{operation(Api.CHAT)} llama")
    attempt = trace.attempt("eu-1", {tracing.CLUSTER: "eu-1", tracing.ATTEMPT: 1})
    sent = attempt.traceparent
    attempt.end({tracing.HTTP_STATUS: 503}, error="backpressure")
    trace.end({tracing.INPUT_TOKENS: 7})
    child, parent = exporter.get_finished_spans()
    assert (parent.name, parent.kind, child.name, child.kind) == (
        "chat llama",
        SpanKind.SERVER,
        "eu-1",
        SpanKind.CLIENT,
    )
    assert child.parent is not None
    assert parent.parent is not None
    assert child.parent.span_id == parent.context.span_id
    assert parent.parent.span_id == 0x00F067AA0BA902B7
    assert sent == b"00-4bf92f3577b34da6a3ce929d0e0e4736-%016x-01" % child.context.span_id
    assert child.attributes is not None
    assert child.attributes["error.type"] == "backpressure"
    assert (child.status.status_code, parent.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert trace.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_caller_that_does_not_sample_is_obeyed(spans: OtelTracing, exporter: InMemorySpanExporter) -> None:
    trace = spans.request(PARENT[:-1] + b"0")
    attempt = trace.attempt("eu-1", {})
    assert attempt.traceparent is not None
    assert attempt.traceparent.endswith(b"-00")
    attempt.end({})
    trace.end({})
    assert exporter.get_finished_spans() == ()


def test_without_a_caller_a_new_trace_begins(spans: OtelTracing) -> None:
    first, second = spans.request(None), spans.request(b"junk")
    assert len({first.trace_id, second.trace_id, "0" * 32}) == 3
    first.end({})
    second.end({})


class Failing(SpanExporter):
    def export(self, spans: object) -> SpanExportResult:
        raise ConnectionError("collector is gone")


def test_a_dead_collector_costs_spans_and_nothing_else() -> None:
    drops: list[None] = []
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ExportQueue(Failing(), on_drop=lambda: drops.append(None)))
    spans = OtelTracing(provider)
    for _ in range(3):
        spans.request(None).end({})
    spans.close()
    assert len(drops) == 3


def test_a_full_export_queue_drops_and_counts() -> None:
    drops: list[None] = []

    class Closed(ExportQueue):
        def _drain(self) -> None:
            """Never takes anything."""

    queue = Closed(InMemorySpanExporter(), on_drop=lambda: drops.append(None), spans_max=2)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    for _ in range(5):
        OtelTracing(provider).request(None).end({})
    assert len(drops) == 3
    assert isinstance(queue._spans.get(), ReadableSpan)


def test_operations_follow_the_conventions() -> None:
    assert [operation(api) for api in (Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS, Api.RERANK)] == [
        "chat",
        "text_completion",
        "embeddings",
        "rerank",
    ]
