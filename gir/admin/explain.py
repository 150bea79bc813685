"""`POST /admin/explain` and `/admin/decisions`: where a request would go, where one went, and why."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from aiohttp import web

from gir.clock import Clock
from gir.model.cluster import ClusterView
from gir.model.decision import Placement
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ClusterId, ModelId, RegionId, RequestId, TenantId
from gir.model.policy import PolicySnapshot, TenantPolicy
from gir.model.prefix import BYTES_PER_TOKEN, CLUSTER_BLOCK_BYTES, prefix_hashes
from gir.model.request import Api, Criticality, InferenceRequest, Principal
from gir.place import Placer, Rewriter, as_json
from gir.place.explain import render
from gir.telemetry.admin import json_response, only_looks
from gir.wire.openai import COUNT_MAX, MODEL_CHARS_MAX, api_of, peek
from gir.wire.refusals import refuse_model

_CLASSES = {each.label: each for each in Criticality}
_LISTED = 100
_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class ExplainAsk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request to explain: either a real body, as text, or just the figures that matter."""

    model: str | None = None
    body: str | None = None
    """Request body exactly as a client would send it, for its model, prompt prefix and session."""
    path: str = "/v1/chat/completions"
    prompt_tokens: _Count | None = None
    output_tokens_max: _Count | None = None
    tenant: str = "default"
    key_id: str = "explain"
    criticality: str | None = None
    session: str | None = None
    regions: list[str] | None = None
    """Regions the credential allows; None allows all."""
    cluster: str | None = None
    """Pin, as `x-gir-cluster-pin` would."""
    tried: list[str] = []
    """Clusters already tried: where would the retry go?"""
    headers: dict[str, str] = {}
    """For rules that match headers, and `x-gir-canary`."""
    trusted: bool = False
    draw: float | None = None
    """Number in [0, 1) to draw with; a fresh one when left out."""


