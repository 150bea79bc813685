"""The fleet as a request sees it: one immutable `ClusterView`, swapped as a whole by its only writer.

Numbers a cluster did not report are None ("unknown"). Unknown is neither idle nor saturated, and absent capacity
is zero, never infinite.
"""

import enum
from collections.abc import Mapping

import msgspec

from gir.model.ids import ClusterId, ModelId, RegionId, TierName


class ClusterStatus(enum.Enum):
    """What health says of a cluster. Manual states live beside it, in `Intent`."""

    UNKNOWN = "unknown"
    """Known from configuration or a lost stream; no good beat yet."""
    HEALTHY = "healthy"
    RAMPING = "ramping"
    """Back, or new, and carrying a growing share."""
    SUSPECT = "suspect"
    """No new work while others have room."""
    DEAD = "dead"


class Intent(enum.Enum):
    """What an operator wants of a cluster, independent of its health."""

    SERVE = "serve"
    DRAIN = "drain"
    """Finish what runs, take nothing new."""
    MAINTENANCE = "maintenance"
    """As drain; its beats and probes raise no alarms either."""


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """All pods serving one base model in one cluster: totals over the pool, never averages."""

    model: ModelId
    adapters_resident: frozenset[ModelId] = frozenset()
    adapters_loadable: frozenset[ModelId] = frozenset()
    """Adapters that some pod here could load on demand."""
    pods_ready: int = 0
    pods_warming: int = 0
    slots_total: int = 0
    """Requests the ready pods can run at once, in sum."""
    slots_free: int = 0
    running: int | None = None
    waiting: int | None = None
    """Requests queued in engines and at the agent's gate."""
    waiting_tokens: int | None = None
    """Prompt tokens of the waiting requests."""
    kv_tokens_total: int | None = None
    kv_tokens_used: int | None = None
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    service_rate_per_s: float | None = None
    """Requests completed each second, recently, while busy."""
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    error_rate: float | None = None
    """Share of recent requests that failed in the pods, 0 to 1; cautious where there were few."""
    context_tokens_max: int | None = None
    cards: Mapping[ModelId, str] = {}
    """JSON object of each name in the engines' own `/v1/models`, so that fields we do not know survive."""


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster at one moment."""

    id: ClusterId
    region: RegionId
    zone: str = ""
    tier: TierName
    price_per_slot_hour: float = 0.0
    """Currency units for one slot for one hour; only ratios matter."""
    url: str
    """Base URL of the cluster's data path, such as `https://a.example:8443`."""
    status: ClusterStatus = ClusterStatus.UNKNOWN
    intent: Intent = Intent.SERVE
    weight: float = 1.0
    """Share of its normal traffic it may get now, 0 to 1: ramp, pinned weight, back-pressure, age of its numbers.

    A SUSPECT cluster with weight above 0 is second choice: for when nobody else has room, or nobody else is left.
    """
    pressure: float = 1.0
    """The part of `weight` that is back-pressure. It shifts traffic to others and takes away no room: how many slots
    are free is for the beats to say."""
    pools: Mapping[ModelId, PoolState] = {}
    """Pools by base model."""
    rtt_s: float | None = None
    """Round trip between this router and the cluster, measured on the probe path."""
    beat_at_s: float | None = None
    """Monotonic receive time of the beat these numbers come from."""
    epoch: int = 0
    seq: int = 0
    backoff_until_s: float = 0.0
    """Monotonic time until which the cluster asked for less work (`Retry-After` of 429/503)."""
    refusing: Mapping[str, float] = {}
    """The same for single models: one may be full and the next idle."""
    unreachable: bool = False
    """Lost, and its data path answers no probes: what is silent there has ended."""
    probation: bool = False
    """Its breaker is half open: exactly one request may go, after `Registry.may_take`."""
    pools_ejected: frozenset[ModelId] = frozenset()
    """Base models whose pool fails here while others fare well: second choice for requests of those models."""
    pools_on_trial: frozenset[ModelId] = frozenset()
    """Base models whose pool is to prove itself: one request of such a model may go, after `Registry.may_take`."""
    reason: str = ""
    """Why status and weight are what they are, in one line."""
    labels: Mapping[str, str] = {}


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Every known cluster, published by the registry. `version` grows with each change."""

    version: int = 0
    clusters: tuple[ClusterState, ...] = ()
    by_model: Mapping[ModelId, tuple[ClusterState, ...]] = {}
    """Clusters that serve a base model or have (or can load) an adapter, whatever their health."""
    base_of: Mapping[ModelId, ModelId] = {}
    """Base model of each adapter seen; a base model maps to itself."""
    fail_open: bool = False
    """Every signal went stale at once: the observer is suspect, so health must not exclude anybody."""


def index_view(version: int, clusters: tuple[ClusterState, ...], *, fail_open: bool = False) -> ClusterView:
    """Build the view with its indexes from `clusters`."""
    by_model: dict[ModelId, list[ClusterState]] = {}
    base_of: dict[ModelId, ModelId] = {}
    for cluster in clusters:
        for pool in cluster.pools.values():
            base_of[pool.model] = pool.model
            for name in {pool.model, *pool.adapters_resident, *pool.adapters_loadable}:
                base_of.setdefault(name, pool.model)
                members = by_model.setdefault(name, [])
                if not members or members[-1] is not cluster:
                    members.append(cluster)
    return ClusterView(
        version=version,
        clusters=clusters,
        by_model={name: tuple(members) for name, members in by_model.items()},
        base_of=base_of,
        fail_open=fail_open,
    )
