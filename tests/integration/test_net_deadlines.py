"""Deadlines of a call: each ends it in its phase, and none ends a stream that keeps going."""

import asyncio

import pytest

from gir.clock import SystemClock
from gir.net.errors import ResponseTooLarge
from gir.net.upstream import CallDeadlines
from tests.support.net import (
    DONE,
    LAST,
    ROLE,
    SSE_HEAD,
    STOP,
    TOKEN,
    Proxy,
    UpstreamConnection,
    chat,
    chunk,
    eventually,
    on_uvloop,
    post,
)


def deadlines(**chosen: float) -> CallDeadlines:
    values = {"head_s": 5.0, "first_token_s": 5.0, "idle_s": 5.0}
    return CallDeadlines(**(values | chosen))


async def send_then_hang(connection: UpstreamConnection, *parts: bytes) -> None:
    await connection.request()
    for part in parts:
        connection.send(part)
        await asyncio.sleep(0.05)
    await connection.until_closed()


LATE = {
    "head": (deadlines(head_s=0.3), (), "HeadTimeout in dispatched"),
    "head, interim answers do not help": (
        deadlines(head_s=0.3),
        (b"HTTP/1.1 100 Continue\r\n\r\n",) * 3,
        "HeadTimeout in dispatched",
    ),
    "first token": (deadlines(first_token_s=0.3), (SSE_HEAD, chunk(ROLE)), "FirstTokenTimeout in head"),
    "first token, comments do not help": (
        deadlines(first_token_s=0.3),
        (SSE_HEAD, *[chunk(b": ping\n\n")] * 10),
        "FirstTokenTimeout in head",
    ),
    "idle": (deadlines(idle_s=0.3), (SSE_HEAD, chunk(ROLE + TOKEN), chunk(TOKEN)), "IdleTimeout in streaming"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("limits", "parts", "outcome"), LATE.values(), ids=LATE.keys())
@on_uvloop
async def test_each_deadline_ends_the_call_and_the_upstream_connection(
    limits: CallDeadlines, parts: tuple[bytes, ...], outcome: str
) -> None:
    async with Proxy(lambda connection: send_then_hang(connection, *parts), framer=chat, deadlines=limits) as proxy:
        client = await proxy.client()
        client.send(post())
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await client.rest()
        assert proxy.outcomes == [outcome]
        assert 0.28 <= loop.time() - start_s <= 0.3 + 0.05 * len(parts) + 0.3
        await eventually(proxy.upstream.connections[0].closed.is_set)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "phase"),
    [((), "dispatched"), ((SSE_HEAD, chunk(ROLE)), "head"), ((SSE_HEAD, *[chunk(ROLE + TOKEN)] * 20), "streaming")],
)
@on_uvloop
async def test_the_total_deadline_holds_in_every_phase(parts: tuple[bytes, ...], phase: str) -> None:
    total = deadlines(total_at_s=SystemClock().monotonic_s() + 0.4)
    async with Proxy(lambda connection: send_then_hang(connection, *parts), framer=chat, deadlines=total) as proxy:
        client = await proxy.client()
        client.send(post())
        await client.rest()
        assert proxy.outcomes == [f"TotalTimeout in {phase}"]
        assert SystemClock().monotonic_s() - total.total_at_s < 0.15


@pytest.mark.slow
@on_uvloop
async def test_a_steady_stream_outlives_every_gap_deadline() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD + chunk(ROLE))
        for _ in range(15):
            await asyncio.sleep(0.1)
            connection.send(chunk(TOKEN))
        connection.send(chunk(STOP + DONE) + LAST)
        await connection.until_closed()

    limits = deadlines(head_s=0.3, first_token_s=0.3, idle_s=0.3)
    async with Proxy(script, framer=chat, deadlines=limits) as proxy:
        client = await proxy.client()
        assert (await client.ask(post()))[2] == ROLE + TOKEN * 15 + STOP + DONE
        assert proxy.outcomes == ["ok"]


@on_uvloop
async def test_giving_up_from_outside_reaches_whoever_waits() -> None:
    async def hang(connection: UpstreamConnection) -> None:
        await send_then_hang(connection)

    async with Proxy(hang) as proxy:
        client = await proxy.client()
        client.send(post())
        await eventually(lambda: proxy.calls)
        proxy.calls[0].give_up(ResponseTooLarge(proxy.calls[0].phase, "enough"))
        await client.rest()
        assert proxy.outcomes == ["ResponseTooLarge in dispatched"]
        await eventually(proxy.upstream.connections[0].closed.is_set)