class ExplainApi:
    """Handlers over the placer and rewriter in use. Nothing is sent, counted or remembered."""

    __slots__ = ("_clock", "_limits", "_placer", "_policy", "_rewriter", "_view")

    def __init__(
        self,
        placer: Placer,
        rewriter: Rewriter,
        clock: Clock,
        *,
        view: Callable[[], ClusterView],
        policy: Callable[[], PolicySnapshot],
        limits: Callable[[InferenceRequest], list[dict[str, object]]] = lambda _: [],
    ) -> None:
        self._placer = placer
        self._rewriter = rewriter
        self._clock = clock
        self._view = view
        self._policy = policy
        self._limits = limits

    def routes(self) -> list[web.RouteDef]:
        """Routes to add to the admin application."""
        return [
            web.post("/admin/explain", self.explain),
            web.get("/admin/decisions", self.latest),
            web.get("/admin/decisions/{request_id}", self.decision),
            web.get("/admin/placement", self.status),
        ]

    @only_looks
    async def explain(self, request: web.Request) -> web.Response:
        """Decide for a described request, tell everything, change nothing."""
        try:
            ask = msgspec.json.decode(await request.read() or b"{}", type=ExplainAsk)
        except msgspec.DecodeError as error:
            raise RequestError(ErrorKind.BAD_REQUEST, f"explain: {error}") from None
        return json_response(self.answer(ask))

    def answer(self, ask: ExplainAsk) -> Mapping[str, Any]:
        """The explanation of `ask`. Raises RequestError naming the field that is wrong."""
        policy, view = self._policy(), self._view()
        now_s = self._clock.monotonic_s()
        asked, principal = self._asked(ask, policy)
        headers = [(name.lower().encode(), value.encode()) for name, value in ask.headers.items()]
        rewrite = self._rewriter.rewrite(
            asked.model_asked,
            headers,
            principal,
            asked.session_key,
            policy,
            view,
            now_s,
            criticality=asked.criticality,
            explain=True,
        )
        model = ModelId(rewrite.model)
        prompt = _prompt(ask)
        rewritten = msgspec.structs.replace(
            asked, model=model, prefix_hashes=prefix_hashes(model, prompt, block_bytes=CLUSTER_BLOCK_BYTES)
        )
        placement = self._placer.plan(
            rewritten,
            view,
            policy,
            now_s=now_s,
            draw=self._clock.random.random() if ask.draw is None else ask.draw,
            tried=frozenset(ClusterId(name) for name in ask.tried),
            explain=True,
            canary=rewrite.note,
        )
        own = _tenant(ask, policy)
        if own is not None and own.models is not None and not {model, asked.model_asked} & set(own.models):
            placement = _forbidden(placement, f"tenant '{own.id}' may not use model '{asked.model_asked}'")
        limits, told = self._limits(rewritten), _told(placement)
        text = told["text"] + "".join(["\nlimits\n", *map(_limit_line, limits)] if limits else [])
        return {"model_asked": asked.model_asked, **told, "limits": limits, "text": text}

    async def latest(self, request: web.Request) -> web.Response:
        """Ids of the newest decisions."""
        limit = request.query.get("limit", str(_LISTED))
        if not limit.isdigit() or not int(limit):
            raise RequestError(ErrorKind.BAD_REQUEST, f"limit is '{limit[:20]}'; use a whole number from 1 up")
        return json_response({"request_ids": self._placer.decisions.latest(int(limit))})

    async def decision(self, request: web.Request) -> web.Response:
        """Every placement made for one request, in order: the first, and one for each retry."""
        name = request.match_info["request_id"]
        told = self._placer.decisions.of(name)
        if not told:
            kept = self._placer.decisions.decisions_max
            raise RequestError(
                ErrorKind.NOT_FOUND,
                f"no decision for request '{name[:80]}': this replica keeps its last {kept} decisions",
            )
        return json_response({"request_id": name, "decisions": [_told(placement) for placement in told]})

    async def status(self, _: web.Request) -> web.Response:
        """What this replica remembers: own work by cluster, affinity and how far it is believed."""
        return json_response(self._placer.status())

    def _asked(self, ask: ExplainAsk, policy: PolicySnapshot) -> tuple[InferenceRequest, Principal]:
        api = api_of(ask.path) or Api.OTHER
        seen = peek(api, ask.body.encode()) if ask.body is not None else None
        model = ask.model or (seen.model if seen is not None else None)
        if not model:
            raise RequestError(ErrorKind.BAD_REQUEST, "explain: give a model, or a body that names one", param="model")
        if len(model) > MODEL_CHARS_MAX or not model.isprintable():
            refuse_model(model, MODEL_CHARS_MAX)
        if ask.draw is not None and not 0.0 <= ask.draw < 1.0:
            raise RequestError(ErrorKind.BAD_REQUEST, f"draw is {ask.draw}; use a number in [0, 1)", param="draw")
        own = _tenant(ask, policy)
        principal = Principal(
            tenant=TenantId(ask.tenant),
            key_id=ask.key_id,
            regions_allowed=None if ask.regions is None else frozenset(RegionId(name) for name in ask.regions),
            trusted=ask.trusted or (own is not None and own.trusted),
        )
        tokens = ask.prompt_tokens
        if tokens is None:
            tokens = int(len(seen.prompt) / BYTES_PER_TOKEN) if seen is not None else 0
        request = InferenceRequest(
            request_id=RequestId("explain"),
            api=api,
            path=ask.path,
            model=ModelId(model),
            model_asked=ModelId(model),
            principal=principal,
            criticality=_criticality(ask, policy),
            prompt_tokens_estimate=tokens,
            output_tokens_max=ask.output_tokens_max or (seen.output_tokens_max if seen is not None else None),
            session_key=ask.session or (seen.session_key if seen is not None else None),
            cluster_pinned=ask.cluster,
        )
        return request, principal


def _prompt(ask: ExplainAsk) -> bytes | memoryview:
    if ask.body is None:
        return b""
    return peek(api_of(ask.path) or Api.OTHER, ask.body.encode()).prompt


def _tenant(ask: ExplainAsk, policy: PolicySnapshot) -> TenantPolicy | None:
    return next((tenant for tenant in policy.tenants if tenant.id == ask.tenant), None)


def _forbidden(placement: Placement, reason: str) -> Placement:
    """What comes of it when the request is refused before it is placed."""
    return msgspec.structs.replace(
        placement, ranked=(), removed=(), tiers=(), notes=(), reason=reason, forbidden=True, model_known=True
    )


def _criticality(ask: ExplainAsk, policy: PolicySnapshot) -> Criticality:
    own = _tenant(ask, policy)
    name = ask.criticality or (own.criticality_default if own is not None else Criticality.STANDARD.label)
    try:
        wanted = _CLASSES[name]
    except KeyError:
        raise RequestError(
            ErrorKind.BAD_REQUEST,
            f"criticality is '{name[:40]}'; use one of {', '.join(_CLASSES)}",
            param="criticality",
        ) from None
    return wanted if own is None else min(wanted, _CLASSES.get(own.criticality_max, wanted))


def _limit_line(row: Mapping[str, object]) -> str:
    verdict = "" if row["room"] else ": refused"
    return (
        f"  {row['counter']}  {row['left']} of {row['of']} {row['kind']} left, this asks for {row['asks']}{verdict}\n"
    )


def _told(placement: Placement) -> dict[str, Any]:
    return {"placement": as_json(placement), "text": render(placement)}
