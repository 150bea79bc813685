"""The story of a request through the router: authenticate, read, rewrite, admit, place, forward, account.

The stages are strangers to one another; this module is the only one that knows their order. Each step either adds to
the request's scope or raises the `RequestError` the client will see; the scope gives everything back at the end.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote, unquote

import msgspec

from gir import requesting
from gir.account.ledger import UsageLedger
from gir.admit.limits import Limiter
from gir.admit.reservation import LimitExceeded
from gir.admit.ticket import Room, Ticket, ticket_of
from gir.admit.waiting import WaitingRoom
from gir.auth.authenticator import Authenticator
from gir.auth.settings import AuthSettings
from gir.caller import Caller, caller_of
from gir.clock import Clock
from gir.forward.answer import Answer
from gir.forward.dispatch import Dispatcher
from gir.forward.heads import returned
from gir.health.registry import Registry
from gir.model.decision import Candidate
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ClusterId, ModelId
from gir.model.outcome import Attempt, Outcome
from gir.model.policy import PolicySnapshot
from gir.model.request import InferenceRequest, Principal
from gir.net.exchange import Exchange
from gir.net.render import header_lines
from gir.place.placer import Placer
from gir.place.rewrite import Rewriter
from gir.scope import Scope
from gir.telemetry.tracing import Tracing, operation
from gir.wire import headers as names
from gir.wire.survey import is_large

_MODELS = "/v1/models"
_NAME_SHOWN_MAX = 80
_REQUEST_ID_LINE = header_lines([(names.REQUEST_ID, b"%b")])


class PolicySource(Protocol):
    """Where the policy in force is found."""

    @property
    def current(self) -> PolicySnapshot:
        """The snapshot a request that starts now keeps to its end."""


class Telemetry(Protocol):
    """Who is told about attempts and requests."""

    def placed(self, cluster: str, reason: str) -> None:
        """A request leaves for a cluster now."""

    def attempt(self, attempt: Attempt) -> None:
        """One attempt has ended."""

    def request(self, scope: Scope, bytes_sent: int) -> None:
        """One request has ended, whatever became of it."""


class Stages(msgspec.Struct, frozen=True, kw_only=True):
    """The parts the composition root has put together."""

    clock: Clock
    policies: PolicySource
    index: requesting.PolicyIndex
    authenticator: Authenticator
    rewriter: Rewriter
    limiter: Limiter
    waiting: WaitingRoom
    ledger: UsageLedger
    placer: Placer
    registry: Registry
    dispatcher: Dispatcher
    telemetry: Telemetry
    tracing: Tracing
    credential_for: Callable[[str], bytes]
    """`Authorization` value a cluster's agent expects, by cluster id."""
    models_body: Callable[[Principal], bytes]
    """Answer of GET /v1/models."""
    model_card: Callable[[Principal, str], bytes | None]
    """Answer of GET /v1/models/NAME; None when there is no such model."""
    response_headers: bool = True
    """Tell clients which cluster served them, and why."""
    awaited: Callable[[], str] = lambda: ""
    """Whose report this router must hear before it may call a model unknown; empty when it has."""

    def unknown_model(self, model: str) -> RequestError:
        """404, or 503 from a router that has just started: clients give up on the one and come back after the other."""
        name = repr(model[:_NAME_SHOWN_MAX])
        if awaited := self.awaited():
            return RequestError(ErrorKind.NO_CAPACITY, f"model {name} is not known yet: {awaited}", param="model")
        return RequestError(
            ErrorKind.MODEL_NOT_FOUND,
            f"model {name} is served by no cluster; GET /v1/models lists those that are",
            param="model",
        )

    def adopt(self, policy: PolicySnapshot, auth: AuthSettings) -> None:
        """Have every part take over a new policy, those that may refuse it first."""
        self.authenticator.apply(auth, policy.tenants)
        self.limiter.apply(policy.limits)
        self.waiting.apply(policy.flow)
        self.registry.apply_policy(policy, self.clock.monotonic_s())
        forward = policy.forward
        self.dispatcher.budget.configure(share=forward.retry_budget_share, minimum=forward.retry_budget_min)


