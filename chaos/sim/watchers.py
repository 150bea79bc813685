"""Who watches a run: every decision and every ending passes here and is held against the invariants as it happens.

I1 every request ends once. I3 usage is what was delivered. I6 one policy version from start to end. I7 no placement on
a dead, drained, forbidden or tried cluster. I8 limits. I9 shed order. I11 attempts. I12 deadlines. And the promises of
the ladder: nothing is placed on a frozen cluster for long, nobody waits there for long, nobody returns without a ramp,
nobody is accused without cause, no request is lost for want of a try. (I2 and I10 are looked at in `audit`, I4 where
the client reads, I5 in the property tests of the registry.)
"""

import hashlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gir.forward.budget import RetryBudget
from gir.health.events import Cause, EventKind, HealthEvent
from gir.health.ramp import ramp_share
from gir.health.registry import Registry
from gir.model.cluster import ClusterState, ClusterStatus, ClusterView
from gir.model.decision import Placement
from gir.model.errors import ErrorKind
from gir.model.ids import ClusterId
from gir.model.outcome import Attempt, AttemptResult, Outcome, Phase
from gir.model.policy import PolicySnapshot
from gir.model.request import Criticality, InferenceRequest, Usage
from gir.place.loads import Dispatch
from gir.place.placer import Placer
from gir.scope import Scope

if TYPE_CHECKING:
    from chaos.sim.router import SimRouter

SLACK_S = 0.15
"""Rounding, and the time between a verdict and the look that acts on it."""
HOLD_OFF_S = 1.0
WINDOW_S = 60.0
GONE_S = 1.0
"""So long after its client has left, no pod works on a request any more."""
WAITERS_S = 1.0
"""Requests that wait for their first token are moved this much after the verdict at the latest."""
GIVEN_UP = "cluster became "
"""So health gives its reason when it takes a waiting request from a cluster."""
UNTROUBLED_S = 30.0
"""A cluster that nothing has befallen for so long must not be accused of anything."""
_AVAILABLE = (ClusterStatus.HEALTHY, ClusterStatus.RAMPING)


class Observed:
    """Findings and the trace of one run."""

    def __init__(self, now_s: Any) -> None:
        self._now_s = now_s
        self._digest = hashlib.blake2b(digest_size=16)
        self.failed: list[str] = []
        self.lines: list[str] | None = None
        """The trace as text, when somebody wants to read it."""
        self.outcomes: dict[str, int] = {}
        self.core = ""
        """A cluster that no fault touches, with room for everybody; '' if there is none."""
        self.limits: dict[str, int] = {}
        """Requests a minute by tenant."""
        self.overshoot = 1.05
        self._admitted: dict[str, deque[float]] = {}

    def note(self, *fields: object) -> None:
        """One step of the history."""
        line = f"{self._now_s():.6f} {' '.join(map(str, fields))}"
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        if self.lines is not None:
            self.lines.append(line)

    def fail(self, invariant: str, detail: str) -> None:
        """Something that must never happen."""
        self.failed.append(f"{invariant} at {self._now_s():.3f}s: {detail}")
        self.note("FAILED", invariant, detail)

    @property
    def trace(self) -> str:
        """Hash of the history so far."""
        return self._digest.hexdigest()

    def admitted(self, tenant: str, arrived_s: float) -> None:
        """A request of `tenant` passed the limits (I8)."""
        limit = self.limits.get(tenant)
        if limit is None:
            return
        times = self._admitted.setdefault(tenant, deque())
        times.append(arrived_s)
        latest_s = max(times)
        within = sum(latest_s - WINDOW_S < at_s for at_s in times)
        while times and latest_s - times[0] > 2 * WINDOW_S:
            times.popleft()
        if within > limit * self.overshoot + 1:
            self.fail("I8", f"{within} requests of {tenant} in {WINDOW_S:g}s, limit {limit}")


