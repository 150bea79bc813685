"""Each side holds the other back, and an open stream costs little memory."""

import asyncio
import gc
import resource
from pathlib import Path

import pytest

from gir.clock import SystemClock
from gir.net.errors import ResponseTooLarge
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.server import ServerLimits
from tests.support.net import (
    DEADLINES,
    LAST,
    ROLE,
    SSE_HEAD,
    TOKEN,
    Proxy,
    Upstream,
    UpstreamConnection,
    chat,
    chunk,
    eventually,
    on_uvloop,
    post,
)


async def flood(connection: UpstreamConnection) -> None:
    """As much as the connection takes, for ever."""
    await connection.request()
    connection.send(SSE_HEAD + chunk(ROLE + TOKEN))
    while True:
        connection.send(chunk(TOKEN * 100))
        await connection.writer.drain()
        await asyncio.sleep(0)


@pytest.mark.slow
@on_uvloop
async def test_a_slow_reader_pauses_the_upstream_and_costs_little_memory() -> None:
    readers = 40
    async with Proxy(flood, framer=chat, limits=ServerLimits(write_high_bytes=32_768)) as proxy:
        clients = []
        for _ in range(readers):
            client = await proxy.client(receive_bytes=4_096)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(post())
            clients.append(client)
        await eventually(
            lambda: (
                len(proxy.server._connections) == readers
                and all(not connection.writable for connection in proxy.server._connections)
            ),
            within_s=10,
        )
        sent = sum(call.body_bytes for call in proxy.calls)
        await asyncio.sleep(0.3)
        assert sum(call.body_bytes for call in proxy.calls) == sent, "the upstream was not paused"
        for connection in proxy.server._connections:
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() <= 32_768 + 256_000 + 1_000
        others = await proxy.client()
        others.send(post())
        assert (await others.head())[0] == 200
        clients[0].writer.transport.resume_reading()  # type: ignore[attr-defined]
        await eventually(lambda: sum(call.body_bytes for call in proxy.calls) > sent)
        for client in [*clients, others]:
            client.reset()
        await eventually(lambda: proxy.pool.active == 0, within_s=5)


@on_uvloop
async def test_a_body_nobody_asks_for_yet_is_bounded_by_pausing_the_upstream() -> None:
    upstream = await Upstream(flood).start()
    pool = UpstreamPool(
        Endpoint.parse(f"http://127.0.0.1:{upstream.port}"), PoolLimits(connect_s=1.0), clock=SystemClock()
    )
    call = await pool.send(request_head("POST", b"/", b"x", [], 0), b"", deadlines=DEADLINES)
    await call.head()
    await eventually(lambda: call._paused)
    held = call.body_bytes
    await asyncio.sleep(0.05)
    assert call.body_bytes == held <= 65_536 + 256_000
    call.abort()
    await pool.close()
    await upstream.close()


@on_uvloop
async def test_comments_without_content_are_not_held_for_ever() -> None:
    async def chatter(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD)
        while True:
            connection.send(chunk(b": ping\n\n" * 1_000))
            await connection.writer.drain()

    upstream = await Upstream(chatter).start()
    pool = UpstreamPool(
        Endpoint.parse(f"http://127.0.0.1:{upstream.port}"), PoolLimits(connect_s=1.0), clock=SystemClock()
    )
    call = await pool.send(request_head("POST", b"/", b"x", [], 0), b"", deadlines=DEADLINES)
    with pytest.raises(ResponseTooLarge, match="no content"):
        await call.hold(chat())
    await pool.close()
    await upstream.close()


@on_uvloop
async def test_a_large_download_arrives_whole_through_back_pressure() -> None:
    body = bytes(range(256)) * 40_000

    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 100_000):
            connection.send(chunk(body[start : start + 100_000]))
        connection.send(LAST)
        await connection.until_closed()

    async with Proxy(script) as proxy:
        client = await proxy.client(receive_bytes=16_384)
        assert (await client.ask(post()))[2] == body


@pytest.mark.slow
@on_uvloop
async def test_an_open_stream_costs_little_memory() -> None:
    """Both ends of 500 streams live in this process, so the bound is generous: it catches buffers, not bytes."""
    streams = 500

    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD + chunk(ROLE + TOKEN))
        await connection.until_closed()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4_096)), hard))
    async with Proxy(
        script, framer=chat, pool=PoolLimits(connect_s=5.0), upstream_options={"backlog": streams}
    ) as proxy:
        gc.collect()
        before = _rss_bytes()
        clients = [await proxy.client() for _ in range(streams)]
        for client in clients:
            client.send(post(b"x" * 2_000))
        for client in clients:
            await client.head()
        assert proxy.pool.active == streams
        assert (_rss_bytes() - before) / streams < 96 * 1024
        for client in clients:
            client.reset()
        await eventually(lambda: proxy.pool.active == 0, within_s=5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
