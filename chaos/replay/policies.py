"""Ways to choose a cluster: GIR's placement, and the baselines it is compared with.

Every policy sees the same: beats as they arrive, its own requests as they come and go, and the round trip to each
cluster. The baselines count their own unseen dispatches exactly as GIR does, so none is handicapped by stale beats.
"""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from chaos.replay.cluster import MODEL, ClusterSpec, Heard
from chaos.replay.traces import Arrival
from gir.model.cluster import ClusterState, ClusterStatus, ClusterView, Intent, PoolState, index_view
from gir.model.ids import ClusterId, RegionId, RequestId, TenantId, TierName
from gir.model.policy import PolicySnapshot
from gir.model.request import Api, Criticality, InferenceRequest, Principal, Usage
from gir.place import Dispatch, Placer
from gir.place.affinity import AffinityIndex
from gir.place.loads import Dispatch as Load
from gir.place.loads import Ledger

_PRINCIPAL = Principal(tenant=TenantId("replay"), key_id="replay")


class Policy(Protocol):
    """One router's way to choose. Clusters are positions in the fleet's list."""

    name: str

    def choose(self, arrival: Arrival, now_s: float) -> int:
        """Cluster for `arrival`; counted as sent there at once."""

    def heard(self, cluster: int, heard: Heard, now_s: float) -> None:
        """Its first or last token passes the router at `now_s`."""

    def beat(self, cluster: int, state: PoolState, now_s: float) -> None:
        """A beat arrives."""


Build = Callable[[Sequence[ClusterSpec], Sequence[float], int], Policy]
"""From the fleet, the round trip to each cluster and a seed."""


class Gir:
    """The router's own `Placer`, fed as the router feeds it."""

    def __init__(
        self,
        specs: Sequence[ClusterSpec],
        rtt_s: Sequence[float],
        seed: int,
        policy: PolicySnapshot,
        criticality: Criticality = Criticality.STANDARD,
        name: str = "gir",
    ) -> None:
        self.name = name
        self.placer = Placer(decisions_max=1)
        self.reasons: dict[str, int] = {}
        self._policy = policy
        self._criticality = criticality
        self._draw = random.Random(seed)
        self._places = {spec.id: place for place, spec in enumerate(specs)}
        self._specs = specs
        self._said = {each.id: each for each in policy.clusters}
        self._rtt_s = rtt_s
        self._version = 0
        self._states: list[ClusterState] = [self._state(place, None, 0.0) for place in range(len(specs))]
        self._view = ClusterView()
        self._sent: dict[int, Dispatch] = {}

    def choose(self, arrival: Arrival, now_s: float) -> int:
        request = InferenceRequest(
            request_id=RequestId(str(arrival.id)),
            api=Api.CHAT,
            path="/v1/chat/completions",
            model=MODEL,
            model_asked=MODEL,
            principal=_PRINCIPAL,
            criticality=self._criticality,
            stream=True,
            prompt_tokens_estimate=arrival.prompt_tokens,
            prefix_hashes=arrival.hashes,
            arrived_s=now_s,
        )
        placement = self.placer.plan(request, self._view, self._policy, now_s=now_s, draw=self._draw.random())
        if not placement.ranked:
            raise ValueError(f"it leaves request {arrival.id} without a cluster: {placement.reason}")
        name = placement.ranked[0].cluster
        self.reasons[placement.reason] = self.reasons.get(placement.reason, 0) + 1
        self._sent[arrival.id] = self.placer.dispatched(request, name, now_s)
        return self._places[name]

    def heard(self, cluster: int, heard: Heard, now_s: float) -> None:  # noqa: ARG002 (one shape for all policies)
        dispatch = self._sent[heard.arrival.id]
        if heard.first:
            self.placer.first_token(dispatch, now_s)
        if heard.finished:
            usage = Usage(
                prompt_tokens=heard.arrival.prompt_tokens,
                completion_tokens=heard.arrival.output_tokens,
                cached_tokens=heard.cached_tokens,
            )
            self.placer.finished(self._sent.pop(heard.arrival.id), now_s=now_s, usage=usage, ok=True)

    def beat(self, cluster: int, state: PoolState, now_s: float) -> None:
        self._version += 1
        self._states[cluster] = self._state(cluster, state, now_s)
        self._view = index_view(self._version, tuple(self._states))

    def _state(self, place: int, pool: PoolState | None, now_s: float) -> ClusterState:
        spec = self._specs[place]
        said = self._said.get(ClusterId(spec.id))
        return ClusterState(
            id=ClusterId(spec.id),
            intent=Intent.SERVE if said is None else Intent(said.intent),
            weight=1.0 if said is None else said.weight,
            region=RegionId(spec.region),
            tier=TierName(spec.tier),
            price_per_slot_hour=spec.price_per_slot_hour,
            url=f"http://{spec.id}.test",
            status=ClusterStatus.HEALTHY,
            pools={MODEL: pool} if pool is not None else {},
            rtt_s=self._rtt_s[place],
            beat_at_s=now_s,
            seq=self._version,
        )