class Pipeline:
    """Handler of the data port."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._new_id = requesting.RequestIds(stages.clock)

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request to its end."""
        stages = self._stages
        scope = Scope(stages, self._new_id(), exchange.head, exchange.arrived_s)
        try:
            await self._story(exchange, scope)
        except RequestError as error:
            self._refuse(exchange, scope, error)
            error.let_go()
        except asyncio.CancelledError:
            scope.left()
            raise
        finally:
            scope.close(exchange.bytes_sent)

    async def _story(self, exchange: Exchange, scope: Scope) -> None:
        stages = self._stages
        head = exchange.head
        stages.waiting.check_door()
        caller = caller_of(head)
        principal = stages.authenticator.known(caller.credential, stages.clock.wall_s(), caller.digest)
        if principal is None:
            principal = await stages.authenticator.authenticate(caller.credential)
        api = caller.api
        if api is None or head.method != "POST":
            self._other_route(exchange, caller, principal)
            scope.outcome = Outcome.COMPLETED
            return
        body = exchange.body_ready
        if body is None:
            body = await exchange.read_body()
        if is_large(body):
            asked = await requesting.read_large(caller, api, body, principal)
        else:
            asked = requesting.read(caller, api, body, principal)
        scope.rewrite = stages.rewriter.rewrite(
            asked.peek.model,
            head.headers,
            principal,
            asked.session_key,
            scope.policy,
            stages.registry.view,
            exchange.arrived_s,
            criticality=asked.criticality,
        )
        request = scope.request = requesting.build(asked, caller, scope, principal)
        if stages.tracing.on:
            stages.tracing.named(scope.trace, f"{operation(api)} {request.model}")
        scope.account = stages.ledger.open(principal.tenant, request.model)
        now_s = stages.clock.monotonic_s()
        scope.reservation = stages.limiter.reserve_now(request, now_s)
        if scope.reservation is None:
            scope.reservation = await stages.limiter.reserve(request)
            scope.limits_s = stages.clock.monotonic_s() - now_s
        queue = self._enter(scope, request, now_s)
        if queue is not None:
            await stages.waiting.wait(queue)
            scope.queued_s = stages.clock.monotonic_s() - now_s
        outgoing = requesting.body_for(asked, request.model)
        job = requesting.job(
            asked,
            request,
            scope.policy,
            stages.index,
            outgoing,
            head_for=self._head_writer(caller, scope),
            headers_for=self._header_writer(scope),
        )
        report = await stages.dispatcher.run(exchange, job, scope)
        scope.outcome = report.outcome
        scope.usage = report.usage
        scope.status = report.status
        scope.resumed = report.resumed

    def _enter(self, scope: Scope, request: InferenceRequest, now_s: float) -> Ticket | None:
        """Ask flow control for room; the ticket to wait with when there is none."""
        stages, policy = self._stages, scope.policy
        slots = stages.placer.slots(request, stages.registry.view, policy, now_s=now_s)
        if not slots[0]:
            return None  # Nobody to wait for: placement says at once why.
        first = True

        def room() -> Room:
            nonlocal first
            if first:
                first = False
                return Room(*slots)
            return Room(*stages.placer.slots(request, stages.registry.view, policy, now_s=stages.clock.monotonic_s()))

        _, output_tokens = stages.limiter.estimator.expected(request)
        share = stages.index.share(policy, request.principal.tenant)
        ticket = ticket_of(request, room, output_tokens=output_tokens, share=share)
        may_go = stages.waiting.enter_now(ticket, now_s)
        scope.ticket = ticket
        return None if may_go else ticket

    def _other_route(self, exchange: Exchange, caller: Caller, principal: Principal) -> None:
        """Answer what is not a POST to one of the APIs; raises 404 or 405 unless it asks about models."""
        head = exchange.head
        if head.method in ("GET", "HEAD") and (head.path == _MODELS or head.path.startswith(f"{_MODELS}/")):
            headers = [(b"content-type", b"application/json")]
            exchange.respond(200, headers, self._models(unquote(head.path.removeprefix(_MODELS)[1:]), principal))
        elif caller.api is None:
            raise RequestError(
                ErrorKind.NOT_FOUND, f"no such path: {head.method} {head.path[:80]}; the API begins with /v1/"
            )
        else:
            raise RequestError(ErrorKind.METHOD_NOT_ALLOWED, f"{head.method} {head.path[:80]}: use POST")

    def _models(self, name: str, principal: Principal) -> bytes:
        """The listing, or the card of one model; names may hold slashes, percent-encoded or not."""
        body = self._stages.model_card(principal, name) if name else self._stages.models_body(principal)
        if body is None:
            raise self._stages.unknown_model(name)
        return body

    def _head_writer(self, caller: Caller, scope: Scope) -> Callable[[Candidate, int], bytes]:
        stages = self._stages

        def write(candidate: Candidate, body_bytes: int) -> bytes:
            authorization, now_s = stages.credential_for(candidate.cluster), stages.clock.monotonic_s()
            return requesting.upstream_head(caller, scope, candidate, authorization, body_bytes, now_s)

        return write

    def _header_writer(self, scope: Scope) -> Callable[[Candidate, int, Answer], bytes]:
        def write(candidate: Candidate, number: int, answer: Answer) -> bytes:
            assert answer.head is not None, "headers for an answer without a head"
            stages, request, placement = self._stages, scope.request, scope.placement
            assert request is not None and placement is not None, "answered before it was placed"
            lines = returned(answer.head) + _REQUEST_ID_LINE % scope.request_id.encode()
            if scope.reservation is not None and scope.reservation.spent:
                lines += stages.limiter.lines(scope.reservation, stages.clock.monotonic_s())
            if stages.response_headers:
                reason = "failover" if number > 1 else placement.reason
                lines += _decision_lines(candidate.cluster, reason, number, request.model)
            return lines

        return write

    def _refuse(self, exchange: Exchange, scope: Scope, error: RequestError) -> None:
        scope.error = error
        scope.status = error.kind.value.status
        if error.kind is ErrorKind.DEADLINE_EXCEEDED:
            scope.outcome = Outcome.EXPIRED
        elif scope.attempts:
            scope.outcome = Outcome.FAILED
        if not exchange.response_started:
            extra = [(names.REQUEST_ID, scope.request_id.encode())]
            if self._stages.response_headers:
                extra.append((names.REASON, quote(error.reason, safe=":").encode()))
                if scope.attempts:
                    extra.append((names.ATTEMPTS, b"%d" % len(scope.attempts)))
            if isinstance(error, LimitExceeded):
                extra += error.headers
            exchange.respond_error(error, extra)


@functools.lru_cache(maxsize=4096)
def _decision_lines(cluster: ClusterId, reason: str, attempts: int, model: ModelId) -> bytes:
    """Headers that say who served, and why: the same few combinations again and again."""
    return header_lines(
        [
            (names.CLUSTER, cluster.encode()),
            (names.REASON, reason.encode()),
            (names.ATTEMPTS, b"%d" % attempts),
            (names.MODEL, model.encode()),
        ]
    )
