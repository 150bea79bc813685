"""A request that has ended is let go of at once: no cycle keeps its body until the collector comes, which is seldom."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from gir.forward.answer import AttemptPlan
from gir.model.policy import ForwardPolicy, PolicySnapshot, TierPolicy
from gir.net.exchange import Exchange
from gir.wire.openai import Peek
from tests.support.router import API_KEY, TestRouter
from tests.support.upstream import JSON, FakeCluster, Script, chunk_event, stream_tokens

HEADERS = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
TIERS = (TierPolicy(name="reserved", price_per_slot_hour=1),)
CHAT = '{"model":"llama","messages":[{"role":"user","content":"hi"}],"stream":true}'


async def served(exchange: Exchange) -> None:
    await stream_tokens(exchange, 3)


async def refused(exchange: Exchange) -> None:
    exchange.respond(400, JSON, b"{}")


async def full(exchange: Exchange) -> None:
    exchange.respond(429, JSON, b"{}")


async def reset(exchange: Exchange) -> None:
    exchange.abort()


async def silent(exchange: Exchange) -> None:
    await asyncio.sleep(30)


async def cut(exchange: Exchange) -> None:
    exchange.start(200, [(b"content-type", b"text/event-stream")])
    exchange.write(chunk_event("", role=True) + chunk_event("tok-0000 "))
    await asyncio.sleep(0.05)
    exchange.abort()


async def stuck(exchange: Exchange) -> None:
    exchange.start(200, [(b"content-type", b"text/event-stream")])
    exchange.write(chunk_event("", role=True) + chunk_event("tok-0000 "))
    await asyncio.sleep(30)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("script", "body", "status"),
    [
        (served, CHAT, 200),
        (refused, CHAT, 400),
        (full, CHAT, 429),
        (reset, CHAT, 502),
        pytest.param(silent, CHAT, 502, marks=pytest.mark.slow),
        (cut, CHAT, 200),
        (served, CHAT.replace("llama", "none"), 404),
        (served, CHAT.replace("{", '{"model":"b",', 1), 400),
        (served, CHAT.replace("true", "1"), 400),
        (served, CHAT[:-1], 400),
    ],
    ids=["served", "refused", "full", "reset", "silent", "cut", "unknown", "twice", "type", "no JSON"],
)
async def test_no_cycle_holds_a_body(script: Script, body: str, status: int) -> None:
    async with asyncio.timeout(5), fleet(script) as router, ask(router, body) as answer:
        await answer.read()
        assert answer.status == status
    assert await left_over() == []


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("script", [silent, stuck], ids=["waiting", "streaming"])
async def test_no_cycle_holds_what_a_client_left_behind(script: Script) -> None:
    async with fleet(script) as router:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), ask(router, CHAT) as answer:
                await answer.read()
        assert await left_over() == []


@contextlib.asynccontextmanager
async def fleet(script: Script) -> AsyncIterator[TestRouter]:
    clusters = [await FakeCluster(name, script).start() for name in ("a", "b")]
    router = await TestRouter(
        clusters, PolicySnapshot(tiers=TIERS, forward=ForwardPolicy(head_s=0.2, whole_s=0.2))
    ).start()
    yield router
    for item in (router, *clusters):
        await item.close()


@contextlib.asynccontextmanager
async def ask(router: TestRouter, body: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{router.url}/v1/chat/completions", data=body, headers=HEADERS) as answer,
    ):
        yield answer


async def left_over() -> list[str]:
    """Names of what still holds a body, once everybody has had the time to let go."""
    for _ in range(100):
        kept = [type(one).__name__ for one in gc.get_objects() if isinstance(one, Peek | AttemptPlan | Exchange)]
        if not kept:
            break
        await asyncio.sleep(0.01)
    return kept
