"""W3C trace context on both hops, and OpenTelemetry spans when an endpoint is configured.

Tracing is off by default. Off, a request costs nothing and the client's `traceparent` goes on unchanged, so that the
engine's spans still hang under the client's. On, one span covers the request with all its retries, each attempt is a
child under which the next tier's spans hang, and names follow the GenAI conventions (`gen_ai.*`, stable set of semconv
1.41) beside our own (`gir.*`), for which no convention exists. Finished spans are exported by a thread, bounded, never
on the way of a request. Prompt and answer text is never an attribute.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from gir.model.request import Api

Value = str | int | float | bool
Attributes = Mapping[str, Value]

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
CONVERSATION: Final = "gen_ai.conversation.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
ORIGINAL_MODEL: Final = "gen_ai.original.model"
"""Model the client named, where a rewrite changed it."""
ERROR_TYPE: Final = "error.type"
HTTP_STATUS: Final = "http.response.status_code"
SERVER_ADDRESS: Final = "server.address"
REQUEST_ID: Final = "gir.request.id"
TENANT: Final = "gir.tenant"
CRITICALITY: Final = "gir.criticality"
CLUSTER: Final = "gir.cluster"
POD: Final = "gir.pod"
TIER: Final = "gir.tier"
REASON: Final = "gir.placement.reason"
ATTEMPTS: Final = "gir.attempts"
ATTEMPT: Final = "gir.attempt.number"
OUTCOME: Final = "gir.outcome"
PHASE: Final = "gir.attempt.phase"
QUEUED: Final = "gir.queue.wait"
POLICY_VERSION: Final = "gir.policy.version"

_OPERATIONS = {
    Api.CHAT: "chat",
    Api.COMPLETIONS: "text_completion",
    Api.EMBEDDINGS: "embeddings",
    Api.RESPONSES: "chat",
    Api.MESSAGES: "chat",
}
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_ZERO_TRACE = b"0" * 32
_ZERO_SPAN = b"0" * 16


def operation(api: Api) -> str:
    """`gen_ai.operation.name` of an API; our own word where the conventions have none."""
    return _OPERATIONS.get(api, api.value)


def valid_traceparent(value: bytes | None) -> bytes | None:
    """`value` when it is a usable W3C traceparent (any version but ff, no all-zero ids), else None."""
    if (
        value is None
        or not _TRACEPARENT.fullmatch(value)
        or value.startswith(b"ff")
        or value[3:35] == _ZERO_TRACE
        or value[36:52] == _ZERO_SPAN
    ):
        return None
    return value


class AttemptTrace(Protocol):
    """Span of one attempt."""

    @property
    def traceparent(self) -> bytes | None:
        """Header value to send with the attempt."""

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        """Close the span; `error` is the class of failure, empty when there was none."""


class RequestTrace(Protocol):
    """Span of one request with everything that happens to it."""

    @property
    def trace_id(self) -> str:
        """For the access log; empty when there is none."""

    def set(self, attributes: Attributes) -> None:
        """Add what has become known."""

    def attempt(self, name: str, attributes: Attributes) -> AttemptTrace:
        """Begin the span of one attempt."""

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        """Close the span; `error` is the class of failure, empty when there was none."""


class Tracing(Protocol):
    """Where a request's span begins."""

    on: bool
    """False when spans lead nowhere: attributes need not be gathered."""

    def request(self, traceparent: bytes | None) -> RequestTrace:
        """Begin the span of a request that came with `traceparent` (unchecked)."""

    def named(self, trace: RequestTrace, name: str) -> None:
        """Give the span its name once the model is known: `{operation} {model}`."""

    def close(self) -> None:
        """Export what is left, within a few seconds."""


class _PassOn(msgspec.Struct, frozen=True):
    """Tracing is off: the caller's context goes on as it came."""

    traceparent: bytes | None

    @property
    def trace_id(self) -> str:
        return "" if self.traceparent is None else self.traceparent[3:35].decode()

    def set(self, attributes: Attributes) -> None:
        """Nothing to add to."""

    def attempt(self, name: str, attributes: Attributes) -> "_PassOn":  # noqa: ARG002
        return self

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        """Nothing to close."""


_NOTHING = _PassOn(None)


class TracingOff:
    """No spans; `traceparent` passes through."""

    on = False

    def request(self, traceparent: bytes | None) -> RequestTrace:
        """The caller's context, if it is a valid one."""
        usable = valid_traceparent(traceparent) if traceparent is not None else None
        return _NOTHING if usable is None else _PassOn(usable)

    def named(self, trace: RequestTrace, name: str) -> None:
        """Nothing to name."""

    def close(self) -> None:
        """Nothing to export."""


def make_tracing(
    endpoint: str | None,
    *,
    service: str,
    version: str,
    instance: str,
    sample_share: float = 1.0,
    on_drop: Callable[[], None] = lambda: None,
) -> Tracing:
    """Tracing to an OTLP/HTTP collector at `endpoint` (its base URL), or none when it is None.

    `sample_share` applies to requests that come without a decision of their caller's.
    """
    if endpoint is None:
        return TracingOff()
    from gir.telemetry.otel import OtelTracing

    return OtelTracing.to_collector(
        endpoint, service=service, version=version, instance=instance, sample_share=sample_share, on_drop=on_drop
    )
