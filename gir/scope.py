"""One request's belongings: every counter, slot and reservation it holds, given back exactly once.

The scope is also the dispatcher's guide: it asks placement for the next cluster and tells placement, health and
telemetry how each attempt went. It makes no decisions of its own.
"""

from typing import TYPE_CHECKING

from gir.account.ledger import Account
from gir.account.usage import NO_USAGE, delivered_usage
from gir.admit.reservation import Reservation
from gir.admit.ticket import Ticket
from gir.model.cluster import ClusterStatus
from gir.model.decision import Candidate, Placement
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ClusterId
from gir.model.outcome import Attempt, AttemptResult, Outcome, Phase
from gir.model.policy import PolicySnapshot
from gir.model.request import InferenceRequest, Usage
from gir.net.message import RequestHead
from gir.place.placer import Dispatch
from gir.place.rewrite import Rewrite
from gir.telemetry import tracing
from gir.telemetry.tracing import AttemptTrace, RequestTrace
from gir.wire.headers import TRACEPARENT

if TYPE_CHECKING:
    from gir.pipeline import Stages


class Scope:
    """State of one request from its first header to its last byte."""

    __slots__ = (
        "_closed",
        "_running",
        "_stages",
        "account",
        "arrived_s",
        "attempts",
        "error",
        "first_token_s",
        "limits_s",
        "method",
        "outcome",
        "path",
        "placement",
        "policy",
        "queued_s",
        "request",
        "request_id",
        "reservation",
        "resumed",
        "rewrite",
        "status",
        "ticket",
        "trace",
        "usage",
    )

    def __init__(self, stages: "Stages", request_id: str, head: RequestHead, arrived_s: float) -> None:
        self._stages = stages
        self._closed = False
        self._running: dict[ClusterId, tuple[Dispatch, AttemptTrace]] = {}
        self.account: Account | None = None
        self.arrived_s = arrived_s
        self.attempts: list[Attempt] = []
        self.error: RequestError | None = None
        self.first_token_s: float | None = None
        self.limits_s = 0.0
        """Time it waited for the shared store of the limits."""
        self.method = head.method
        self.outcome = Outcome.REJECTED
        self.path = head.path
        self.placement: Placement | None = None
        self.policy: PolicySnapshot = stages.policies.current
        self.queued_s = 0.0
        self.request: InferenceRequest | None = None
        self.request_id = request_id
        self.reservation: Reservation | None = None
        self.resumed = 0
        """Times its stream was continued on another cluster."""
        self.rewrite: Rewrite | None = None
        self.status = 0
        self.ticket: Ticket | None = None
        self.trace: RequestTrace = stages.tracing.request(head.get(TRACEPARENT))
        self.usage: Usage | None = None

    # The dispatcher's guide.

    def next(self, tried: frozenset[ClusterId]) -> Candidate | None:
        """Best cluster not yet tried, by a plan made now."""
        assert self.request is not None, "placed before it was read"
        stages = self._stages
        clock = stages.clock
        now_s = clock.monotonic_s()
        placement = stages.placer.plan(
            self.request,
            stages.registry.view,
            self.policy,
            now_s=now_s,
            draw=clock.random.random(),
            tried=tried,
            canary=self.rewrite.note if self.rewrite is not None else "",
        )
        if self.placement is None or placement.ranked:
            self.placement = placement
        for candidate in placement.ranked:
            if not candidate.probation or self._may_take(candidate, now_s):
                return candidate
        return None

    def _may_take(self, candidate: Candidate, now_s: float) -> bool:
        assert self.request is not None, "placed before it was read"
        registry, model = self._stages.registry, self.request.model
        return registry.may_take(candidate.cluster, now_s, registry.view.base_of.get(model, model))

    def elsewhere(self, tried: frozenset[ClusterId]) -> bool:
        """Whether another cluster may serve the request now."""
        assert self.request is not None, "placed before it was read"
        stages = self._stages
        return stages.placer.elsewhere(
            self.request, stages.registry.view, self.policy, now_s=stages.clock.monotonic_s(), tried=tried
        )

    def lost(self, cluster: ClusterId) -> bool:
        """Whether health has taken `cluster` out of service."""
        return any(state.id == cluster and state.status in _LOST for state in self._stages.registry.view.clusters)

    def started(self, candidate: Candidate, now_s: float) -> None:
        """Count the dispatch at once, so that the next plan sees it."""
        assert self.request is not None and self.placement is not None, "dispatched before it was placed"
        stages, cluster = self._stages, candidate.cluster
        dispatch = stages.placer.dispatched(self.request, cluster, now_s)
        stages.telemetry.placed(cluster, self.placement.reason)
        attributes = self._span_attributes(candidate) if stages.tracing.on else _NOTHING
        self._running[cluster] = (dispatch, self.trace.attempt("attempt", attributes))
        if self.ticket is not None:
            stages.waiting.taken(self.ticket)

    def _span_attributes(self, candidate: Candidate) -> tracing.Attributes:
        number = len(self.attempts) + len(self._running) + 1
        return {tracing.CLUSTER: candidate.cluster, tracing.TIER: candidate.tier, tracing.ATTEMPT: number}

    def traceparent(self, cluster: ClusterId) -> bytes | None:
        """Trace context for the attempt that runs on `cluster`."""
        return self._running[cluster][1].traceparent

    def first_token(self, candidate: Candidate, now_s: float) -> None:
        """The client can be answered; prefill work on the cluster is done."""
        self.first_token_s = now_s
        if self.rewrite is not None:
            self.rewrite.ttft_s = now_s - self.arrived_s
        self._stages.placer.first_token(self._running[candidate.cluster][0], now_s)

    def ended(self, attempt: Attempt, usage: Usage | None) -> None:
        """Give the cluster's slot back and let health judge the attempt."""
        self.attempts.append(attempt)
        if usage is not None:
            self.usage = usage
        stages = self._stages
        ok = attempt.result is AttemptResult.OK
        dispatch, span = self._running.pop(attempt.cluster)
        if stages.tracing.on:
            span.end({tracing.PHASE: attempt.phase.value}, error="" if ok else attempt.result.value)
        stages.placer.finished(dispatch, now_s=attempt.ended_s, usage=usage, ok=ok)
        stages.registry.attempt(attempt, attempt.ended_s, dispatch.model)
        stages.telemetry.attempt(attempt)

    def no_candidate(self, attempts: list[Attempt]) -> RequestError:
        """Why nobody can take the request now, and when to come back."""
        placement = self.placement
        assert placement is not None and self.request is not None, "asked before the first plan"
        model = self.request.model_asked
        if not placement.model_known:
            return self._stages.unknown_model(model)
        if placement.forbidden and not attempts:
            listed = "; ".join(f"{item.cluster}: {item.detail}" for item in placement.removed[:8])
            return RequestError(
                ErrorKind.FORBIDDEN,
                f"policy leaves no cluster for this request ({listed})",
                reason=placement.removed[0].filter if placement.removed else "",
            )
        waits_s = [attempt.retry_after_s for attempt in attempts if attempt.retry_after_s is not None]
        retry_after_s = min(waits_s) if waits_s else placement.retry_after_s
        if attempts and all(attempt.status == 429 for attempt in attempts):
            return RequestError(
                ErrorKind.OVERLOADED, f"every cluster serving '{model}' is full", retry_after_s=retry_after_s
            )
        reasons = ", ".join(f"{item.cluster}: {item.detail or item.filter}" for item in placement.removed[:8])
        tried = ", ".join(f"{attempt.cluster}: {attempt.detail or attempt.result.value}" for attempt in attempts)
        detail = "; ".join(part for part in (f"tried {tried}" if tried else "", reasons) if part)
        return RequestError(
            ErrorKind.NO_CAPACITY,
            f"no cluster can take a request for '{model}' now ({detail or 'none is known'})",
            retry_after_s=retry_after_s,
        )

    def left(self) -> None:
        """The client is gone: too early, unless the last attempt has proved that it had everything."""
        last = self.attempts[-1] if self.attempts else None
        if last is not None and last.phase is Phase.DONE:
            self.outcome, self.status = Outcome.COMPLETED, last.status or 0
        else:
            self.outcome = Outcome.CLIENT_GONE

    def close(self, bytes_sent: int) -> None:
        """Settle everything. Must run once, whatever happened; a second call is a bug."""
        assert not self._closed, "a request settled twice"
        self._closed = True
        stages = self._stages
        now_s = stages.clock.monotonic_s()
        if self.ticket is not None:
            stages.waiting.leave(self.ticket, now_s)
        started = self.first_token_s is not None
        if self.request is not None and (started or self.attempts):
            self.usage = self._delivered(self.request, started=started)
        if self.reservation is not None:
            stages.limiter.settle(
                self.reservation, self.usage, started=started, own_doing=self._own_doing(), now_s=now_s
            )
        if self.account is not None:
            served = self.placement is not None and self.placement.model_known
            self.account.settle(self.outcome, self.usage or NO_USAGE, served=served)
        if self.rewrite is not None and self.rewrite.rule:  # an alias alone is nobody's trial
            stages.rewriter.observe(self.rewrite, self._succeeded(), self._ttft_s(), now_s)
        stages.telemetry.request(self, bytes_sent)
        if stages.tracing.on:
            self.trace.end(tracing_attributes(self), error="" if self.error is None else self.error.kind.value.code)

    def _delivered(self, request: InferenceRequest, *, started: bool) -> Usage:
        return delivered_usage(
            self.usage,
            started=started,
            complete=self.outcome is Outcome.COMPLETED,
            prompt_tokens_estimate=request.prompt_tokens_estimate,
            content_events=sum([attempt.tokens for attempt in self.attempts]),
        )

    def _succeeded(self) -> bool | None:
        """Whether the model did well; None when the end says nothing about it.

        An attempt that failed in the engine counts although another one hid it from the client: a bad model with
        enough clusters to try would otherwise pass for a good one.
        """
        if any(attempt.result is AttemptResult.UPSTREAM_FAULT for attempt in self.attempts):
            return False
        if self.outcome is Outcome.COMPLETED and self.attempts:
            return True if self.attempts[-1].result is AttemptResult.OK else None
        return False if self.outcome in _FAILURES else None

    def _own_doing(self) -> bool:
        """Whether nothing came of the request because of its caller: it asked for what cannot be served, or left
        while a cluster worked for it. Such a request costs the fleet something and would be free to repeat for ever.
        """
        if self.outcome is Outcome.CLIENT_GONE or self._in_a_hurry():
            return bool(self.attempts)
        return 400 <= self.status < 500 and self.status != _TOO_MANY

    def _in_a_hurry(self) -> bool:
        """Whether it ended by a deadline of its client's own, which is as good as leaving."""
        if self.error is None or self.error.kind is not ErrorKind.DEADLINE_EXCEEDED or self.request is None:
            return False
        return self.request.deadline_s < self.arrived_s + self.policy.forward.total_s

    def _ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s


