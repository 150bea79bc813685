"""The client leaves: whatever the request is at, its handler is cancelled at once and the upstream closed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gir.net.exchange import Exchange
from gir.net.pool import PoolLimits
from tests.support.net import (
    SSE_HEAD,
    TOKEN,
    Client,
    Proxy,
    Rig,
    UpstreamConnection,
    chat,
    chunk,
    eventually,
    on_uvloop,
    post,
)

CLOSED_WITHIN_S = 0.1
Leave = Callable[[Client], None]
LEAVES = [Client.reset, Client.close, Client.half_close]


async def silent(connection: UpstreamConnection) -> None:
    await connection.request()
    await connection.until_closed()


async def endless(connection: UpstreamConnection) -> None:
    await connection.request()
    connection.send(SSE_HEAD)
    while True:
        connection.send(chunk(TOKEN))
        await asyncio.sleep(0.005)
        if connection.reader.at_eof():
            return


async def head_only(connection: UpstreamConnection) -> None:
    await connection.request()
    connection.send(SSE_HEAD + chunk(b": waiting\n\n"))
    await connection.until_closed()


@asynccontextmanager
async def asked(script: Callable[[UpstreamConnection], Awaitable[None]]) -> AsyncIterator[tuple[Proxy, Client]]:
    """A proxy with one request under way."""
    async with Proxy(script, framer=chat) as proxy:
        client = await proxy.client()
        client.send(post(b"hello"))
        await eventually(lambda: proxy.upstream.connections and proxy.upstream.connections[0].requests)
        yield proxy, client


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize(
    ("script", "ready"),
    [
        (silent, lambda proxy: True),
        (head_only, lambda proxy: proxy.calls and proxy.calls[0].body_bytes),
        (endless, lambda proxy: proxy.calls and proxy.calls[0].body_bytes > 1_000),
    ],
    ids=["waiting for the head", "waiting for the first token", "streaming"],
)
@on_uvloop
async def test_the_upstream_is_closed_at_once(
    script: Callable[[UpstreamConnection], Awaitable[None]], ready: Callable[[Proxy], object], leave: Leave
) -> None:
    async with asked(script) as (proxy, client):
        await eventually(lambda: ready(proxy))
        leave(client)
        (upstream,) = proxy.upstream.connections
        assert await eventually(upstream.closed.is_set) < CLOSED_WITHIN_S
        assert proxy.outcomes == ["client gone"]
        assert (proxy.pool.active, proxy.pool.idle) == (0, 0)
        await eventually(lambda: (proxy.server.connections_open, proxy.server.exchanges_open) == (0, 0))


@pytest.mark.parametrize("leave", LEAVES)
@on_uvloop
async def test_while_its_body_is_read(leave: Leave) -> None:
    async with Proxy(silent) as proxy:
        client = await proxy.client()
        client.send(post(b"x" * 1_000)[:-1])
        await eventually(lambda: proxy.server.exchanges_open)
        leave(client)
        assert await eventually(lambda: proxy.outcomes) < CLOSED_WITHIN_S
        assert proxy.outcomes == ["client gone"]
        assert not proxy.upstream.connections


@pytest.mark.parametrize("leave", LEAVES)
@on_uvloop
async def test_while_it_is_queued_in_the_handler(leave: Leave) -> None:
    ended: list[bool] = []

    async def queued(exchange: Exchange) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(exchange.client_gone)

    async with Rig(queued) as rig:
        client = await rig.client()
        client.send(post(b"hello"))
        await eventually(lambda: rig.server.exchanges_open)
        await asyncio.sleep(0.01)
        leave(client)
        assert await eventually(lambda: ended) < CLOSED_WITHIN_S
        assert ended == [True]
        await eventually(lambda: rig.server.exchanges_open == 0)


@on_uvloop
async def test_while_the_upstream_is_being_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Proxy(silent, pool=PoolLimits(connect_s=10.0)) as proxy:
        started, ended = asyncio.Event(), asyncio.Event()

        async def never(address: str) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        monkeypatch.setattr(proxy.pool, "_connect_to", never)
        client = await proxy.client()
        client.send(post(b"hello"))
        await started.wait()
        assert proxy.pool.active == 1
        client.reset()
        assert await eventually(ended.is_set) < CLOSED_WITHIN_S
        assert (proxy.outcomes, proxy.pool.active) == (["client gone"], 0)


@on_uvloop
async def test_before_its_handler_took_the_first_step() -> None:
    ran = []

    async def handler(exchange: Exchange) -> None:
        ran.append(exchange)
        exchange.respond(200, [], b"")

    async with Rig(handler) as rig:
        client = await rig.client()
        await eventually(lambda: rig.server.connections_open)
        (connection,) = rig.server._connections
        connection.data_received(post(b"hello"))
        assert rig.server.exchanges_open == 1
        connection.eof_received()
        await asyncio.sleep(0.01)
        assert (ran, rig.server.exchanges_open, len(rig.server._tasks)) == ([], 0, 0)
        client.close()


@on_uvloop
async def test_while_a_large_answer_waits_for_it_to_read() -> None:
    ended: list[bool] = []

    async def pour(exchange: Exchange) -> None:
        exchange.start(200, [])
        try:
            while True:
                exchange.write(b"x" * 50_000)
                await exchange.until_writable()
        finally:
            ended.append(exchange.client_gone)

    async with Rig(pour) as rig:
        client = await rig.client(receive_bytes=4_096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(post())
        await eventually(lambda: rig.server._connections and not next(iter(rig.server._connections)).writable)
        client.reset()
        assert await eventually(lambda: ended) < CLOSED_WITHIN_S
        assert ended == [True]


@on_uvloop
async def test_writing_to_a_client_that_left_is_harmless() -> None:
    seen: list[str] = []

    async def stubborn(exchange: Exchange) -> None:
        exchange.start(200, [])
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            exchange.write(b"too late")
            exchange.finish()
            exchange.abort()
            seen.append(repr(exchange))

    async with Rig(stubborn) as rig:
        client = await rig.client()
        client.send(post())
        await client.head()
        client.reset()
        await eventually(lambda: seen)
        assert "gone" in seen[0]
        assert rig.observer.failures == []


@on_uvloop
async def test_many_clients_leave_at_random_moments_and_nothing_is_left_over() -> None:
    async with Proxy(endless, framer=chat) as proxy:
        clients = []
        for number in range(120):
            client = await proxy.client()
            client.send(post(b"hello" * (number % 7)))
            clients.append(client)
            if number % 3 == 0:
                await asyncio.sleep(0.001)
            if number % 2:
                LEAVES[number % len(LEAVES)](clients[number // 2])
        for client in clients:
            client.reset()
        await eventually(lambda: (proxy.server.connections_open, proxy.server.exchanges_open) == (0, 0))
        await eventually(lambda: (proxy.pool.active, proxy.pool.idle) == (0, 0))
        await eventually(lambda: all(connection.closed.is_set() for connection in proxy.upstream.connections))
        assert set(proxy.outcomes) == {"client gone"}
        assert len(proxy.server._tasks) == 0
