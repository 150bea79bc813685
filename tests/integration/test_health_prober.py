"""The prober against real sockets: what it sees of healthy, frozen, refusing, failing and reconnecting clusters."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from prometheus_client.registry import CollectorRegistry

from gir.clock import SystemClock
from gir.control.prober import Prober
from gir.health.registry import Registry
from gir.model.beat import AgentHello
from gir.model.ids import ClusterId, RegionId, TierName
from gir.model.policy import HealthPolicy, PolicySnapshot
from gir.tasks import TaskSet
from gir.telemetry.metrics import RouterMetrics

HEALTH = HealthPolicy(probe_interval_s=0.03, probe_timeout_s=0.1, sweep_interval_s=0.02)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Agent:
    """A server whose manner of answering can be changed at any time."""

    def __init__(self) -> None:
        self.answer: bytes | None = OK
        """None: accept, read, never answer."""
        self.answers_a_connection = 1_000
        self.connections = 0
        self.requests: list[bytes] = []
        self.server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
            for writer in self.writers:
                writer.transport.abort()
            while self.writers:
                await asyncio.sleep(0.005)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            served = 0
            while served < self.answers_a_connection:
                served += 1
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                if self.answer is not None:
                    writer.write(self.answer)
        writer.close()
        self.writers.discard(writer)


class Bench:
    """One agent, a registry that knows it and a running prober."""

    def __init__(self, agent: Agent, base: str = "") -> None:
        self.agent = agent
        self.clock = SystemClock(seed=1)
        self.failures: list[BaseException] = []
        self.tasks = TaskSet(lambda _, error: self.failures.append(error))
        self.registry = Registry(PolicySnapshot(health=HEALTH), now_s=self.clock.monotonic_s(), jitter=lambda: 0.5)
        self.metrics = RouterMetrics(CollectorRegistry())
        self.prober = Prober(self.registry, clock=self.clock, tasks=self.tasks, metrics=self.metrics)
        self.hello(f"http://127.0.0.1:{agent.port}{base}")

    def hello(self, url: str, epoch: int = 1) -> None:
        hello = AgentHello(cluster=ClusterId("eu-1"), region=RegionId("eu"), url=url, tier=TierName("t"), epoch=epoch)
        self.registry.hello(hello, self.clock.monotonic_s())

    def probes(self) -> dict[str, object]:
        row: dict[str, object] = self.registry.rows(self.clock.monotonic_s())[0]["probes"]
        return row

    async def until(self, state: str) -> None:
        async with asyncio.timeout(5.0):
            while self.probes()["state"] != state:
                await asyncio.sleep(0.005)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    agent = Agent()
    await agent.start()
    bench = Bench(agent)
    bench.tasks.spawn(bench.prober.run(), name="prober")
    yield bench
    await bench.tasks.close()
    await bench.prober.close()
    await agent.stop()
    assert bench.failures == []


async def test_a_healthy_cluster_is_ok_and_its_round_trip_is_measured(bench: Bench) -> None:
    await bench.until("ok")
    rtt_ms = bench.probes()["rtt_min_ms"]
    assert isinstance(rtt_ms, float)
    assert 0.0 < rtt_ms < 1_000 * HEALTH.probe_timeout_s
    assert bench.agent.requests[0].startswith(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:")
    assert repr(bench.prober) == "<Prober of eu-1>"


@pytest.mark.slow
async def test_probes_share_a_connection_and_renew_it_now_and_then(bench: Bench) -> None:
    async with asyncio.timeout(5.0):
        while len(bench.agent.requests) < 13:
            await asyncio.sleep(0.01)
    assert 2 <= bench.agent.connections <= 4


@pytest.mark.slow
async def test_a_frozen_cluster_accepts_connections_but_misses_its_probes(bench: Bench) -> None:
    await bench.until("ok")
    bench.agent.answer = None
    await bench.until("missed")
    assert bench.metrics.probes.child("eu-1", "missed").value >= 1
    assert bench.metrics.probes.child("eu-1", "ok").value >= 1
    bench.agent.answer = OK
    await bench.until("ok")


async def test_a_stopped_listener_is_refused_at_once(bench: Bench) -> None:
    await bench.until("ok")
    await bench.agent.stop()
    await bench.until("refused")
    await bench.agent.start()
    await bench.until("ok")


@pytest.mark.slow
async def test_a_cluster_that_closes_idle_connections_is_not_blamed_for_it(bench: Bench) -> None:
    await bench.until("ok")
    bench.agent.answers_a_connection = 1
    await asyncio.sleep(0.3)
    assert bench.probes()["state"] == "ok"
    assert bench.agent.connections > 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 302 F\r\ncontent-length: 0\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_any_other_answer_is_a_miss(bench: Bench, answer: bytes) -> None:
    bench.agent.answer = answer
    await bench.until("missed")


async def test_a_cluster_that_moves_is_asked_at_its_new_address(bench: Bench) -> None:
    await bench.until("ok")
    moved = Agent()
    await moved.start()
    bench.hello(f"http://127.0.0.1:{moved.port}/base", epoch=2)
    async with asyncio.timeout(5.0):
        while not moved.requests:
            await asyncio.sleep(0.01)
    assert moved.requests[0].startswith(b"GET /base/healthz ")
    count = len(bench.agent.requests)
    await asyncio.sleep(0.1)
    assert len(bench.agent.requests) <= count + 1
    await moved.stop()


async def test_nobody_is_asked_when_probing_is_off(bench: Bench) -> None:
    await bench.until("ok")
    off = PolicySnapshot(health=HealthPolicy(probe=False, sweep_interval_s=0.02))
    bench.registry.apply_policy(off, bench.clock.monotonic_s())
    await asyncio.sleep(0.1)
    assert repr(bench.prober) == "<Prober of nobody>"
