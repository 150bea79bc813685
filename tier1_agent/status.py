"""What operators and Prometheus see of the agent: gauges brought up to date when somebody asks, and rows for the admin
port. Reads everything, changes nothing."""

from typing import Any

import msgspec
from aiohttp import web

from gir.clock import Clock
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId
from gir.telemetry.admin import json_response, only_looks
from gir.telemetry.metrics import AgentMetrics
from tier1_agent.capacity import Demand, pool_state
from tier1_agent.catalogue import Catalogue
from tier1_agent.explain import explain
from tier1_agent.fleet import Fleet
from tier1_agent.gate import Door
from tier1_agent.picker import PickRequest
from tier1_agent.pods import Pod, PodState
from tier1_agent.pool import Mode, Pool
from tier1_agent.record import Recorder

_STATES = {
    PodState.READY: "ready",
    PodState.WARMING: "warming",
    PodState.STALE: "stale",
    PodState.BARRED: "down",
    PodState.GONE: "draining",
}
_SIGNALS = ("waiting", "running", "kv_cache", "kv_capacity", "dialect")


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /admin/explain."""

    model: str
    prompt_tokens: float = 1_000.0
    session: str | None = None


class Status:
    """Views of one agent."""

    def __init__(
        self, fleet: Fleet, door: Door, recorder: Recorder, catalogue: Catalogue, metrics: AgentMetrics, clock: Clock
    ) -> None:
        self._fleet = fleet
        self._door = door
        self._recorder = recorder
        self._catalogue = catalogue
        self._metrics = metrics
        self._clock = clock
        self._shown: set[str] = set()
        """Pods that have gauges, so that those of pods that left can be taken down."""

    def demand_of(self, pool: Pool) -> Demand:
        """What the beat says of a pool beyond its pods."""
        recent = self._recorder.recent(pool.model)
        return Demand(recent=recent, waiting=self._door.waiting(pool), cards=self._catalogue.of_pool(pool))

    # Gauges.

    def refresh_gauges(self) -> None:
        """Bring every gauge up to date."""
        metrics, now_s = self._metrics, self._clock.monotonic_s()
        pods = {str(pod.spec.id): pod for pod in self._fleet.pods()}
        for gone in self._shown - pods.keys():
            for family in (metrics.pod_up, metrics.pod_requests, metrics.pod_kv, metrics.pod_adapters):
                family.remove_where("pod", gone)
            for family in (metrics.pod_service_rate, metrics.pod_scrape_age_s, metrics.signal_missing):
                family.remove_where("pod", gone)
        self._shown = set(pods)
        for pod in pods.values():
            self._show_pod(pod, now_s)
        for pool in self._fleet.pools.values():
            self._show_pool(pool, now_s)
        for mode in Mode:
            metrics.picker_mode.child(mode.value).set(
                sum(p.mode is mode for p in self._fleet.pools.values() if p.present)
            )
        metrics.prefix_blocks.one.set(sum(pool.index.entries for pool in self._fleet.pools.values()))

    def _show_pod(self, pod: Pod, now_s: float) -> None:
        metrics, id_, signals = self._metrics, pod.spec.id, pod.signals
        metrics.pod_up.child(id_, pod.spec.model).set(pod.state is PodState.READY)
        metrics.pod_requests.child(id_, "in_flight").set(pod.in_flight)
        metrics.pod_adapters.child(id_).set(len(pod.adapters_seen.keys() | pod.adapters_listed))
        if pod.heard_at_s > float("-inf"):
            metrics.pod_scrape_age_s.child(id_).set(now_s - pod.heard_at_s)
        pool = self._fleet.pools[pod.spec.model]
        if pod.token_gap_s.value is not None:
            metrics.pod_service_rate.child(id_).set(pod.slots / pool.traffic.hold_s(pod))
        if signals is None:
            return
        for name, value in (("running", signals.running), ("waiting", signals.waiting)):
            if value is not None:
                metrics.pod_requests.child(id_, name).set(value)
        if signals.kv_usage is not None:
            metrics.pod_kv.child(id_).set(signals.kv_usage)
        for name in _SIGNALS:
            metrics.signal_missing.child(id_, name).set(name in signals.missing)

    def _show_pool(self, pool: Pool, now_s: float) -> None:
        metrics, model = self._metrics, pool.model
        for state, word in _STATES.items():
            metrics.pods.child(model, word).set(sum(pod.state is state for pod in pool.pods))
        totals = pool_state(pool, self.demand_of(pool), now_s)
        metrics.pool_slots.child(model, "total").set(totals.slots_total)
        metrics.pool_slots.child(model, "free").set(totals.slots_free)
        metrics.gate_waiting.child(model).set(self._door.waiting(pool))

    # Rows.

    def rows(self) -> list[dict[str, Any]]:
        """One row for each pod."""
        now_s = self._clock.monotonic_s()
        return [self._row(pod, now_s) for pod in self._fleet.pods()]

    def _row(self, pod: Pod, now_s: float) -> dict[str, Any]:
        signals, pool = pod.signals, self._fleet.pools[pod.spec.model]
        return {
            "pod": pod.spec.id,
            "url": pod.spec.url,
            "model": pod.spec.model,
            "labels": pod.spec.labels,
            "state": pod.state.value,
            "incarnation": pod.incarnation,
            "slots": pod.slots,
            "in_flight": pod.in_flight,
            "dialect": signals.dialect if signals is not None else None,
            "running": signals.running if signals is not None else None,
            "waiting": signals.waiting if signals is not None else None,
            "kv_usage": signals.kv_usage if signals is not None else None,
            "kv_tokens_total": signals.kv_tokens_total if signals is not None else None,
            "signals_missing": signals.missing if signals is not None else (),
            "scrape_age_s": round(now_s - pod.heard_at_s, 3) if pod.heard_at_s > float("-inf") else None,
            "prefill_tokens_per_s": round(1.0 / pod.prefill.per_token_s, 1) if pod.prefill.per_token_s else None,
            "output_token_s": pod.token_gap_s.value,
            "ramp": pod.ramp(now_s, pool.settings.ramp_s),
            "adapters": sorted(pod.adapters_seen.keys() | pod.adapters_listed),
            "prefix_blocks": pool.index.blocks(pod.bit),
            "mode": pool.mode.value,
        }

    def mount(self, app: web.Application) -> None:
        """Add the agent's own routes to the admin application."""

        async def pods(_: web.Request) -> web.Response:
            return json_response({"pods": self.rows(), "warnings": self._fleet.warnings()})

        @only_looks
        async def explained(request: web.Request) -> web.Response:
            return json_response(self.explain(await request.read()))

        app.router.add_get("/admin/pods", pods)
        app.router.add_post("/admin/explain", explained)

    def explain(self, body: bytes) -> dict[str, Any]:
        """Where a request described by `body` would go, and why; raises RequestError."""
        try:
            question = msgspec.json.decode(body, type=_Question)
        except msgspec.MsgspecError as error:
            raise RequestError(
                ErrorKind.BAD_REQUEST, f"{error}; send model, and perhaps prompt_tokens and session"
            ) from None
        found = self._fleet.find(question.model)
        if found is None:
            raise RequestError(ErrorKind.MODEL_NOT_FOUND, f"model {question.model[:80]!r} is not served", param="model")
        pool, adapter = found
        session = question.session.encode() if question.session is not None else None
        request = PickRequest(tokens=question.prompt_tokens, adapter=adapter, session=session)
        ranked = explain(pool, request, self._clock.monotonic_s())
        return {"model": ModelId(question.model), "mode": pool.mode.value, "pods": ranked}