def tracing_attributes(scope: Scope) -> dict[str, tracing.Value]:
    """What the span of an ended request says: GenAI conventions, and our own names for the routing."""
    found: dict[str, tracing.Value] = {
        tracing.REQUEST_ID: scope.request_id,
        tracing.OUTCOME: scope.outcome.value,
        tracing.ATTEMPTS: len(scope.attempts),
        tracing.HTTP_STATUS: scope.status,
        tracing.POLICY_VERSION: scope.policy.version,
    }
    request, usage = scope.request, scope.usage
    if request is not None:
        found |= {
            tracing.OPERATION: tracing.operation(request.api),
            tracing.REQUEST_MODEL: request.model,
            tracing.ORIGINAL_MODEL: request.model_asked,
            tracing.REQUEST_STREAM: request.stream,
            tracing.TENANT: request.principal.tenant,
            tracing.CRITICALITY: request.criticality.label,
        }
    if scope.placement is not None:
        found[tracing.REASON] = scope.placement.reason
    if scope.attempts:
        found[tracing.CLUSTER] = scope.attempts[-1].cluster
    if scope.first_token_s is not None:
        found[tracing.FIRST_CHUNK] = scope.first_token_s - scope.arrived_s
    if scope.queued_s:
        found[tracing.QUEUED] = scope.queued_s
    if usage is not None:
        found |= {
            tracing.INPUT_TOKENS: usage.prompt_tokens,
            tracing.OUTPUT_TOKENS: usage.completion_tokens,
            tracing.CACHED_TOKENS: usage.cached_tokens,
        }
    return found


_LOST = (ClusterStatus.SUSPECT, ClusterStatus.DEAD)
_TOO_MANY = 429
_FAILURES = frozenset({Outcome.FAILED, Outcome.TRUNCATED})
_NOTHING: tracing.Attributes = {}
