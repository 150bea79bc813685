"""From bytes to `InferenceRequest`, and from there to what a cluster is sent.

Helpers of the pipeline: they know headers, bodies and values, and decide nothing about where a request goes.
"""

import asyncio
import itertools
from collections.abc import Callable

import msgspec

from gir.admit.ticket import class_of
from gir.caller import Caller
from gir.clock import Clock
from gir.forward.answer import Answer, AttemptPlan
from gir.forward.job import Job
from gir.model.decision import Candidate
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, RequestId, TenantId
from gir.model.policy import ModelPolicy, PolicySnapshot
from gir.model.prefix import BYTES_PER_TOKEN, CLUSTER_BLOCK_BYTES, prefix_hashes
from gir.model.request import Api, Criticality, InferenceRequest, Principal
from gir.net.render import header_lines, request_end
from gir.net.upstream import CallDeadlines
from gir.scope import Scope
from gir.tasks import in_turns
from gir.wire import headers as names
from gir.wire.openai import DEPTH_MAX, Peek, edited, peek, with_include_usage, with_model
from gir.wire.survey import Survey

_CONTROL_LINES = header_lines(
    [(names.REQUEST_ID, b"%b"), (names.HOPS, b"%d"), (names.CRITICALITY, b"%b"), (names.DEADLINE_MS, b"%d")]
)
_GRACE_S = 0.5
"""So much longer than here a request may take in its cluster, so that it is this router that ends it: told by the agent
that its time is up, we could not tell a short deadline from a broken engine."""
_CLASS_NAMES = {item: item.label.encode() for item in Criticality}
_USAGE_APIS = frozenset({Api.CHAT, Api.COMPLETIONS})
"""APIs whose streams carry usage only when `stream_options.include_usage` asks for it."""


class PolicyIndex:
    """Entries of the policy in use by their names, built once for each policy."""

    def __init__(self) -> None:
        self._policy = PolicySnapshot()
        self._models: dict[ModelId, ModelPolicy] = {}
        self._shares: dict[TenantId, float] = {}

    def _follow(self, policy: PolicySnapshot) -> None:
        self._policy = policy
        self._models = {entry.name: entry for entry in policy.models}
        self._shares = {tenant.id: tenant.share for tenant in policy.tenants}

    def model(self, policy: PolicySnapshot, name: ModelId) -> ModelPolicy | None:
        """The entry of a model, if the policy has one."""
        if policy is not self._policy:
            self._follow(policy)
        return self._models.get(name)

    def share(self, policy: PolicySnapshot, tenant: TenantId) -> float:
        """Weight of a tenant in the fair share of its class; 1 unless the policy says otherwise."""
        if policy is not self._policy:
            self._follow(policy)
        return self._shares.get(tenant, 1.0)


class Asked(msgspec.Struct, kw_only=True):
    """A request as the client sent it, peeked into."""

    api: Api
    body: bytes
    peek: Peek
    criticality: Criticality
    session_key: str | None
    trusted: bool
    surveyed: Survey | None = None
    """What was found in a body too large to be looked through for each splice."""


class RequestIds:
    """Fresh ids: a random prefix for each process and a counter. Ids from outside are never used as ours: they need be
    neither unique nor short.
    """

    def __init__(self, clock: Clock) -> None:
        self._prefix = f"req-{clock.random.getrandbits(64):016x}"
        self._numbers = itertools.count(1)

    def __call__(self) -> str:
        return f"{self._prefix}{next(self._numbers):08x}"


async def read_large(caller: Caller, api: Api, body: bytes, principal: Principal) -> Asked:
    """The same as `read` for a body that would hold up the event loop, with turns for others in between."""
    surveyed = Survey(body, DEPTH_MAX)
    await in_turns(surveyed.steps())
    asked = read(caller, api, body, principal, surveyed)
    await asyncio.sleep(0)
    return asked


def read(caller: Caller, api: Api, body: bytes, principal: Principal, surveyed: Survey | None = None) -> Asked:
    """Peek into the body; raises RequestError when it is not usable."""
    seen = peek(api, body, surveyed)
    return Asked(
        api=api,
        body=body,
        peek=seen,
        criticality=class_of(principal, caller.criticality),
        session_key=caller.session_key or seen.session_key,
        trusted=principal.trusted,
        surveyed=surveyed,
    )


