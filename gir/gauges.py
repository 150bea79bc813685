"""Gauges of the router, brought up to date when somebody scrapes: they show state that lives elsewhere."""

from collections.abc import Callable

from gir.admit.limits import Limiter
from gir.admit.waiting import WaitingRoom
from gir.clock import Clock
from gir.forward.dispatch import Dispatcher
from gir.health.registry import Registry
from gir.model.cluster import ClusterState, ClusterStatus, PoolState
from gir.model.policy import PolicySnapshot
from gir.net.server import HttpServer
from gir.pools import Pools
from gir.telemetry.metrics import RouterMetrics


class Gauges:
    """`refresh()` before each scrape."""

    def __init__(
        self,
        metrics: RouterMetrics,
        *,
        clock: Clock,
        registry: Registry,
        dispatcher: Dispatcher,
        waiting: WaitingRoom,
        limiter: Limiter,
        pools: Pools,
        server: HttpServer,
        policy: Callable[[], PolicySnapshot],
        ready: Callable[[], bool],
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._registry = registry
        self._dispatcher = dispatcher
        self._waiting = waiting
        self._limiter = limiter
        self._pools = pools
        self._server = server
        self._policy = policy
        self._ready = ready
        self._shown: set[str] = set()

    def refresh(self) -> None:
        """Read everything once."""
        metrics = self._metrics
        metrics.ready.one.set(float(self._ready()))
        metrics.in_flight.one.set(self._dispatcher.budget.active)
        metrics.connections.one.set(self._server.connections_open)
        metrics.policy_version.one.set(self._policy().version)
        metrics.fail_open.one.set(float(self._registry.view.fail_open))
        metrics.limit_degraded.one.set(float(not self._limiter.store_up))
        metrics.queued_bytes.one.set(self._waiting.flow.waiting_bytes)
        for criticality, count in self._waiting.flow.counts().items():
            metrics.queued.child(criticality.label).set(count)
        for cluster, pool in self._pools.items():
            metrics.upstream_connections.child(cluster, "active").set(pool.active)
            metrics.upstream_connections.child(cluster, "idle").set(pool.idle)
        self._clusters()

    def _clusters(self) -> None:
        now_s = self._clock.monotonic_s()
        view = self._registry.view
        for gone in self._shown - {state.id for state in view.clusters}:
            self._forget(gone)
        self._shown = {str(state.id) for state in view.clusters}
        demand: dict[str, float] = {}
        for state in view.clusters:
            self._cluster(state, now_s)
            for pool in state.pools.values():
                self._pool(state, pool)
                demand[pool.model] = demand.get(pool.model, 0.0) + (pool.running or 0) + (pool.waiting or 0)
        for model, slots in demand.items():
            self._metrics.demand.child(model).set(slots + self._waiting.flow.waiting)

    def _cluster(self, state: ClusterState, now_s: float) -> None:
        metrics, name = self._metrics, state.id
        for status in ClusterStatus:
            metrics.cluster_status.child(name, status.value).set(float(state.status is status))
        metrics.cluster_weight.child(name).set(state.weight)
        if state.rtt_s is not None:
            metrics.cluster_rtt_s.child(name).set(state.rtt_s)
        if state.beat_at_s is not None:
            metrics.cluster_beat_age_s.child(name).set(now_s - state.beat_at_s)

    def _pool(self, state: ClusterState, pool: PoolState) -> None:
        metrics, name, model = self._metrics, state.id, pool.model
        metrics.pool_pods.child(name, model, "ready").set(pool.pods_ready)
        metrics.pool_pods.child(name, model, "warming").set(pool.pods_warming)
        metrics.pool_slots.child(name, model, "total").set(pool.slots_total)
        metrics.pool_slots.child(name, model, "free").set(pool.slots_free)
        metrics.pool_adapters.child(name, model).set(len(pool.adapters_resident))
        if pool.running is not None:
            metrics.pool_requests.child(name, model, "running").set(pool.running)
        if pool.waiting is not None:
            metrics.pool_requests.child(name, model, "waiting").set(pool.waiting)
        if pool.kv_tokens_total and pool.kv_tokens_used is not None:
            metrics.pool_kv.child(name, model).set(pool.kv_tokens_used / pool.kv_tokens_total)
        if pool.error_rate is not None:
            metrics.pool_error_rate.child(name, model).set(pool.error_rate)
        for quantile, ttft_s in (("0.5", pool.ttft_p50_s), ("0.95", pool.ttft_p95_s)):
            if ttft_s is not None:
                metrics.pool_ttft_s.child(name, model, quantile).set(ttft_s)

    def _forget(self, cluster: str) -> None:
        metrics = self._metrics
        for family in (
            metrics.cluster_status,
            metrics.cluster_weight,
            metrics.cluster_rtt_s,
            metrics.cluster_beat_age_s,
            metrics.upstream_connections,
            metrics.pool_pods,
            metrics.pool_slots,
            metrics.pool_requests,
            metrics.pool_kv,
            metrics.pool_ttft_s,
            metrics.pool_error_rate,
            metrics.pool_adapters,
        ):
            family.remove_where("cluster", cluster)
