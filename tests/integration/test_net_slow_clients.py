"""Clients that are slow on purpose, or by misfortune: each has a deadline, and none slows the others down."""

import asyncio
import json

import pytest

from gir.model.errors import ErrorKind
from gir.net.exchange import Exchange
from gir.net.server import ServerLimits
from tests.support.net import Client, Rig, eventually, on_uvloop, post

pytestmark = pytest.mark.slow
QUICK = ServerLimits(
    header_read_s=0.4,
    body_bytes_per_s_min=1_000,
    body_window_s=0.4,
    keep_alive_s=0.5,
    write_stall_s=0.5,
    linger_s=0.3,
    write_high_bytes=16_384,
)


async def echo(exchange: Exchange) -> None:
    exchange.respond(200, [], await exchange.read_body())


async def drip(client: Client, data: bytes, gap_s: float = 0.05) -> None:
    """Send byte by byte until the server has had enough."""
    for byte in data:
        if client.writer.transport.is_closing() or client.reader.at_eof():
            return
        client.send(bytes([byte]))
        await asyncio.sleep(gap_s)


@on_uvloop
async def test_two_hundred_dripping_heads_are_closed_in_time_and_others_do_not_notice() -> None:
    async with Rig(echo, QUICK) as rig:
        drips = [await rig.client() for _ in range(200)]
        dripping = [
            asyncio.get_running_loop().create_task(drip(client, b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100))
            for client in drips
        ]
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        honest = await rig.client()
        assert (await honest.ask(post(b"quick")))[2] == b"quick"
        assert loop.time() - start_s < 0.2
        answers = [await client.answer() for client in drips]
        assert loop.time() - start_s < 0.4 + 0.3
        assert {status for status, _, _ in answers} == {408}
        assert json.loads(answers[0][2])["error"]["code"] == "request_timeout"
        await asyncio.gather(*dripping)
        for client in drips:
            client.close()
        await eventually(lambda: rig.server.connections_open <= 1)
        assert rig.observer.kinds == [ErrorKind.SLOW_CLIENT] * 200


@on_uvloop
async def test_a_connection_that_never_speaks_is_closed_without_an_answer() -> None:
    async with Rig(echo, QUICK) as rig:
        client = await rig.client()
        assert await asyncio.wait_for(client.rest(), 0.7) == b""


@on_uvloop
async def test_the_head_deadline_starts_anew_on_a_kept_connection() -> None:
    async with Rig(echo, QUICK) as rig:
        client = await rig.client()
        await client.ask(post(b"x"))
        await asyncio.sleep(0.3)
        client.send(b"POST / HT")
        status, _, _ = await asyncio.wait_for(client.answer(), 0.6)
        assert status == 408


@on_uvloop
async def test_an_idle_connection_is_closed_after_its_keep_alive() -> None:
    async with Rig(echo, QUICK) as rig:
        client = await rig.client()
        await client.ask(post(b"x"))
        await asyncio.sleep(0.3)
        assert (await client.ask(post(b"y")))[2] == b"y"
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        assert await client.rest() == b""
        # The wheel stamps an idle connection at its next look, which is two seconds away at most.
        assert 0.4 <= loop.time() - start_s <= 0.5 + 2.2


@pytest.mark.parametrize("chunked", [False, True])
@on_uvloop
async def test_a_dripping_body_is_refused_while_a_slow_honest_one_gets_through(chunked: bool) -> None:
    async with Rig(echo, QUICK) as rig:
        client, honest = await rig.client(), await rig.client()
        if chunked:
            client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n")
        else:
            client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        dripping = asyncio.get_running_loop().create_task(drip(client, b"x" * 1_000))
        refused = asyncio.get_running_loop().create_task(client.answer())
        honest.send(post(b"x" * 4_000)[:-4_000])
        for _ in range(40):
            honest.send(b"x" * 100)
            await asyncio.sleep(0.03)
        assert (await honest.answer())[0] == 200
        status, headers, _ = await refused
        assert (status, headers[b"connection"]) == (408, b"close")
        await dripping


@on_uvloop
async def test_a_body_that_stops_after_a_fast_start_is_refused() -> None:
    async with Rig(echo, QUICK) as rig:
        client = await rig.client()
        client.send(post(b"x" * 1_000_000)[:-500_000])
        status, _, _ = await asyncio.wait_for(client.answer(), 1.5)
        assert status == 408


@on_uvloop
async def test_a_client_that_stops_reading_is_gone_after_the_stall() -> None:
    gone = asyncio.Event()

    async def pour(exchange: Exchange) -> None:
        exchange.start(200, [])
        try:
            while True:
                exchange.write(b"x" * 10_000)
                await exchange.until_writable()
        except asyncio.CancelledError:
            assert exchange.client_gone
            gone.set()
            raise

    async with Rig(pour, QUICK) as rig:
        client = await rig.client(receive_bytes=4_096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(post())
        await eventually(lambda: rig.server._connections and not next(iter(rig.server._connections)).writable)
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await asyncio.wait_for(gone.wait(), 3)
        assert 0.3 <= loop.time() - start_s <= 2.5
        await eventually(lambda: rig.server.connections_open == 0)


@on_uvloop
async def test_a_client_that_reads_slowly_but_steadily_is_served_to_the_end() -> None:
    size = 3_000_000

    async def pour(exchange: Exchange) -> None:
        exchange.start(200, [], length=size)
        for _ in range(size // 10_000):
            exchange.write(b"x" * 10_000)
            await exchange.until_writable()
        exchange.finish()

    async with Rig(pour, QUICK) as rig:
        client = await rig.client(receive_bytes=16_384)
        client.send(post())
        await client.head()
        received = 0
        while received < size:
            part = await client.reader.read(60_000)
            assert part, "cut off though it was reading"
            received += len(part)
            if received < size // 2:
                await asyncio.sleep(0.03)
        assert received == size


@on_uvloop
async def test_a_last_answer_nobody_reads_does_not_keep_its_connection_for_ever() -> None:
    async def big(exchange: Exchange) -> None:
        exchange.respond(200, [], b"x" * 8_000_000)

    async with Rig(big, QUICK) as rig:
        client = await rig.client(receive_bytes=4_096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(post(b"", b"Connection: close"))
        await eventually(lambda: rig.server.connections_open == 1)
        await eventually(lambda: rig.server.connections_open == 0, within_s=4)
