"""Whatever bytes come, from a client or from an upstream: only the errors meant for that, and nothing is left over."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from gir.clock import ManualClock
from gir.net.errors import UpstreamError
from gir.net.link import UpstreamLink
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.upstream import CallDeadlines
from tests.support.memory import MemoryClient, UpstreamTransport, turns

pytestmark = pytest.mark.slow
ROUNDS = 300
REQUEST = (
    *(b"GET / HTTP/1.1\r\n", b"POST /v1/x HTTP/1.1\r\n", b"Host: a\r\n", b"Content-Length: 5\r\n", b"\r\n", b"hello"),
    *(b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"\0", b"\xff", b"\r", b"\n", b"x" * 300),
    *(b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"Content-Encoding: gzip\r\n"),
)
ANSWER = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 500 x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No\r\n"),
    *(b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"\r\n", b"hello"),
    *(b"5\r\nhello\r\n", b"0\r\n\r\n", b"\0", b"\xff", b"\r", b"\n", b"x" * 300, b"upgrade: h2c\r\n", b"5;x=y\r\n"),
)


def soups(pieces: tuple[bytes, ...], seed: int) -> Iterator[list[bytes]]:
    """Reads made of pieces and noise, cut at random."""
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        data = chance.choice(pieces[:2]) + b"".join(
            chance.choice(pieces) if chance.random() < 0.9 else chance.randbytes(chance.randrange(8))
            for _ in range(chance.randrange(1, 14))
        )
        edges = sorted({0, len(data), *(chance.randrange(len(data) + 1) for _ in range(chance.randrange(4)))})
        yield [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("seed", range(4))
def test_a_server_survives_any_bytes(seed: int) -> None:
    async def run() -> None:
        for reads in soups(REQUEST, seed):
            client = MemoryClient()
            await client.send(reads)
            written = client.transport.written
            assert b" 500 " not in written, (reads, written)
            assert written == b"" or written.startswith(b"HTTP/1.1 ")
            for late_s in (11.0, 11.0, 80.0, 3.0):
                client.clock.advance_s(late_s)
                client.server.wheel.run(client.clock.monotonic_s())
                await turns()
            assert client.hung_up or client.transport.aborted, "a deadline ends whatever is not a request"
            client.close()
            await turns()
            assert client.server.exchanges_open == 0

    asyncio.run(run())


async def answer_with(reads: list[bytes], end: Callable[[UpstreamLink], object]) -> tuple[bytes | None, UpstreamPool]:
    """One call whose answer is `reads`, then `end`; its body, or None when it failed as it should."""
    pool = UpstreamPool(Endpoint("engine", 80), PoolLimits(), clock=ManualClock())
    link = UpstreamLink(pool)
    link.connection_made(UpstreamTransport(link))

    async def connect(total_at_s: float = 0.0) -> UpstreamLink:
        pool._links.add(link)
        return link

    pool.connect = connect  # type: ignore[method-assign]
    call = await pool.send(b"POST / HTTP/1.1\r\n\r\n", b"", deadlines=CallDeadlines(60.0, 60.0, 60.0))
    asking = asyncio.get_running_loop().create_task(call.read_all(1_000_000))
    await turns(1)
    for read in reads:
        if link.usable and read:
            link.data_received(read)
    if link.usable:
        end(link)
        link.connection_lost(None)
    await turns()
    try:
        return await asyncio.wait_for(asking, 1), pool
    except UpstreamError:
        return None, pool


@pytest.mark.parametrize("seed", range(4))
def test_a_call_survives_any_answer(seed: int) -> None:
    async def run() -> None:
        complete = 0
        for reads in soups(ANSWER, 100 + seed):
            body, pool = await answer_with(reads, UpstreamLink.eof_received)
            complete += body is not None
            await pool.close()
            assert (pool.active, pool.idle) == (0, 0)
        assert complete > 5, "some of it must make sense"

    asyncio.run(run())
