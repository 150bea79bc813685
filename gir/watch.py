"""What the router does while nobody asks it anything: sweeps, and follows changes of health.

One loop, so that there is one place where a change of health turns into log lines, counters and re-dispatch.
"""

from collections.abc import Callable

from gir.admit.waiting import WaitingRoom
from gir.clock import Clock
from gir.forward.dispatch import Dispatcher
from gir.health.events import EventKind, HealthEvent
from gir.health.registry import Registry
from gir.model.cluster import ClusterStatus, ClusterView
from gir.model.ids import ClusterId
from gir.pools import Pools
from gir.telemetry.logs import Logger
from gir.telemetry.metrics import RouterMetrics

LOOK_S = 0.1
"""Between two looks: the longest a change of health waits before waiting requests are moved."""
STALL_S = 0.5
"""A look this much too late means that the event loop stood still."""


class Watch:
    """Run `run()` as a background task; `look()` at once after an event that should not wait.

    `trials()` lets time act on canaries.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        registry: Registry,
        dispatcher: Dispatcher,
        waiting: WaitingRoom,
        trials: Callable[[], None],
        pools: Pools,
        metrics: RouterMetrics,
        log: Logger,
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._dispatcher = dispatcher
        self._waiting = waiting
        self._trials = trials
        self._pools = pools
        self._metrics = metrics
        self._log = log
        self._view: ClusterView | None = None
        self._lost: dict[ClusterId, str] = {}
        """Clusters that requests should leave, with what they became."""
        self._unreachable: tuple[ClusterId, ...] = ()

    async def run(self) -> None:
        """Look every `LOOK_S`, for ever."""
        while True:
            due_s = self._clock.monotonic_s() + LOOK_S
            await self._clock.sleep_s(LOOK_S)
            lag_s = self._clock.monotonic_s() - due_s
            self._metrics.loop_lag_s.one.set(lag_s)
            if lag_s > STALL_S:
                self._metrics.loop_stalls.one.inc()
                self._log.warning("event loop stood still", lag_s=round(lag_s, 3))
            self.look()
            await self._pools.forget(frozenset(state.id for state in self._registry.view.clusters))

    def look(self) -> None:
        """Sweep the registry and act on what has changed."""
        now_s = self._clock.monotonic_s()
        view = self._registry.reconcile(now_s)
        for event in self._registry.take_events():
            self._follow(event)
        self._trials()
        if view is not self._view:
            self._view = view
            unreachable = [state for state in view.clusters if state.unreachable]
            self._unreachable = tuple(state.id for state in unreachable)
            for state in unreachable:
                # After a goodbye, or under maintenance, what runs there is waited for; now that is in vain.
                self._lost.setdefault(state.id, "unreachable")
            self._waiting.look()
        if self._lost:
            self._move(view)
        for cluster in self._unreachable if not view.fail_open else ():
            ended = self._dispatcher.end_silent_streams(cluster)
            if ended:
                self._log.warning("silent streams ended", cluster=cluster, streams=ended)

    def _follow(self, event: HealthEvent) -> None:
        cluster = event.cluster or ""
        self._metrics.cluster_events.child(cluster, event.kind.value, event.after if event.kind in _NAMED else "").inc()
        level = self._log.info if event.kind is not EventKind.STATUS or _good(event.after) else self._log.warning
        level(
            "health",
            kind=event.kind.value,
            cluster=cluster,
            before=event.before,
            after=event.after,
            cause=event.cause.value,
            reason=event.reason,
        )
        if event.kind is EventKind.STATUS and event.cluster is not None:
            self._lost.pop(event.cluster, None)
            if event.redispatch:
                self._pools.purge(event.cluster)
                self._lost[event.cluster] = event.after

    def _move(self, view: ClusterView) -> None:
        """Have requests leave lost clusters: at each look, for some may go nowhere else yet, and a frozen host accepts
        connections, so that others begin to wait there after the verdict."""
        well = {state.id for state in view.clusters if _good(state.status.value)}
        self._lost = {cluster: became for cluster, became in self._lost.items() if cluster not in well}
        for cluster, became in self._lost.items():
            moved = self._dispatcher.give_up_waiting(cluster, f"cluster became {became}")
            if moved:
                self._log.info("waiting requests moved", cluster=cluster, requests=moved)


_NAMED = frozenset({EventKind.STATUS, EventKind.INTENT, EventKind.FAIL_OPEN})
"""Kinds whose new value is one of a few words, fit for a label; others say epochs, weights and durations."""


def _good(status: str) -> bool:
    return status in (ClusterStatus.HEALTHY.value, ClusterStatus.RAMPING.value)
