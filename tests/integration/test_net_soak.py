"""Everything at once: clients that leave, drip, pipeline and lie, upstreams that reset, cut, stall and close. Nothing
may be left over, and no answer may look complete that is not."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from gir.net.pool import PoolLimits
from gir.net.server import ServerLimits
from gir.net.upstream import CallDeadlines
from tests.support.net import (
    DONE,
    LAST,
    ROLE,
    SSE_HEAD,
    STOP,
    TOKEN,
    Client,
    Proxy,
    UpstreamConnection,
    chat,
    chunk,
    eventually,
    on_uvloop,
    post,
)

WHOLE = ROLE + TOKEN * 5 + STOP + DONE


async def moody(connection: UpstreamConnection, chance: random.Random) -> None:
    """Mostly right, sometimes not."""
    while True:
        await connection.request()
        mood = chance.random()
        if mood < 0.05:
            return
        if mood < 0.08:
            connection.send(b"HTTP/1.1 200 nonsense\n\n")
            return
        connection.send(SSE_HEAD)
        for event in (ROLE, *[TOKEN] * 5):
            if chance.random() < 0.03:
                connection.reset()
                return
            if chance.random() < 0.02:
                await asyncio.sleep(0.6)
            connection.send(chunk(event))
            if chance.random() < 0.3:
                await asyncio.sleep(0.001)
        if chance.random() < 0.05:
            return
        connection.send(chunk(STOP + DONE) + LAST)
        if chance.random() < 0.1:
            return


async def visitor(proxy: Proxy, chance: random.Random, complete: list[bytes]) -> None:
    """One client with a temper of its own."""
    client = await proxy.client()
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        for _ in range(chance.randrange(1, 6)):
            request = post(b"x" * chance.randrange(5_000))
            temper = chance.random()
            if temper < 0.1:
                client.send(request[: chance.randrange(len(request))])
                await asyncio.sleep(chance.random() * 0.02)
                break
            if temper < 0.15:
                client.send(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
                assert (await client.answer())[0] == 400
                break
            client.send(request)
            if temper < 0.3:
                await asyncio.sleep(chance.random() * 0.02)
                break
            if temper < 0.4:
                client.send(request)
                complete.append((await client.answer())[2])
            complete.append((await client.answer())[2])
    leave = chance.choice([Client.reset, Client.close, Client.half_close])
    with suppress(OSError, RuntimeError):
        leave(client)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@on_uvloop
async def test_nothing_is_left_over_and_nothing_incomplete_looks_complete(seed: int) -> None:
    chance = random.Random(seed)
    broken: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    limits = ServerLimits(header_read_s=0.5, body_window_s=0.5, linger_s=0.2, keep_alive_s=1.0)
    deadlines = CallDeadlines(head_s=0.5, first_token_s=0.5, idle_s=0.5)
    complete: list[bytes] = []
    async with Proxy(
        lambda connection: moody(connection, chance),
        framer=chat,
        limits=limits,
        pool=PoolLimits(connect_s=2.0, idle_s=0.5),
        deadlines=deadlines,
        upstream_options={"backlog": 500},
    ) as proxy:
        for _ in range(5):
            visitors = [visitor(proxy, random.Random(chance.random()), complete) for _ in range(40)]
            await asyncio.gather(*visitors)
        await eventually(lambda: (proxy.server.connections_open, proxy.server.exchanges_open) == (0, 0), within_s=5)
        await eventually(lambda: (proxy.pool.active, proxy.pool.idle) == (0, 0), within_s=5)
        assert len(proxy.server._tasks) == len(proxy.server._opening) == 0
        assert proxy.observer.failures == []
        assert set(complete) == {WHOLE}
        assert len(complete) > 120
        assert {"ok", "client gone"} < set(proxy.outcomes)
        assert any(outcome.startswith("ConnectionLost") for outcome in proxy.outcomes)
        assert any("Timeout" in outcome for outcome in proxy.outcomes)
    assert broken == []
