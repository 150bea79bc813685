"""A request that runs out of time says nothing about the cluster it was sent to: its client chose how much it has."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from gir.model.cluster import ClusterStatus
from gir.model.outcome import AttemptResult
from gir.model.policy import ForwardPolicy, PolicySnapshot, TierPolicy
from gir.net.exchange import Exchange
from tests.support.router import PLAIN_KEY, TestRouter
from tests.support.upstream import JSON, FakeCluster, stream_tokens

TIERS = (TierPolicy(name="reserved", price_per_slot_hour=1),)


async def unhurried(exchange: Exchange) -> None:
    """Takes 0.3 s, as an engine that generates does: a stream's first token, or the whole answer."""
    await asyncio.sleep(0.3)
    if b'"stream":true' in await exchange.read_body():
        await stream_tokens(exchange, 2)
    else:
        exchange.respond(200, JSON, b"{}")


@pytest.fixture
async def router() -> AsyncIterator[TestRouter]:
    clusters = [await FakeCluster(name, unhurried).start() for name in ("a", "b")]
    policy = PolicySnapshot(tiers=TIERS, forward=ForwardPolicy(head_s=0.1))
    router = await TestRouter(clusters, policy).start()
    yield router
    for item in (router, *clusters):
        await item.close()


async def ask(router: TestRouter, *, stream: bool, deadline_ms: int | None = None) -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {PLAIN_KEY}", "content-type": "application/json"}
    if deadline_ms is not None:
        headers["x-gir-deadline-ms"] = str(deadline_ms)
    body = '{"model":"llama","messages":[{"role":"user","content":"hi"}],"stream":%s}' % ("true" if stream else "false")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{router.url}/v1/chat/completions", data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.read()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("deadline_ms", [1, 60])
async def test_short_deadlines_eject_nobody(router: TestRouter, deadline_ms: int, stream: bool) -> None:
    for _ in range(8):
        code, body = await ask(router, stream=stream, deadline_ms=deadline_ms)
        assert (code, b"deadline_exceeded" in body) == (504, True)
    assert {state.status for state in router.registry.view.clusters} == {ClusterStatus.HEALTHY}
    results = {attempt.result for scope in router.recorder.ended for attempt in scope.attempts}
    assert results == {AttemptResult.CANCELLED}


@pytest.mark.slow
async def test_the_cluster_is_given_longer_than_the_router_waits(router: TestRouter) -> None:
    """Else its agent's 504, or the error event of a stream it ends, would pass for a fault."""
    await ask(router, stream=True, deadline_ms=60)
    cluster = next(cluster for cluster in router.clusters if cluster.seen)
    assert 300 <= int(cluster.seen[0][0][b"x-gir-deadline-ms"]) <= 60 + 500


@pytest.mark.slow
async def test_an_answer_that_is_not_streamed_may_take_longer_than_a_head(router: TestRouter) -> None:
    assert await ask(router, stream=False) == (200, b"{}")
    assert [attempt.result for attempt in router.recorder.ended[0].attempts] == [AttemptResult.OK]
