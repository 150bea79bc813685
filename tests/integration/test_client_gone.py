"""The client leaves: whatever the request was waiting for, its upstream is closed within 100 ms and nothing leaks."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gir.model.outcome import AttemptResult, Outcome
from gir.net.exchange import Exchange
from tests.support.router import API_KEY, TestRouter
from tests.support.upstream import EVENT_STREAM, FakeCluster, Script, chunk_event

Start = Callable[..., Awaitable[tuple[TestRouter, FakeCluster]]]
CLOSED_WITHIN_S = 0.1


class Client:
    """A connection that asks once and can be torn off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def ask(cls, router: TestRouter, *, stream: bool = True) -> "Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        body = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": stream})
        writer.write(
            (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
            ).encode()
        )
        return cls(reader, writer)

    def leave(self) -> None:
        """Reset, as a killed process or a cut line does."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self._writer.transport.abort()

    def close(self) -> None:
        """Orderly end of input, as a client library that loses interest does."""
        self._writer.close()


async def hang(exchange: Exchange) -> None:
    await asyncio.sleep(60)


async def stream_for_ever(exchange: Exchange) -> None:
    exchange.start(200, EVENT_STREAM)
    exchange.write(chunk_event("", role=True))
    number = 0
    while True:
        exchange.write(chunk_event(f"tok-{number:04d} "))
        number += 1
        await asyncio.sleep(0.01)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[TestRouter | FakeCluster] = []

    async def begin(script: Script, *, slots: int = 8) -> tuple[TestRouter, FakeCluster]:
        cluster = await FakeCluster("a", script).start()
        router = TestRouter([cluster])
        await router.start()
        router.beat(cluster, slots=slots)
        running.extend([router, cluster])
        return router, cluster

    yield begin
    for item in running:
        await item.close()


async def until(condition: Callable[[], bool], timeout_s: float) -> float:
    """Seconds until `condition` held; fails after `timeout_s`."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not condition():
        assert loop.time() - began_s < timeout_s, "the condition never came true"
        await asyncio.sleep(0.002)
    return loop.time() - began_s


def nothing_held(router: TestRouter) -> bool:
    return (
        router.dispatcher.budget.active == 0
        and router.waiting.flow.in_flight == 0
        and router.ledger.open_accounts == 0
        and all(pool.active == 0 for _, pool in router.pools.items())
    )


@pytest.mark.parametrize("way", ["leave", "close"])
async def test_waiting_for_the_head(start: Start, way: str) -> None:
    router, cluster = await start(hang)
    client = await Client.ask(router)
    await until(lambda: len(cluster.seen) == 1, 1)
    getattr(client, way)()
    assert await until(lambda: cluster.gone == 1, 1) <= CLOSED_WITHIN_S
    await until(lambda: nothing_held(router), 1)
    scope = router.recorder.ended[0]
    assert scope.outcome is Outcome.CLIENT_GONE
    assert scope.attempts[0].result is AttemptResult.CANCELLED
    assert scope.usage is not None
    assert scope.usage.completion_tokens == 0, "nothing was delivered, so nothing is charged"


@pytest.mark.parametrize("way", ["leave", "close"])
async def test_streaming(start: Start, way: str) -> None:
    router, cluster = await start(stream_for_ever)
    client = await Client.ask(router)
    await client.reader.readuntil(b"tok-0003 ")
    getattr(client, way)()
    assert await until(lambda: cluster.gone == 1, 1) <= CLOSED_WITHIN_S
    await until(lambda: nothing_held(router), 1)
    scope = router.recorder.ended[0]
    assert scope.outcome is Outcome.CLIENT_GONE
    assert scope.usage is not None
    assert scope.usage.estimated
    assert scope.usage.completion_tokens >= 3, "what was delivered is settled"


async def test_queued_for_a_slot(start: Start) -> None:
    router, cluster = await start(hang, slots=1)
    first = await Client.ask(router)
    await until(lambda: len(cluster.seen) == 1, 1)
    second = await Client.ask(router)
    await until(lambda: router.waiting.flow.waiting == 1, 1)
    second.leave()
    assert await until(lambda: router.waiting.flow.waiting == 0, 1) <= CLOSED_WITHIN_S
    assert router.recorder.ended[0].outcome is Outcome.CLIENT_GONE
    assert router.recorder.ended[0].attempts == []
    first.leave()
    await until(lambda: nothing_held(router), 1)
    assert len(cluster.seen) == 1, "the one that left in the queue was never sent"


async def test_connecting(start: Start) -> None:
    router, cluster = await start(hang)
    deaf = socket.socket()
    deaf.bind(("127.0.0.1", 0))
    deaf.listen(0)
    fillers = []
    for _ in range(4):  # Fill the backlog: from here on nobody's handshake is answered.
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(deaf.getsockname())
        fillers.append(filler)
    try:
        cluster.moved_to = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        router.introduce(cluster)
        client = await Client.ask(router)
        await until(lambda: any(pool.active for _, pool in router.pools.items()), 1)
        client.leave()
        assert await until(lambda: nothing_held(router), 1) <= CLOSED_WITHIN_S
        assert router.recorder.ended[0].outcome is Outcome.CLIENT_GONE
        assert cluster.seen == []
    finally:
        for sock in [deaf, *fillers]:
            sock.close()


async def test_a_hundred_at_random_moments_leave_nothing_behind(start: Start) -> None:
    router, _ = await start(stream_for_ever, slots=40)
    chance = router.clock.random
    clients = [await Client.ask(router) for _ in range(100)]

    async def wander_off(client: Client) -> None:
        await asyncio.sleep(chance.random() * 0.2)
        client.leave()

    await asyncio.gather(*(wander_off(client) for client in clients))
    await until(lambda: nothing_held(router) and len(router.recorder.ended) == 100, 2)
    assert {scope.outcome for scope in router.recorder.ended} == {Outcome.CLIENT_GONE}