class SeenRegistry(Registry):
    """The registry, its events watched."""

    observed: Observed
    router: "SimRouter"
    closed_s: float
    """When it last stopped suspecting itself."""
    suspected_s: dict[ClusterId, float]
    """When each cluster last fell."""
    risen_s: dict[ClusterId, float]
    """When each cluster last came back."""
    unreachable_s: dict[ClusterId, float]
    """Since when each unreachable cluster has been so."""
    _seen: ClusterView | None = None

    def take_events(self) -> list[HealthEvent]:
        events = super().take_events()
        for event in events:
            self._note(event)
        if self.view is not self._seen:
            self._seen = self.view
            for state in self.view.clusters:
                if not state.unreachable or self.fail_open:
                    self.unreachable_s.pop(state.id, None)
                else:
                    self.unreachable_s.setdefault(state.id, self.router.loop.time())
                if state.status is ClusterStatus.RAMPING and not state.probation:
                    self._check_share(state)
        return events

    def _note(self, event: HealthEvent) -> None:
        fields = (event.kind.value, event.cluster, event.before, event.after, event.cause.value)
        self.observed.note(self.router.name, *fields)
        if event.kind is EventKind.STATUS:
            self._check(event)
        elif event.kind is EventKind.FAIL_OPEN and event.after == "closed":
            self.closed_s = event.at_s

    def _check(self, event: HealthEvent) -> None:
        name = self.router.name
        if event.before in ("suspect", "dead") and event.after == "healthy" and not self.fail_open:
            self.observed.fail("ramp", f"{name} gave {event.cluster} all its work back at once")
        if event.after == "suspect" and event.cluster is not None:
            self.suspected_s[event.cluster] = event.at_s
        elif event.after in ("healthy", "ramping") and event.before != "ramping" and event.cluster is not None:
            self.risen_s[event.cluster] = event.at_s
        fell = event.after in ("suspect", "dead") and event.cause in (Cause.BEATS, Cause.PROBE)
        if fell and self.router.cluster(event.cluster or "").untroubled_s > UNTROUBLED_S:
            self.observed.fail("alarm", f"{name} accuses {event.cluster}, which is well: {event.reason}")

    def _check_share(self, state: ClusterState) -> None:
        now_s = self.router.loop.time()
        ramp_since_s = self._records[state.id].since_s
        if state.weight > ramp_share(now_s - ramp_since_s, self.policy) + 0.011:
            self.observed.fail("ramp", f"{self.router.name} gives {state.id} {state.weight} in its ramp")


class SeenPlacer(Placer):
    """The placer, its placements watched (I7 and the ladder)."""

    observed: Observed
    router: "SimRouter"

    def __init__(self) -> None:
        super().__init__()
        self.tried: dict[str, set[ClusterId]] = {}
        self._requests: dict[Dispatch, InferenceRequest] = {}
        self.ending: InferenceRequest | None = None
        """Whose attempt ends now."""
        self.versions: dict[str, int] = {}

    def plan(self, request: InferenceRequest, view: ClusterView, policy: PolicySnapshot, **more: Any) -> Placement:
        first = self.versions.setdefault(request.request_id, policy.version)
        if first != policy.version:
            self.observed.fail("I6", f"{request.request_id} began with policy {first} and sees {policy.version}")
        return super().plan(request, view, policy, **more)

    def dispatched(self, request: InferenceRequest, cluster: ClusterId, now_s: float) -> Dispatch:
        view = self.router.registry.view
        states = {state.id: state for state in view.clusters}
        state = states[cluster]
        tried = self.tried.setdefault(request.request_id, set())
        self.observed.note(self.router.name, "place", request.request_id, cluster, state.status.value)
        if cluster in tried:
            self.observed.fail("I7", f"{request.request_id} goes to {cluster} again")
        if state.status is ClusterStatus.DEAD and not view.fail_open:
            self.observed.fail("I7", f"{request.request_id} goes to {cluster}, which is dead")
        if any(entry.id == cluster and entry.intent != "serve" for entry in self.router.policies.current.clusters):
            self.observed.fail("I7", f"{request.request_id} goes to {cluster}, which is being drained")
        allowed = request.principal.regions_allowed
        if allowed is not None and state.region not in allowed:
            self.observed.fail("I7", f"{request.request_id} must not leave {sorted(allowed)} for {cluster}")
        self._check_ladder(request, cluster, tried, now_s)
        tried.add(cluster)
        dispatch = super().dispatched(request, cluster, now_s)
        self._requests[dispatch] = request
        return dispatch

    def finished(self, dispatch: Dispatch, **more: Any) -> None:
        self.ending = self._requests.pop(dispatch, None)
        super().finished(dispatch, **more)

    def _check_ladder(self, request: InferenceRequest, cluster: ClusterId, tried: set[ClusterId], now_s: float) -> None:
        """A frozen cluster gets nothing once the probes must have seen it, while another one could take the request."""
        router = self.router
        late_s = router.frozen_too_long_s(cluster, now_s)
        allowed = request.principal.regions_allowed
        others = [
            state.id
            for state in router.registry.view.by_model.get(request.model, ())
            if state.status in _AVAILABLE
            and state.weight > 0
            and state.id not in tried
            and state.id != cluster
            and max(state.backoff_until_s, state.refusing.get(request.model, 0.0)) <= now_s
            and not state.probation
            and (allowed is None or state.region in allowed)
        ]
        if late_s > 0 and others:
            self.observed.fail("ladder", f"{router.name} places on {cluster}, frozen {late_s:.2f}s too long ago")


