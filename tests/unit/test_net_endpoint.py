"""Endpoints, and what of a pool can be known without a socket."""

import asyncio
import socket
from typing import Any

import pytest

from gir.clock import ManualClock, SystemClock
from gir.net.errors import ConnectFailed
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.resolve import LAST_GOOD_S, REFRESH_S, Resolver
from gir.net.upstream import CallDeadlines

DEADLINES = CallDeadlines(head_s=1.0, first_token_s=1.0, idle_s=1.0)


@pytest.mark.parametrize(
    ("url", "endpoint", "authority"),
    [
        ("http://a:8000", Endpoint("a", 8000), b"a:8000"),
        ("http://a", Endpoint("a", 80), b"a:80"),
        ("https://a.example/base/", Endpoint("a.example", 443, tls=True, base_path="/base"), b"a.example:443"),
        ("http://[::1]:8000", Endpoint("::1", 8000), b"[::1]:8000"),
        ("HTTP://A:1", Endpoint("a", 1), b"a:1"),
    ],
)
def test_urls_name_endpoints(url: str, endpoint: Endpoint, authority: bytes) -> None:
    assert Endpoint.parse(url) == endpoint
    assert endpoint.authority == authority
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "url",
    ["", "a:8000", "ftp://a", "http://", "http://:80", "http://a:99999", "http://a:x", "http://a:0", "http://u:p@a",
     "http://a?x=1", "http://a#f", "http://a b", "http://a/\r\nx: y", "http://ä.example"],
)  # fmt: skip
def test_bad_urls_are_refused_with_the_value_and_a_fix(url: str) -> None:
    with pytest.raises(ValueError, match="write http://host:port") as caught:
        Endpoint.parse(url)
    assert repr(url) in str(caught.value)


def test_a_pool_shows_its_state_in_one_line() -> None:
    pool = UpstreamPool(Endpoint("a", 8000), PoolLimits(), clock=ManualClock())
    assert repr(pool) == "<Pool a:8000 0 active, 0 idle>"


async def test_a_full_pool_fails_at_once() -> None:
    pool = UpstreamPool(Endpoint("127.0.0.1", 9), PoolLimits(connections_max=0), clock=SystemClock())
    with pytest.raises(ConnectFailed, match="all 0 connections"):
        await pool.send(b"GET / HTTP/1.1\r\n\r\n", b"", deadlines=DEADLINES)


class Names:
    """A name server that can be told what to do."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: list[str] | Exception = ["10.0.0.1"]
        self.hang = asyncio.Event()
        self.hang.set()

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        await self.hang.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.answer]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    server = Names()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", server.getaddrinfo)
    return server


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_address_needs_no_lookup(names: Names) -> None:
    assert await Resolver("::1", 80, clock=ManualClock()).addresses() == ("::1",)
    assert names.asked == 0


async def test_a_known_name_is_used_at_once_and_refreshed_behind_the_scenes(names: Names) -> None:
    clock = ManualClock()
    resolver = Resolver("a.example", 80, clock=clock)
    assert await resolver.addresses() == ("10.0.0.1",)
    names.answer = ["10.0.0.2", "10.0.0.2", "10.0.0.3"]
    clock.advance_s(REFRESH_S + 0.1)
    assert await resolver.addresses() == ("10.0.0.1",)
    await settle()
    assert await resolver.addresses() == ("10.0.0.2", "10.0.0.3")
    assert names.asked == 2


async def test_the_last_good_address_serves_while_the_name_server_fails_or_hangs(names: Names) -> None:
    clock = ManualClock()
    resolver = Resolver("a.example", 80, clock=clock)
    await resolver.addresses()
    names.answer = socket.gaierror(-2, "Name or service not known")
    clock.advance_s(LAST_GOOD_S / 2)
    assert await resolver.addresses() == ("10.0.0.1",)
    await settle()
    names.hang.clear()
    for _ in range(10):
        assert await resolver.addresses() == ("10.0.0.1",)
        await settle()
    assert names.asked == 3, "a hanging lookup is not joined by others"
    clock.advance_s(LAST_GOOD_S)
    names.hang.set()
    with pytest.raises(OSError, match="not known"):
        await resolver.addresses()
    await resolver.close()


async def test_an_unknown_name_is_a_failed_connection(names: Names) -> None:
    names.answer = socket.gaierror(-2, "Name or service not known")
    pool = UpstreamPool(Endpoint("a.example", 80), PoolLimits(), clock=SystemClock())
    with pytest.raises(ConnectFailed, match="not known"):
        await pool.connect()
    names.hang.clear()
    pool = UpstreamPool(Endpoint("a.example", 80), PoolLimits(connect_s=0.05), clock=SystemClock())
    with pytest.raises(ConnectFailed, match=r"within 0\.05 s"):
        await pool.connect()
    await pool.close()
    assert pool.active == 0
