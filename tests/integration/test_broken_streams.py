"""Streams that break or turn to nonsense in the middle (F09 to F11): told, settled as delivered, blamed once."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from gir.model.outcome import AttemptResult, Outcome
from gir.model.policy import HealthPolicy, PolicySnapshot, TierPolicy
from gir.net.exchange import Exchange
from tests.support.router import API_KEY, TestRouter
from tests.support.upstream import EVENT_STREAM, FakeCluster, Script, chunk_event

Start = Callable[[Script], Awaitable[tuple[TestRouter, FakeCluster]]]
POLICY = PolicySnapshot(
    tiers=(TierPolicy(name="reserved", price_per_slot_hour=1),), health=HealthPolicy(breaker_upstream_consecutive=2)
)
LAST = chunk_event("", finish="stop") + b"data: [DONE]\n\n"


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[TestRouter | FakeCluster] = []

    async def begin(script: Script) -> tuple[TestRouter, FakeCluster]:
        cluster = await FakeCluster("a", script).start()
        router = await TestRouter([cluster], POLICY).start()
        running.extend([router, cluster])
        return router, cluster

    yield begin
    for item in running:
        await item.close()


async def ask(router: TestRouter) -> bytes:
    body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    headers = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{router.url}/v1/chat/completions", data=json.dumps(body), headers=headers) as answer,
    ):
        assert answer.status == 200
        return await answer.read()


def last_event(body: bytes) -> dict[str, object]:
    read: dict[str, object] = json.loads([event for event in body.split(b"\n\n") if event][-1].removeprefix(b"data: "))
    return read


def gate(router: TestRouter) -> str:
    """Of the only cluster's breaker."""
    row = router.registry.rows(router.clock.monotonic_s())[0]
    return str(row["breaker"]["gate"])


def cut(after: int, how: str) -> Script:
    """A stream of `after` tokens that then ends in a way that proves nothing."""

    async def script(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True))
        for number in range(after):
            exchange.write(chunk_event(f"tok-{number:04d} "))
            await asyncio.sleep(0.002)
        if how == "half an event":
            exchange.write(chunk_event("tok-9999 ")[:40])
            await asyncio.sleep(0.01)
        exchange.finish() if how == "clean end" else exchange.abort()

    return script


@pytest.mark.parametrize("after", [1, 4, 11])
@pytest.mark.parametrize("how", ["reset", "clean end", "half an event"])
async def test_a_broken_stream_says_so_is_settled_as_delivered_and_blamed_once(
    start: Start, how: str, after: int
) -> None:
    router, cluster = await start(cut(after, how))
    body = await ask(router)
    assert len(cluster.seen) == 1
    assert b"[DONE]" not in body
    assert body.count(b'"error"') == 1
    assert "error" in last_event(body)
    delivered = body.count(b'"content":"tok-')
    assert delivered == after, "nothing else reached the client"
    (scope,) = router.recorder.ended
    assert scope.outcome is Outcome.TRUNCATED
    assert scope.usage is not None
    assert scope.usage.completion_tokens == delivered
    assert [attempt.result for attempt in scope.attempts] == [AttemptResult.UPSTREAM_FAULT]
    assert gate(router) == "closed", "it was counted more than once"
    await ask(router)
    assert gate(router) == "open", "it was not counted"


PIECES = {
    "invalid utf-8": [chunk_event("X").replace(b"X", b"\xff\xfe\xc3\x28")],
    "a character cut in two": [chunk_event("é")[:-40], chunk_event("é")[-40:]],
    "html": [b"<html><body>502 Bad Gateway</body></html>\n\n"],
    "a line of two mebibytes": [chunk_event("x" * 2 * 2**20)],
    "empty events": [b"data:\n\ndata: \n\n", b"\n\n"],
    "carriage returns": [chunk_event("tok").replace(b"\n", b"\r\n")],
    "comments": [b": still here\n\n", b":\n\n"],
    "no json": [b"data: {no json\n\n", b"data: [1, 2]\n\n", b"data: 7\n\n"],
    "other fields": [b"event: message\nid: 7\nretry: 10\n" + chunk_event("tok")],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES.keys())
async def test_nonsense_in_the_middle_passes_unchanged_or_is_told(start: Start, pieces: list[bytes]) -> None:
    first = chunk_event("", role=True) + chunk_event("tok-0000 ")

    async def script(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        for part in (first, *pieces, chunk_event("tok-0001 "), LAST):
            exchange.write(part)
            await asyncio.sleep(0.005)
        exchange.finish()

    router, cluster = await start(script)
    sent = first + b"".join(pieces) + chunk_event("tok-0001 ") + LAST
    body = await ask(router)
    assert len(cluster.seen) == 1
    if body != sent:
        assert b"[DONE]" not in body, "it was changed and called complete"
        assert "error" in last_event(body)
    cluster.script = cut(1, "clean end")
    assert b"tok-0000" in await ask(router), "the next one is served"


@pytest.mark.parametrize("finished", [False, True])
async def test_an_end_inside_a_line_of_two_mebibytes_is_told_in_an_event_of_its_own(
    start: Start, finished: bool
) -> None:
    first = chunk_event("tok-0000 ", finish="stop" if finished else None)

    async def script(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True) + first + b"data: " + b"x" * 2 * 2**20)
        exchange.finish()

    router, _ = await start(script)
    body = await ask(router)
    told = body.rpartition(b"x\n\n")[2]
    assert told == b"data: [DONE]\n\n" if finished else told.startswith(b'data: {"error":')
    assert body.endswith(told)


async def test_nonsense_that_passes_is_what_engines_really_send(start: Start) -> None:
    """All of it but HTML is legal in an event stream, so a client that can read it must get it."""
    router, cluster = await start(cut(1, "clean end"))
    first = chunk_event("", role=True) + chunk_event("tok-0000 ")
    for name, pieces in PIECES.items():

        async def script(exchange: Exchange, pieces: list[bytes] = pieces) -> None:
            exchange.start(200, EVENT_STREAM)
            exchange.write(first + b"".join(pieces) + LAST)
            exchange.finish()

        cluster.script = script
        assert await ask(router) == first + b"".join(pieces) + LAST, name