class SeenBudget(RetryBudget):
    """The retry budget, its refusals remembered."""

    now_s: Callable[[], float]
    _refused_s = float("-inf")

    def take(self) -> bool:
        taken = super().take()
        if not taken:
            self._refused_s = self.now_s()
        return taken

    def refused_since(self, since_s: float) -> bool:
        """Somebody was refused a retry lately."""
        return self._refused_s >= since_s


class SeenScopes:
    """The pipeline's telemetry: how attempts and requests end."""

    def __init__(self, router: "SimRouter", observed: Observed) -> None:
        self._router = router
        self._observed = observed
        self._ended: set[str] = set()
        self._requests: deque[tuple[float, int]] = deque()
        self._held_off_s: dict[str, float] = {}
        self._life = router.lives

    def forget(self) -> None:
        """The process has died; what its coroutines say when they are cleaned away is nobody's business."""
        self._life = -1

    def placed(self, cluster: str, reason: str) -> None:
        """A request leaves for a cluster; the placer has noted it."""

    def attempt(self, attempt: Attempt) -> None:
        """One attempt has ended."""
        router = self._router
        if self._life != router.lives:
            return
        self._observed.note(router.name, "attempt", attempt.cluster, attempt.result.value, attempt.phase.value)
        request = router.placer.ending
        if request is None:
            return
        tried = router.placer.tried.get(request.request_id, ())
        if attempt.detail.startswith(GIVEN_UP) and not router.others_serve(request, tried):
            self._observed.fail("moved", f"{request.request_id} was taken from {attempt.cluster} with nowhere to go")
        if attempt.phase is Phase.STREAMING and router.silent_too_long_s(attempt.cluster, attempt.ended_s) > 0.0:
            self._observed.fail("streams", f"{request.request_id} hung on frozen {attempt.cluster}: {attempt.detail}")
        waited = attempt.phase in (Phase.DISPATCHED, Phase.HEAD) and attempt.result is AttemptResult.LOCAL_FAULT
        # Who was sent there after the verdict had nowhere else to go.
        waited = waited and attempt.started_s < router.registry.suspected_s.get(attempt.cluster, float("inf"))
        late_s = router.frozen_too_long_s(attempt.cluster, attempt.ended_s)
        if waited and late_s > WAITERS_S and router.others_serve(request, tried, WAITERS_S):
            self._observed.fail("waiters", f"one waited {late_s:.2f}s too long for frozen {attempt.cluster}")

    def request(self, scope: Scope, bytes_sent: int) -> None:
        """One request has ended."""
        if self._life != self._router.lives:
            return
        observed = self._observed
        outcome = scope.outcome
        observed.outcomes[outcome.value] = observed.outcomes.get(outcome.value, 0) + 1
        observed.note(self._router.name, "end", scope.request_id, outcome.value, scope.status, bytes_sent)
        if scope.request_id in self._ended:
            observed.fail("I1", f"{scope.request_id} ended twice")
        self._ended.add(scope.request_id)
        self._router.placer.tried.pop(scope.request_id, None)
        self._router.placer.versions.pop(scope.request_id, None)
        if scope.request is None:
            return
        if scope.reservation is not None and scope.first_token_s is not None:
            observed.admitted(scope.request.principal.tenant, scope.arrived_s)
        self._check_attempts(scope)
        self._check_deadline(scope, scope.request)
        self._check_usage(scope)
        self._check_order(scope, scope.request)
        self._check_lost(scope, scope.request)
        if outcome is Outcome.CLIENT_GONE and scope.attempts:
            self._router.node.later(GONE_S, self._check_gone, scope.request_id, scope.attempts[-1].cluster)

    def _check_gone(self, request_id: str, cluster: ClusterId) -> None:
        """Nobody works for a client that has left, unless the way to the worker was troubled."""
        agent = self._router.cluster(cluster)
        if agent.untroubled_s > GONE_S + 1.0 and any(serving.request_id == request_id for serving in agent.servings):
            self._observed.fail("gone", f"{cluster} still works on {request_id}, whose client has left")

    def _check_attempts(self, scope: Scope) -> None:
        """I11: few attempts for one request, few retries for all of them."""
        if len(scope.attempts) > scope.policy.forward.attempts_max:
            self._observed.fail("I11", f"{scope.request_id} made {len(scope.attempts)} attempts")
        now_s = self._router.loop.time()
        retries = sum(_costs(attempt) for attempt in scope.attempts[:-1])
        self._requests.append((now_s, retries))
        while now_s - self._requests[0][0] > WINDOW_S:
            self._requests.popleft()
        total = sum(count for _, count in self._requests)
        # The budget bounds retries in flight; over a minute a quiet router's floor of three may turn over often.
        if total > 0.1 * len(self._requests) + 60:
            self._observed.fail("I11", f"{total} retries for {len(self._requests)} requests in {WINDOW_S:g}s")

    def _check_deadline(self, scope: Scope, request: InferenceRequest) -> None:
        """I12: nothing outlives its deadline, but for the time its router was stopped."""
        late_s = self._router.loop.time() - request.deadline_s
        if late_s > 1.0 and self._router.unpaused_s < scope.arrived_s:
            self._observed.fail("I12", f"{scope.request_id} ended {late_s:.2f}s after its deadline")

    def _check_usage(self, scope: Scope) -> None:
        """I3: what is settled is what the pods sent, no more; and all of it when the answer was complete."""
        settled = scope.usage or Usage()
        sent = self._router.sent(scope)
        if scope.outcome is Outcome.COMPLETED and scope.attempts and scope.attempts[-1].result is AttemptResult.OK:
            # Cut between its last token and the engine's count, or left there, an answer is complete and counted by us.
            cut = settled.estimated and not scope.resumed
            prompt = settled.prompt_tokens if cut or sent is None else sent.prompt
            if sent is None or (settled.prompt_tokens, settled.completion_tokens) != (prompt, sent.tokens):
                self._observed.fail("I3", f"{scope.request_id} settled {settled}, the pod sent {sent and sent.tokens}")
        elif scope.first_token_s is None:
            if settled.completion_tokens:
                self._observed.fail("I3", f"{scope.request_id} delivered nothing and settled {settled}")
        elif sent is None or settled.completion_tokens > sent.tokens:
            self._observed.fail("I3", f"{scope.request_id} settled {settled}, the pod sent {sent and sent.tokens}")

    def _check_order(self, scope: Scope, request: InferenceRequest) -> None:
        """I9: while a better request is turned away for want of room, no Sheddable one is let in."""
        error = scope.error
        pool = request.model
        if request.criticality is Criticality.SHEDDABLE:
            let_in_s = scope.arrived_s
            held_s = self._held_off_s.get(pool)
            if scope.attempts and held_s is not None and held_s < let_in_s < held_s + HOLD_OFF_S:
                self._observed.fail("I9", f"{scope.request_id} is sheddable and was let in after a shed")
        elif error is not None and error.kind is ErrorKind.OVERLOADED and not scope.attempts:
            self._held_off_s[pool] = self._router.loop.time()

    def _check_lost(self, scope: Scope, request: InferenceRequest) -> None:
        """No error before the first token while the untouched cluster had room, whatever happened to the others."""
        router = self._router
        core = next((state for state in router.registry.view.clusters if state.id == self._observed.core), None)
        failed = scope.outcome is Outcome.FAILED or (
            scope.error is not None and scope.error.kind is ErrorKind.NO_CAPACITY
        )
        if not failed or core is None or scope.first_token_s is not None:
            return
        now_s = router.loop.time()
        allowed = request.principal.regions_allowed
        steady_s = now_s - max(router.born_s, router.unpaused_s)
        tries = len(scope.attempts)
        full = sum(attempt.result is AttemptResult.BACKPRESSURE for attempt in scope.attempts)
        if (
            request.model in core.pools
            and (allowed is None or core.region in allowed)
            and core.status is ClusterStatus.HEALTHY
            and core.weight >= 0.99
            and steady_s > now_s - scope.arrived_s + 20.0
            and tries < scope.policy.forward.attempts_max
            and full < 2
            and now_s < request.deadline_s
            and not router.budget.refused_since(scope.arrived_s)
            and core.id not in {attempt.cluster for attempt in scope.attempts}
        ):
            told = scope.error.message if scope.error is not None else ""
            self._observed.fail(
                "PTE", f"{scope.request_id} failed after {tries} attempts beside a healthy {core.id}: {told}"
            )


def _costs(attempt: Attempt) -> int:
    """Whether a try after `attempt` had to be paid from the retry budget."""
    return attempt.result in (AttemptResult.LOCAL_FAULT, AttemptResult.UPSTREAM_FAULT) and attempt.phase in (
        Phase.DISPATCHED,
        Phase.HEAD,
    )
