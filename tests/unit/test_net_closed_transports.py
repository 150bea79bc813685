"""Between a reset and the news of it a transport is closed already; uvloop raises if it is written to then."""

import asyncio

from gir.clock import ManualClock
from gir.net.exchange import Exchange
from gir.net.link import UpstreamLink
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.upstream import CallDeadlines
from tests.support.memory import MemoryClient, UpstreamTransport, turns

DEADLINES = CallDeadlines(head_s=60.0, first_token_s=60.0, idle_s=60.0)
REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


async def test_an_answer_to_a_client_whose_connection_is_closed_is_dropped() -> None:
    release = asyncio.Event()

    async def patient(exchange: Exchange) -> None:
        await release.wait()
        exchange.respond(200, [], b"too late")

    client = MemoryClient(patient)
    await client.send([REQUEST])
    client.transport.close()
    release.set()
    await turns()
    assert client.transport.written == b""
    client.close()


async def test_a_refusal_to_a_client_whose_connection_is_closed_is_dropped() -> None:
    client = MemoryClient()
    client.transport.close()
    client.connection.data_received(b"nonsense\n\n")
    assert client.transport.written == b""
    client.close()


async def test_a_request_is_not_written_to_an_idle_connection_that_is_closed() -> None:
    pool = UpstreamPool(Endpoint("engine", 80), PoolLimits(), clock=ManualClock())
    made: list[UpstreamTransport] = []

    async def connect(total_at_s: float = 0.0) -> UpstreamLink:
        link = UpstreamLink(pool)
        made.append(UpstreamTransport(link))
        link.connection_made(made[-1])
        pool._links.add(link)
        return link

    pool.connect = connect  # type: ignore[method-assign]
    call = await pool.send(b"GET / HTTP/1.1\r\n\r\n", b"", deadlines=DEADLINES)
    (link,) = pool._links
    link.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert await call.read_all(10) == b""
    assert pool.idle == 1
    made[0].close()
    call = await pool.send(b"GET /again HTTP/1.1\r\n\r\n", b"", deadlines=DEADLINES)
    assert not call.reused
    assert made[1].written == b"GET /again HTTP/1.1\r\n\r\n"
    await pool.close()
