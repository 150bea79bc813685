"""One connection pool for each cluster's data path, made when first needed and closed when the cluster has moved."""

from collections.abc import Callable

from gir.clock import Clock
from gir.model.decision import Candidate
from gir.model.ids import ClusterId
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.tls import ClientTls


class Pools:
    """`tls_for(cluster)` gives the client TLS settings of a cluster, None for the defaults."""

    def __init__(
        self, clock: Clock, limits: Callable[[], PoolLimits], tls_for: Callable[[str], ClientTls | None]
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._tls_for = tls_for
        self._pools: dict[ClusterId, tuple[str, UpstreamPool]] = {}
        self._leaving: list[UpstreamPool] = []

    def __repr__(self) -> str:
        return f"<Pools {', '.join(repr(pool) for _, pool in self._pools.values())}>"

    def __call__(self, candidate: Candidate) -> UpstreamPool:
        """The pool to `candidate`; a cluster that reports another URL gets another pool."""
        known = self._pools.get(candidate.cluster)
        if known is not None and known[0] == candidate.url:
            return known[1]
        if known is not None:
            known[1].purge_idle()
            self._leaving.append(known[1])
        pool = UpstreamPool(
            Endpoint.parse(candidate.url), self._limits(), clock=self._clock, tls=self._tls_for(candidate.cluster)
        )
        self._pools[candidate.cluster] = (candidate.url, pool)
        return pool

    def items(self) -> list[tuple[ClusterId, UpstreamPool]]:
        """Every pool in use, by cluster."""
        return [(cluster, pool) for cluster, (_, pool) in self._pools.items()]

    def purge(self, cluster: ClusterId) -> int:
        """Close idle connections to a cluster that proved dead; returns how many."""
        known = self._pools.get(cluster)
        return known[1].purge_idle() if known is not None else 0

    async def forget(self, live: frozenset[ClusterId]) -> None:
        """Close the pools of clusters not in `live`, and old pools that have become idle."""
        for cluster in [cluster for cluster in self._pools if cluster not in live]:
            self._leaving.append(self._pools.pop(cluster)[1])
        for pool in [pool for pool in self._leaving if not pool.active]:
            self._leaving.remove(pool)
            await pool.close()

    async def close(self) -> None:
        """Close everything; calls in progress fail."""
        for pool in [pool for _, pool in self._pools.values()] + self._leaving:
            await pool.close()
        self._pools.clear()
        self._leaving.clear()