class _Counting:
    """Last beats and own unseen requests, for the baselines."""

    name = "counting"

    def __init__(self, specs: Sequence[ClusterSpec], rtt_s: Sequence[float], seed: int) -> None:
        self._rtt_s = rtt_s
        self._slots = [sum(config.slots_max for config in spec.pods) for spec in specs]
        self._beats: list[PoolState | None] = [None] * len(specs)
        self._ledgers = [Ledger() for _ in specs]
        self._sent: dict[int, Load] = {}
        self._draw = random.Random(seed)

    def heard(self, cluster: int, heard: Heard, now_s: float) -> None:
        ledger = self._ledgers[cluster]
        if heard.first:
            ledger.first_token(self._sent[heard.arrival.id])
        if heard.finished:
            ledger.finish(self._sent.pop(heard.arrival.id), now_s)

    def beat(self, cluster: int, state: PoolState, now_s: float) -> None:
        self._beats[cluster] = state
        self._ledgers[cluster].reconcile(now_s, self._rtt_s[cluster], 0.0, 0.0)

    def _send(self, cluster: int, arrival: Arrival, now_s: float) -> int:
        load = Load(
            cluster=ClusterId(str(cluster)),
            model=MODEL,
            ledger=self._ledgers[cluster],
            at_s=now_s,
            prompt_tokens=arrival.prompt_tokens,
            cached_tokens=0.0,
            stream=True,
        )
        self._ledgers[cluster].add(load)
        self._sent[arrival.id] = load
        return cluster

    def _load(self, cluster: int) -> float:
        """Requests there for each slot, own unseen ones included."""
        beat = self._beats[cluster]
        known = (beat.running or 0) + (beat.waiting or 0) if beat is not None else 0
        return (known + self._ledgers[cluster].delta) / self._slots[cluster]

    def _least(self, clusters: Sequence[int]) -> int:
        loads = [self._load(cluster) for cluster in clusters]
        best = min(loads)
        return self._draw.choice([cluster for cluster, load in zip(clusters, loads, strict=True) if load == best])


class RegionLocal(_Counting):
    """Every conversation is served in its home Region (over a tier 1 that goes round robin)."""

    name = "region_local_round_robin"

    def choose(self, arrival: Arrival, now_s: float) -> int:
        return self._send(arrival.home % len(self._slots), arrival, now_s)


class LeastLoad(_Counting):
    """The cluster with the fewest requests for each slot; ties by lot."""

    name = "least_load"

    def choose(self, arrival: Arrival, now_s: float) -> int:
        return self._send(self._least(range(len(self._slots))), arrival, now_s)


class PrefixOnly(_Counting):
    """The cluster that was sent the longest prefix of this prompt; with too little in common, the least loaded.

    The threshold keeps a system prompt that everybody shares from drawing everybody to one cluster, as the routers
    that place by prefix have it.
    """

    name = "prefix_only"

    def __init__(
        self, specs: Sequence[ClusterSpec], rtt_s: Sequence[float], seed: int, match_share_min: float = 0.3
    ) -> None:
        super().__init__(specs, rtt_s, seed)
        self._index = AffinityIndex(200_000)
        self._match_share_min = match_share_min

    def choose(self, arrival: Arrival, now_s: float) -> int:
        matched = self._index.match(arrival.hashes)
        deepest = max(matched.values(), default=0)
        enough = deepest and deepest >= self._match_share_min * len(arrival.hashes)
        holders = [int(name) for name, depth in matched.items() if depth == deepest] if enough else []
        cluster = self._least(holders or range(len(self._slots)))
        self._index.learn(ClusterId(str(cluster)), arrival.hashes)
        return self._send(cluster, arrival, now_s)
