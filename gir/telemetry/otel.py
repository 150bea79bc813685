"""Spans by the OpenTelemetry SDK. Imported only when tracing is on."""

import queue
import threading
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace import Span as ApiSpan

from gir.telemetry.tracing import ERROR_TYPE, AttemptTrace, Attributes, RequestTrace, valid_traceparent

QUEUE_MAX = 2_048
BATCH_MAX = 512
EXPORT_S = 5.0
"""Longest export of one batch, and the longest wait for the rest at the end."""


class ExportQueue(SpanProcessor):
    """Bounded queue of finished spans, exported in batches by one thread; what does not fit or fails is counted."""

    def __init__(self, exporter: SpanExporter, *, on_drop: Callable[[], None], spans_max: int = QUEUE_MAX) -> None:
        self._exporter = exporter
        self._on_drop = on_drop
        self._spans_max = spans_max
        self._spans: queue.SimpleQueue[ReadableSpan | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._drain, name="gir-span-export", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Take a finished span; never blocks."""
        if not span.context.trace_flags.sampled:
            return
        if self._spans.qsize() >= self._spans_max:
            self._on_drop()
        else:
            self._spans.put(span)

    def shutdown(self) -> None:
        """Export what is queued, for at most EXPORT_S, and stop."""
        self._spans.put(None)
        self._thread.join(EXPORT_S)
        self._exporter.shutdown()

    def _drain(self) -> None:
        stopping = False
        while not stopping:
            batch = [self._spans.get()]
            while len(batch) < BATCH_MAX and not self._spans.empty():
                batch.append(self._spans.get())
            stopping = None in batch
            self._export([span for span in batch if span is not None])

    def _export(self, spans: list[ReadableSpan]) -> None:
        try:
            done = not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - whatever an exporter raises, the thread must live and the loss be counted
            done = False
        if not done:
            for _ in spans:
                self._on_drop()


class OtelTracing:
    """`Tracing` over one TracerProvider of this process."""

    on = True

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gir")

    @classmethod
    def to_collector(
        cls,
        endpoint: str,
        *,
        service: str,
        version: str,
        instance: str,
        sample_share: float,
        on_drop: Callable[[], None],
    ) -> "OtelTracing":
        """Export to `{endpoint}/v1/traces` by OTLP over HTTP."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_S)
        resource = Resource.create(
            {"service.name": service, "service.version": version, "service.instance.id": instance}
        )
        provider = TracerProvider(
            resource=resource, sampler=ParentBased(TraceIdRatioBased(sample_share)), shutdown_on_exit=False
        )
        provider.add_span_processor(ExportQueue(exporter, on_drop=on_drop))
        return cls(provider)

    def request(self, traceparent: bytes | None) -> RequestTrace:
        """Begin the span of a request, under the caller's if it sent a valid context."""
        parent = _context_of(traceparent)
        return _RequestSpan(self._tracer, self._tracer.start_span("request", context=parent, kind=SpanKind.SERVER))

    def named(self, trace: RequestTrace, name: str) -> None:
        """Give the span its name: `{operation} {model}`."""
        assert isinstance(trace, _RequestSpan), "a trace of this tracing"
        trace.span.update_name(name)

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()


class _AttemptSpan:
    __slots__ = ("span",)

    def __init__(self, span: ApiSpan) -> None:
        self.span = span

    @property
    def traceparent(self) -> bytes | None:
        context = self.span.get_span_context()
        return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        _end(self.span, attributes, error)


class _RequestSpan:
    __slots__ = ("_tracer", "span")

    def __init__(self, tracer: Tracer, span: ApiSpan) -> None:
        self._tracer = tracer
        self.span = span

    @property
    def trace_id(self) -> str:
        return f"{self.span.get_span_context().trace_id:032x}"

    def set(self, attributes: Attributes) -> None:
        self.span.set_attributes(attributes)

    def attempt(self, name: str, attributes: Attributes) -> AttemptTrace:
        context = set_span_in_context(self.span, Context())
        span = self._tracer.start_span(name, context=context, kind=SpanKind.CLIENT, attributes=attributes)
        return _AttemptSpan(span)

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        _end(self.span, attributes, error)


def _end(span: Span | ApiSpan, attributes: Attributes, error: str) -> None:
    span.set_attributes(attributes)
    if error:
        span.set_attribute(ERROR_TYPE, error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _context_of(traceparent: bytes | None) -> Context:
    """The caller's context, or an empty one: the ambient context is never asked."""
    usable = valid_traceparent(traceparent)
    if usable is None:
        return Context()
    remote = SpanContext(
        trace_id=int(usable[3:35], 16),
        span_id=int(usable[36:52], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(usable[53:55], 16) & TraceFlags.SAMPLED),
    )
    return set_span_in_context(NonRecordingSpan(remote), Context())
