"""The active prober: asks every cluster over the data path whether it is alive, and lets silence be heard.

Beats tell what an agent thinks of its cluster over a path no request takes; a probe takes the path requests take. It is
the one detector that sees a frozen cluster within seconds, because a stopped process still accepts connections: only
the deadline on the answer, which covers connecting, TLS and reading together, can fire.

Most probes reuse a connection, as most requests do, so they measure the round trip and find poisoned connections. Every
`FRESH_EVERY`-th one, and every one after a failure, opens a new one, which finds a listener that no longer accepts.
"""

import asyncio

from gir.clock import Clock
from gir.health.registry import Registry
from gir.model.cluster import ClusterState
from gir.model.ids import ClusterId
from gir.net.errors import UpstreamError
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.tls import ClientTls
from gir.net.upstream import CallDeadlines
from gir.tasks import TaskSet
from gir.telemetry.metrics import RouterMetrics

PATH = "/healthz"
FRESH_EVERY = 10
ANSWER_BYTES_MAX = 65_536


class Target:
    """One cluster being probed: its URL, its own connections and the task that asks."""

    __slots__ = ("asked", "cluster", "head", "pool", "task", "url")

    def __init__(self, cluster: ClusterId, url: str, pool: UpstreamPool) -> None:
        self.cluster = cluster
        self.url = url
        self.pool = pool
        self.asked = 0
        target = f"{pool.endpoint.base_path}{PATH}".encode()
        self.head = request_head("GET", target, pool.endpoint.authority, [], 0)
        self.task: asyncio.Task[None] | None = None


class Prober:
    """Feeds `registry.probe`. `run` never returns; cancel its task and `close`.

    `tls` is the router's client side of the data path, for clusters whose URL is https; `metrics` counts verdicts.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        clock: Clock,
        tasks: TaskSet,
        tls: ClientTls | None = None,
        metrics: RouterMetrics | None = None,
    ) -> None:
        self._metrics = metrics
        self._registry = registry
        self._clock = clock
        self._tasks = tasks
        self._tls = tls
        self._targets: dict[ClusterId, Target] = {}

    def __repr__(self) -> str:
        return f"<Prober of {', '.join(sorted(self._targets)) or 'nobody'}>"

    async def run(self) -> None:
        """Sweep the registry and keep one asking task for each cluster of its view."""
        while True:
            view = self._registry.reconcile(self._clock.monotonic_s())
            await self._follow(view.clusters if self._registry.policy.probe else ())
            await self._clock.sleep_s(self._registry.policy.sweep_interval_s)

    async def close(self) -> None:
        """Stop asking and close every connection."""
        await self._follow(())

    async def _follow(self, clusters: tuple[ClusterState, ...]) -> None:
        """Probe `clusters` at their present URLs and nobody else."""
        wanted = {state.id: state.url for state in clusters}
        for cluster, target in list(self._targets.items()):
            if wanted.get(cluster) != target.url:
                del self._targets[cluster]
                if target.task is not None:
                    target.task.cancel()
                await target.pool.close()
        for cluster, url in wanted.items():
            if cluster not in self._targets:
                limits = PoolLimits(connections_max=4, connect_s=self._registry.policy.probe_timeout_s)
                pool = UpstreamPool(Endpoint.parse(url), limits, clock=self._clock, tls=self._tls)
                target = self._targets[cluster] = Target(cluster, url, pool)
                target.task = self._tasks.spawn(self._ask_for_ever(target), name=f"probe {cluster}")

    async def _ask_for_ever(self, target: Target) -> None:
        # A random start spreads the probes of a fleet over the interval.
        await self._clock.sleep_s(self._clock.random.random() * self._registry.policy.probe_interval_s)
        due_s = self._clock.monotonic_s()
        while True:
            await self._ask(target)
            now_s = self._clock.monotonic_s()
            # After a pause of this process, go on from now: a volley of late probes would prove nothing.
            due_s = max(due_s + self._registry.policy.probe_interval_s, now_s)
            await self._clock.sleep_s(due_s - now_s)

    async def _ask(self, target: Target) -> None:
        """One probe, from question to verdict."""
        if target.asked % FRESH_EVERY == 0:
            target.pool.purge_idle()
        target.asked += 1
        started_s = self._clock.monotonic_s()
        timeout_s = self._registry.policy.probe_timeout_s
        ok = refused = False
        rtt_s: float | None = None
        try:
            async with asyncio.timeout(timeout_s):
                call = await target.pool.send(
                    target.head, b"", deadlines=CallDeadlines(timeout_s, timeout_s, timeout_s, started_s + timeout_s)
                )
                sent_s = self._clock.monotonic_s()
                status = (await call.head()).status
                rtt_s = self._clock.monotonic_s() - sent_s
                await call.read_all(ANSWER_BYTES_MAX)
                ok = 200 <= status < 300
        except TimeoutError:
            pass
        except UpstreamError as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
        if not ok:
            target.pool.purge_idle()
            target.asked = 0
        if self._metrics is not None:
            self._metrics.probes.child(target.cluster, "ok" if ok else "refused" if refused else "missed").inc()
        self._registry.probe(target.cluster, ok, rtt_s, self._clock.monotonic_s(), refused=refused, started_s=started_s)