def build(asked: Asked, caller: Caller, scope: Scope, principal: Principal) -> InferenceRequest:
    """The frozen request; raises 403 for a model the principal may not use, 508 for a loop."""
    seen, rewrite = asked.peek, scope.rewrite
    assert rewrite is not None, "built before it was rewritten"
    model = ModelId(rewrite.model)
    allowed = principal.models_allowed
    if allowed is not None and model not in allowed and seen.model not in allowed:
        raise RequestError(
            ErrorKind.FORBIDDEN,
            f"tenant '{principal.tenant}' may not use model '{seen.model}'; ask an operator to allow it",
            param="model",
        )
    if caller.hops >= scope.policy.placement.hops_max:
        raise _looped(caller.hops, scope.policy)
    prompt = seen.prompt
    prompt_bytes = len(prompt)
    return InferenceRequest(
        request_id=RequestId(scope.request_id),
        api=asked.api,
        path=scope.path,
        model=model,
        model_asked=ModelId(seen.model),
        principal=principal,
        criticality=asked.criticality,
        stream=seen.stream,
        prompt_tokens_estimate=int(prompt_bytes / BYTES_PER_TOKEN),
        output_tokens_max=seen.output_tokens_max,
        choices=seen.choices,
        prefix_hashes=prefix_hashes(model, prompt, block_bytes=CLUSTER_BLOCK_BYTES),
        prompt_bytes=prompt_bytes,
        session_key=asked.session_key,
        cluster_pinned=caller.pinned if asked.trusted else None,
        arrived_s=scope.arrived_s,
        deadline_s=scope.arrived_s + _allowed_s(caller.deadline_ms, scope.policy),
        hops=caller.hops,
        body_bytes=len(asked.body),
    )


def _looped(hops: int, policy: PolicySnapshot) -> RequestError:
    return RequestError(
        ErrorKind.LOOP_DETECTED,
        f"the request has crossed {hops} routers (placement.hops_max is {policy.placement.hops_max}): "
        "a cluster's URL leads back to a router",
    )


def _allowed_s(claimed_ms: bytes | None, policy: PolicySnapshot) -> float:
    """Time the request may take: the client's own bound if it names one, capped by policy."""
    if claimed_ms is None:
        return policy.forward.total_s
    if not claimed_ms.isdigit() or len(claimed_ms) > 9 or not int(claimed_ms):
        raise RequestError(
            ErrorKind.BAD_REQUEST,
            f"header x-gir-deadline-ms is '{claimed_ms[:20].decode('latin-1')}'; give whole milliseconds > 0",
        )
    return min(int(claimed_ms) / 1000, policy.forward.deadline_client_max_s)


def job(
    asked: Asked,
    request: InferenceRequest,
    policy: PolicySnapshot,
    index: PolicyIndex,
    body: bytes,
    head_for: Callable[[Candidate, int], bytes],
    headers_for: Callable[[Candidate, int, Answer], bytes],
) -> Job:
    """What the dispatcher needs to send `body` wherever the request goes."""
    forward = policy.forward
    entry = index.model(policy, request.model)
    hedge_after_s = entry.hedge_after_s if entry is not None else None
    plan = AttemptPlan(
        api=asked.api,
        body=body,
        deadlines=CallDeadlines(
            head_s=forward.head_s if request.stream else forward.whole_s,
            first_token_s=forward.first_token_s,
            idle_s=forward.idle_s,
            total_at_s=request.deadline_s,
        ),
        response_bytes_max=forward.response_bytes_max,
        choices=asked.peek.choices,
        hide_usage=_usage_is_ours(asked),
        resumable=entry is not None
        and entry.resume
        and asked.api is Api.CHAT
        and request.stream
        and asked.peek.resumable,
    )
    return Job(
        plan=plan,
        policy=forward,
        deadline_s=request.deadline_s,
        head_for=head_for,
        headers_for=headers_for,
        hedge_after_s=forward.hedge_after_s if hedge_after_s is None else hedge_after_s,
    )


def body_for(asked: Asked, model: ModelId) -> bytes:
    """The client's bytes, with another model name or a usage request spliced in where needed."""
    body = asked.body
    renamed, usage_is_ours = model != asked.peek.model, _usage_is_ours(asked)
    if asked.surveyed is not None:
        return edited(asked.surveyed, model=model if renamed else None, include_usage=usage_is_ours)
    if renamed:
        body = with_model(body, model)
    return with_include_usage(body, absent=asked.peek.options_absent) if usage_is_ours else body


def _usage_is_ours(asked: Asked) -> bool:
    """Whether the stream's usage is asked for on our own account, and must be hidden from the client."""
    return asked.peek.stream and not asked.peek.include_usage and asked.api in _USAGE_APIS


def upstream_head(
    caller: Caller, scope: Scope, candidate: Candidate, authorization: bytes, body_bytes: int, now_s: float
) -> bytes:
    """Request head for one cluster: allow-listed headers, our control headers, the cluster's own credential."""
    request = scope.request
    assert request is not None, "sent before it was built"
    left_ms = int((max(0.0, request.deadline_s - now_s) + _GRACE_S) * 1000)
    start = caller.start(candidate.url, authorization, trusted=request.principal.trusted)
    lines = _CONTROL_LINES % (scope.request_id.encode(), request.hops + 1, _CLASS_NAMES[request.criticality], left_ms)
    traceparent = scope.traceparent(candidate.cluster)
    if traceparent is not None:
        lines += header_lines([(names.TRACEPARENT, traceparent)])
    return start + request_end(lines, body_bytes)
