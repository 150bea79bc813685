"""Connections whose other end has vanished without a word (F04): the kernel is made to drop what arrives there."""

import asyncio
from typing import cast

import pytest

from chaos.faults.packets import deafen, hear_again
from gir.clock import SystemClock
from gir.model.outcome import Phase
from gir.net.errors import ConnectionLost, HeadTimeout
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.upstream import CallDeadlines
from tests.support.bench import Bench, echo
from tests.support.net import UpstreamConnection, eventually, on_uvloop

pytestmark = pytest.mark.slow

LIMITS = PoolLimits(connect_s=1.0, dead_s=0.5)
BOUND_S = LIMITS.dead_s + 2.25
"""The kernel asks a silent peer at whole seconds."""


def vanish(connection: UpstreamConnection) -> None:
    """The machine of this connection's upstream has lost its power: nothing is acknowledged any more."""
    deafen(connection.writer.get_extra_info("socket"))


async def think_for_ever(connection: UpstreamConnection) -> None:
    await connection.request()
    await connection.until_closed()


@on_uvloop
async def test_a_forgotten_connection_costs_one_hidden_resend_and_no_error() -> None:
    async with Bench(echo, LIMITS) as bench:
        assert await bench.ask(b"one") == (200, b"one")
        vanish(bench.upstream.connections[0])
        started_s = asyncio.get_running_loop().time()
        call = await bench.call(b"two")
        assert call.reused, "the poisoned connection was not used, so this proves nothing"
        assert (await call.head()).status == 200
        assert await call.read_all(10) == b"two"
        assert LIMITS.dead_s <= asyncio.get_running_loop().time() - started_s <= BOUND_S
        assert [len(connection.requests) for connection in bench.upstream.connections] == [1, 1]
        assert bench.upstream.connections[1].requests[0][1] == b"two"


@on_uvloop
async def test_a_request_that_was_acknowledged_before_its_peer_vanished_is_given_up_in_time() -> None:
    async with Bench(think_for_ever, LIMITS) as bench:
        call = await bench.call(b"x")
        await eventually(lambda: bench.upstream.connections and bench.upstream.connections[0].requests)
        vanish(bench.upstream.connections[0])
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionLost, match="timed out") as caught:
            await call.head()
        assert caught.value.phase is Phase.DISPATCHED
        assert asyncio.get_running_loop().time() - started_s <= BOUND_S
        hear_again(bench.upstream.connections[0].writer.get_extra_info("socket"))


@on_uvloop
async def test_a_peer_that_thinks_long_is_not_taken_for_a_vanished_one() -> None:
    patient = CallDeadlines(head_s=BOUND_S + 0.5, first_token_s=9.0, idle_s=9.0)
    async with Bench(think_for_ever, LIMITS) as bench:
        call = await bench.call(b"x", deadlines=patient)
        with pytest.raises(HeadTimeout):
            await call.head()


@on_uvloop
async def test_a_peer_that_leaves_a_large_request_unread_for_a_while_is_not_taken_for_a_vanished_one() -> None:
    """An engine that is busy with others: it lives and acknowledges, but has no room for the rest of the body."""
    body = b"x" * 4_000_000
    busy_s = LIMITS.dead_s + 1.5

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        await asyncio.sleep(busy_s)
        cast("asyncio.ReadTransport", writer.transport).resume_reading()
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(body))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint = Endpoint.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    pool = UpstreamPool(endpoint, LIMITS, clock=SystemClock())
    started_s = asyncio.get_running_loop().time()
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    try:
        call = await pool.send(head, body, deadlines=CallDeadlines(head_s=9.0, first_token_s=9.0, idle_s=9.0))
        assert (await call.head()).status == 200
        assert await call.read_all(10) == b"ok"
        assert asyncio.get_running_loop().time() - started_s >= busy_s
    finally:
        await pool.close()
        server.close()
