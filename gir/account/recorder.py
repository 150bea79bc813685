"""What becomes of a request is written down once: metrics, access log and span, from its scope.

Children of metric families are bundled by labels that repeat from request to request, so the usual request costs three
look-ups, a handful of additions and one encoded line.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from gir.clock import Clock
from gir.model.decision import Placement
from gir.model.errors import ErrorKind, RequestError
from gir.model.outcome import Attempt, AttemptResult, Outcome, Phase
from gir.model.policy import PolicySnapshot
from gir.model.request import InferenceRequest, Usage
from gir.telemetry.instruments import Counter
from gir.telemetry.logs import AccessLog, AccessRecord, wall_stamp
from gir.telemetry.metrics import RouterMetrics

_UNKNOWN = "unknown"
_STREAM_TOKENS_MIN = 2
_BUNDLES_MAX = 4_096


class Ended(Protocol):
    """An ended request, as its scope shows it. What is not known stays None."""

    request_id: str
    method: str
    path: str
    arrived_s: float
    first_token_s: float | None
    queued_s: float
    limits_s: float
    status: int
    resumed: int
    outcome: Outcome
    policy: PolicySnapshot
    request: InferenceRequest | None
    placement: Placement | None
    usage: Usage | None
    error: RequestError | None

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Attempts in order."""


def _placed(metrics: RouterMetrics, cluster: str, reason: str) -> Counter:
    return metrics.decisions.child(cluster, reason)


Bundle = TypeVar("Bundle")


class _Ends:
    """Series that a request which ended in one way adds to."""

    __slots__ = ("duration_s", "requests")

    def __init__(self, metrics: RouterMetrics, model: str, tenant: str, criticality: str, outcome: str) -> None:
        self.requests = metrics.requests.child(model, tenant, criticality, outcome)
        self.duration_s = metrics.request_s.child(model, outcome)


class _Served:
    """Series that a request which reached its first token adds to."""

    __slots__ = ("completion", "prompt", "ttft_s")

    def __init__(self, metrics: RouterMetrics, model: str, tenant: str, criticality: str) -> None:
        self.ttft_s = metrics.ttft_s.child(model, criticality)
        self.prompt = metrics.tokens.child(model, tenant, "prompt")
        self.completion = metrics.tokens.child(model, tenant, "completion")


class _Tries:
    """Series that an attempt which ended in one way adds to."""

    __slots__ = ("attempts", "duration_s", "ttft_s")

    def __init__(self, metrics: RouterMetrics, cluster: str, result: str, phase: str) -> None:
        self.attempts = metrics.attempts.child(cluster, result, phase)
        self.duration_s = metrics.attempt_s.child(cluster)
        self.ttft_s = metrics.attempt_ttft_s.child(cluster)


class _Bundles(dict[tuple[str, ...], Bundle]):
    """Series looked up together, once for each combination of labels. The number kept is bounded by starting afresh."""

    def __init__(self, make: Callable[..., Bundle], metrics: RouterMetrics) -> None:
        super().__init__()
        self._make = make
        self._metrics = metrics

    def __missing__(self, labels: tuple[str, ...]) -> Bundle:
        if len(self) >= _BUNDLES_MAX:
            self.clear()
        made = self[labels] = self._make(self._metrics, *labels)
        return made


