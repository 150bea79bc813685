"""Clusters are known by name, and name servers fail: real connections while lookups fail, hang, or change (F31)."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gir.clock import ManualClock, SystemClock
from gir.net.errors import ConnectFailed
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.resolve import LAST_GOOD_S, REFRESH_S

pytestmark = pytest.mark.slow
CONNECT_S = 0.3


class Shifted:
    """Real time, moved ahead at will."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.random = self._real.random
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        return self._real.monotonic_s() + self.ahead_s

    def wall_s(self) -> float:
        return self._real.wall_s() + self.ahead_s

    async def sleep_s(self, duration_s: float) -> None:
        await self._real.sleep_s(duration_s)


class Names:
    """A name server: what it answers, and how long it hangs before."""

    def __init__(self) -> None:
        self.answer: list[str] | Exception = ["127.0.0.1"]
        self.hangs_s = 0.0
        self.asked = 0

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        await asyncio.sleep(self.hangs_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.answer]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", made.getaddrinfo)
    return made


class Places:
    """One port on two loopback addresses, and how often each was called."""

    def __init__(self) -> None:
        self.called = {"127.0.0.1": 0, "127.0.0.2": 0}
        self.servers: list[asyncio.Server] = []
        self.port = 0

    async def start(self) -> None:
        for address in self.called:
            server = await asyncio.start_server(self._accept, address, self.port)
            self.port = server.sockets[0].getsockname()[1]
            self.servers.append(server)

    async def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.called[writer.get_extra_info("sockname")[0]] += 1
        writer.close()


@pytest.fixture
async def places(names: Names) -> AsyncIterator[Places]:
    made = Places()
    await made.start()
    yield made
    for server in made.servers:
        server.close()


def pool_of(places: Places, clock: Any) -> UpstreamPool:
    return UpstreamPool(Endpoint("cluster.example", places.port), PoolLimits(connect_s=CONNECT_S), clock=clock)


async def connects(pool: UpstreamPool) -> float:
    """Seconds one new connection took."""
    loop = asyncio.get_running_loop()
    since_s = loop.time()
    (await pool.connect()).close()
    return loop.time() - since_s


@pytest.mark.parametrize("hangs_s", [0.0, 10.0], ids=["NXDOMAIN", "hangs"])
async def test_the_last_good_address_is_dialled_at_once_while_the_name_server_is_away(
    names: Names, places: Places, hangs_s: float
) -> None:
    clock = Shifted()
    pool = pool_of(places, clock)
    await connects(pool)
    names.answer, names.hangs_s = socket.gaierror(-2, "Name or service not known"), hangs_s
    for _ in range(5):
        clock.ahead_s += LAST_GOOD_S / 6
        assert await connects(pool) < CONNECT_S / 2
    clock.ahead_s += LAST_GOOD_S
    with pytest.raises(ConnectFailed):
        await pool.connect()
    await pool.close()


async def test_a_new_address_is_dialled_after_one_refresh(names: Names, places: Places) -> None:
    clock = Shifted()
    pool = pool_of(places, clock)
    await connects(pool)
    names.answer = ["127.0.0.2"]
    clock.ahead_s += REFRESH_S + 0.1
    await connects(pool)
    await connects(pool)
    await asyncio.sleep(0.05)
    assert places.called == {"127.0.0.1": 2, "127.0.0.2": 1}
    await pool.close()


async def test_a_hanging_name_server_holds_nobody_else_up(names: Names, places: Places) -> None:
    """Not the loop, and not the connections to clusters whose addresses are known."""
    names.hangs_s = 10.0
    loop = asyncio.get_running_loop()
    known = UpstreamPool(Endpoint("127.0.0.1", places.port), PoolLimits(connect_s=CONNECT_S), clock=ManualClock())
    stuck = loop.create_task(pool_of(places, SystemClock()).connect())
    worst_s = 0.0
    for _ in range(20):
        since_s = loop.time()
        await asyncio.sleep(0.005)
        worst_s = max(worst_s, loop.time() - since_s)
        assert await connects(known) < CONNECT_S / 2
    assert worst_s < 0.1
    with pytest.raises(ConnectFailed, match=r"within 0\.3 s"):
        await stuck
    await known.close()
