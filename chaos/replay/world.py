"""The event loop: arrivals, routers, the way to the clusters and back, beats. Virtual time, seeded, deterministic."""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from chaos.replay.cluster import Cluster, ClusterSpec, Heard
from chaos.replay.policies import Build, Policy
from chaos.replay.traces import Arrival
from gir.model.cluster import PoolState
from tier1_agent.scorers import Preset

BEAT_S = 2.0
SCRAPE_S = 0.5
WARM_UP_S = 3.0
"""Arrivals begin this late: by then every router has heard every cluster once."""


class Served(msgspec.Struct, kw_only=True):
    """How one request went, as its router saw it (seconds)."""

    arrival: Arrival
    cluster: int
    ttft_s: float = math.inf
    end_to_end_s: float = math.inf
    cached_tokens: int = 0


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What one cluster did."""

    cluster: str
    tier: str
    requests: int
    prompt_tokens: int
    slots: int
    slot_s: float


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one policy."""

    policy: str
    served: list[Served]
    uses: list[Use]
    lasted_s: float
    reasons: dict[str, int]
    """Decisions by reason, where the policy gives one."""


class World:
    """Clusters, and one policy object for each router."""

    def __init__(
        self,
        specs: Sequence[ClusterSpec],
        rtt_s: Sequence[Sequence[float]],
        build: Build,
        *,
        preset: Preset = "weighted",
        seed: int = 1,
    ) -> None:
        self._clusters = [Cluster(spec, preset=preset, seed=seed) for spec in specs]
        self._rtt_s = rtt_s
        self._routers: list[Policy] = [build(specs, row, seed + place) for place, row in enumerate(rtt_s)]
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._served: dict[int, Served] = {}
        self._left = 0
        self._now_s = 0.0

    def play(self, arrivals: Sequence[Arrival]) -> Played:
        """Serve every arrival to its end."""
        self._left = len(arrivals)
        for place in range(len(self._clusters)):
            self._scrape(place)
            self._beat(place, place * BEAT_S / len(self._clusters))
        for arrival in arrivals:
            self._at(WARM_UP_S + arrival.at_s, self._arrive, arrival)
        while self._left:
            due_s = min(cluster.next_event_s() for cluster in self._clusters)
            if due_s <= self._heap[0][0]:
                self._now_s = due_s
                self._listen()
                continue
            self._now_s, _, action, values = heapq.heappop(self._heap)
            action(*values)
        for cluster in self._clusters:
            cluster.close(self._now_s)
        reasons: dict[str, int] = {}
        for router in self._routers:
            for reason, count in getattr(router, "reasons", {}).items():
                reasons[reason] = reasons.get(reason, 0) + count
        return Played(
            policy=self._routers[0].name,
            served=[self._served[arrival.id] for arrival in arrivals],
            uses=[_use(cluster) for cluster in self._clusters],
            lasted_s=self._now_s,
            reasons=reasons,
        )

    def _at(self, at_s: float, action: Callable[..., None], *values: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (at_s, self._number, action, values))

    def _arrive(self, arrival: Arrival) -> None:
        place = self._routers[arrival.origin].choose(arrival, self._now_s)
        self._served[arrival.id] = Served(arrival=arrival, cluster=place)
        self._at(self._now_s + self._rtt_s[arrival.origin][place] / 2, self._reach, arrival, place)

    def _reach(self, arrival: Arrival, place: int) -> None:
        self._clusters[place].submit(arrival, self._now_s)

    def _listen(self) -> None:
        for place, cluster in enumerate(self._clusters):
            for heard in cluster.advance(self._now_s):
                self._at(heard.at_s + self._rtt_s[heard.arrival.origin][place] / 2, self._pass_by, place, heard)

    def _pass_by(self, place: int, heard: Heard) -> None:
        arrival, served = heard.arrival, self._served[heard.arrival.id]
        if heard.first:
            served.ttft_s = self._now_s - WARM_UP_S - arrival.at_s
            served.cached_tokens = heard.cached_tokens
        if heard.finished:
            served.end_to_end_s = self._now_s - WARM_UP_S - arrival.at_s
            self._left -= 1
        self._routers[arrival.origin].heard(place, heard, self._now_s)

    def _scrape(self, place: int) -> None:
        self._clusters[place].scrape(self._now_s)
        self._at(self._now_s + SCRAPE_S, self._scrape, place)

    def _beat(self, place: int, delay_s: float) -> None:
        state = self._clusters[place].state(self._now_s)
        for origin, row in enumerate(self._rtt_s):
            self._at(self._now_s + row[place] / 2, self._beat_arrives, origin, place, state)
        self._at(self._now_s + BEAT_S + delay_s, self._beat, place, 0.0)

    def _beat_arrives(self, origin: int, place: int, state: PoolState) -> None:
        self._routers[origin].beat(place, state, self._now_s)


def _use(cluster: Cluster) -> Use:
    return Use(
        cluster=cluster.spec.id,
        tier=cluster.spec.tier,
        requests=cluster.requests,
        prompt_tokens=cluster.tokens,
        slots=cluster.slots,
        slot_s=cluster.slot_s,
    )
