"""Agents without clusters: dozens of beat clients in the drill's own process, to see how a herd comes back."""

import asyncio
import io
from collections import Counter

from prometheus_client.registry import CollectorRegistry

from chaos.fleet import Fleet
from gir.clock import Clock
from gir.model.beat import AgentHello, BeatReport
from gir.model.ids import ClusterId, RegionId, TierName
from gir.telemetry.logs import LogSink, make_logger
from gir.telemetry.metrics import AgentMetrics
from tier1_agent.beats import BeatClient

LOOK_S = 0.02


class Herd:
    """One beat client for each of the fleet's phantoms, reporting to every router; watched is the first."""

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._clock = clock
        self._watched = fleet.routers[0].beats
        self._sink = LogSink(io.StringIO())
        log = make_logger(self._sink, clock, component="phantom", level="error")
        url = next(iter(fleet.clusters.values())).agent_url
        self._clients = [
            BeatClient(
                _hello(name, url),
                lambda name=name: BeatReport(cluster=ClusterId(name), epoch=1, seq=0),  # type: ignore[misc]
                [router.beats for router in fleet.routers],
                token,
                clock=clock,
                metrics=AgentMetrics(CollectorRegistry()),
                log=log,
            )
            for name, token in fleet.phantoms.items()
        ]

    async def gather(self) -> None:
        """Connect everybody; returns when all are."""
        for client in self._clients:
            client.start()
        await self.all_up()

    async def all_gone(self) -> None:
        """Wait until nobody is connected."""
        while any(map(self._up, self._clients)):
            await self._clock.sleep_s(LOOK_S)

    async def all_up(self) -> list[float]:
        """Wait until everybody is connected; the moments at which each was seen to be."""
        seen: dict[int, float] = {}
        while len(seen) < len(self._clients):
            for number, client in enumerate(self._clients):
                if self._up(client):
                    seen.setdefault(number, self._clock.monotonic_s())
            await self._clock.sleep_s(LOOK_S)
        return sorted(seen.values())

    def _up(self, client: BeatClient) -> bool:
        return any(link.up for link in client.state() if link.router == self._watched)

    async def close(self) -> None:
        """Say goodbye."""
        await asyncio.gather(*(client.close() for client in self._clients))
        await asyncio.to_thread(self._sink.close)


def peak_over_mean(moments: list[float]) -> float:
    """Most of `moments` (ascending) in one second, counted from the first, over the mean number a second."""
    counts = Counter(int(at_s - moments[0]) for at_s in moments)
    return max(counts.values()) / (len(moments) / max(1.0, moments[-1] - moments[0]))


def _hello(name: str, url: str) -> AgentHello:
    return AgentHello(cluster=ClusterId(name), region=RegionId("nowhere"), url=url, tier=TierName("reserved"), epoch=1)