class Recorder:
    """Telemetry of the pipeline. `access_log` None writes no lines."""

    def __init__(self, metrics: RouterMetrics, clock: Clock, access_log: AccessLog | None) -> None:
        self._metrics = metrics
        self._clock = clock
        self._access_log = access_log
        self._ends = _Bundles(_Ends, metrics)
        self._served = _Bundles(_Served, metrics)
        self._tries = _Bundles(_Tries, metrics)
        self._placed = _Bundles(_placed, metrics)
        self._models: set[str] = set()
        """Those that a cluster was found for, once."""

    def placed(self, cluster: str, reason: str) -> None:
        """Count a dispatch when it is made: a cluster's last one must be seen even while it runs or hangs."""
        self._placed[cluster, reason or _UNKNOWN].inc()

    def attempt(self, attempt: Attempt) -> None:
        """Count one ended attempt."""
        cluster, result, phase = attempt.cluster, attempt.result, attempt.phase
        series = self._tries[cluster, result, phase]
        series.attempts.inc()
        series.duration_s.observe(attempt.ended_s - attempt.started_s)
        if attempt.first_token_s is not None:
            series.ttft_s.observe(attempt.first_token_s - attempt.started_s)
        if result is AttemptResult.OK:
            return
        if phase is Phase.STREAMING and result is AttemptResult.UPSTREAM_FAULT:
            self._metrics.truncated.child(cluster).inc()
        if phase in (Phase.DISPATCHED, Phase.HEAD) and result in (AttemptResult.LOCAL_FAULT, AttemptResult.CANCELLED):
            self._metrics.wasted.child(cluster).inc()

    def request(self, scope: Ended, bytes_sent: int) -> None:
        """Count and log one ended request."""
        request = scope.request
        now_s = self._clock.monotonic_s()
        # A model nobody serves is a name from outside: it must not become a label.
        model = request.model if request is not None and self._serves(request.model, scope.placement) else _UNKNOWN
        tenant = request.principal.tenant if request is not None else _UNKNOWN
        criticality = request.criticality.label if request is not None else _UNKNOWN
        ends = self._ends[model, tenant, criticality, scope.outcome]
        ends.requests.inc()
        ends.duration_s.observe(now_s - scope.arrived_s)
        if scope.first_token_s is not None:
            served = self._served[model, tenant, criticality]
            served.ttft_s.observe(scope.first_token_s - scope.arrived_s)
            if scope.usage is not None:
                served.prompt.inc(scope.usage.prompt_tokens)
                served.completion.inc(scope.usage.completion_tokens)
                self._rarer_tokens(scope.usage, model, tenant)
                if request is not None and request.stream:
                    self._pace(scope.usage, model, now_s - scope.first_token_s)
        if scope.error is not None or scope.queued_s or scope.resumed or len(scope.attempts) > 1:
            self._unusual(scope, tenant, criticality)
        if self._access_log is not None:
            self._access_log.write(self._line(scope, now_s, bytes_sent))

    def _serves(self, model: str, placement: Placement | None) -> bool:
        """Whether the fleet has `model`. What was refused before it was placed may name anything: then only a model
        that has been placed before counts.
        """
        if placement is None:
            return model in self._models
        if placement.model_known:
            self._models.add(model)
        return placement.model_known

    def _rarer_tokens(self, usage: Usage, model: str, tenant: str) -> None:
        tokens = self._metrics.tokens
        if usage.cached_tokens:
            tokens.child(model, tenant, "cached").inc(usage.cached_tokens)
        if usage.reasoning_tokens:
            tokens.child(model, tenant, "reasoning").inc(usage.reasoning_tokens)
        if usage.estimated:
            self._metrics.usage_estimated.child(model).inc()

    def _pace(self, usage: Usage, model: str, streamed_s: float) -> None:
        if usage.completion_tokens >= _STREAM_TOKENS_MIN:
            self._metrics.per_token_s.child(model).observe(streamed_s / (usage.completion_tokens - 1))

    def _unusual(self, scope: Ended, tenant: str, criticality: str) -> None:
        """What most requests are spared: errors, waiting, other clusters."""
        metrics = self._metrics
        if scope.error is not None:
            metrics.errors.child(scope.error.kind.value.code).inc()
            if scope.error.kind is ErrorKind.RATE_LIMITED:
                metrics.limited.child(scope.error.reason, tenant).inc()
            elif scope.error.kind is ErrorKind.OVERLOADED and not scope.attempts:
                metrics.shed.child(criticality, scope.error.reason).inc()
        if scope.queued_s:
            metrics.queue_wait_s.child(criticality).observe(scope.queued_s)
        if scope.resumed:
            metrics.resumed.child("ok" if scope.outcome is Outcome.COMPLETED else "broken_again").inc(scope.resumed)
        self._failovers(scope)

    def _failovers(self, scope: Ended) -> None:
        """Every attempt but the last was followed by another cluster."""
        for attempt in scope.attempts[:-1]:
            self._metrics.failovers.child(attempt.cluster, attempt.result).inc()

    def _line(self, scope: Ended, now_s: float, bytes_sent: int) -> AccessRecord:
        request, usage, placement = scope.request, scope.usage, scope.placement
        record = AccessRecord(
            time=wall_stamp(self._clock.wall_s()),
            request_id=scope.request_id,
            method=scope.method,
            path=scope.path,
            attempts=len(scope.attempts),
            status=scope.status,
            outcome=scope.outcome,
            duration_ms=round((now_s - scope.arrived_s) * 1000, 3),
            bytes_sent=bytes_sent,
            policy_version=scope.policy.version,
        )
        if request is not None:
            record.tenant, record.key_id = request.principal.tenant, request.principal.key_id
            record.model, record.model_asked = request.model, request.model_asked
            record.criticality, record.stream = request.criticality.label, request.stream
        if placement is not None:
            record.reason = placement.reason
        if scope.attempts:
            record.cluster = scope.attempts[-1].cluster
        if scope.error is not None:
            record.error = scope.error.kind.value.code
            if scope.error.reason != record.error:  # which limit, filter or queue: more than placement can say
                record.reason = scope.error.reason
        if scope.first_token_s is not None:
            record.ttft_ms = round((scope.first_token_s - scope.arrived_s) * 1000, 3)
        if scope.queued_s:
            record.queued_ms = round(scope.queued_s * 1000, 3)
        if scope.limits_s:
            record.limits_ms = round(scope.limits_s * 1000, 3)
        if usage is not None:
            record.prompt_tokens, record.completion_tokens = usage.prompt_tokens, usage.completion_tokens
            record.cached_tokens = usage.cached_tokens
        return record
