"""A cluster of several models: one that is full asks to be left alone for itself, not for the others."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from gir.model.beat import BeatReport
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId
from gir.net.exchange import Exchange
from tests.support.router import API_KEY, TestRouter
from tests.support.upstream import JSON, FakeCluster


async def full_for_busy(exchange: Exchange) -> None:
    if b'"model":"busy"' in await exchange.read_body():
        exchange.respond(429, [*JSON, (b"retry-after", b"30")], b'{"error":{"message":"full"}}')
    else:
        exchange.respond(200, JSON, b"{}")


@pytest.fixture
async def router() -> AsyncIterator[TestRouter]:
    cluster = await FakeCluster("a", full_for_busy).start()
    router = await TestRouter([cluster]).start()
    pools = tuple(
        PoolState(model=ModelId(name), pods_ready=1, slots_total=8, slots_free=8, running=0, waiting=0)
        for name in ("busy", "idle")
    )
    router.registry.beat(BeatReport(cluster=ClusterId("a"), epoch=1, seq=99, pools=pools), router.clock.monotonic_s())
    yield router
    await router.close()
    await cluster.close()


async def ask(router: TestRouter, model: str) -> tuple[int, int]:
    """Status and Retry-After (0: none)."""
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]}}'
    headers = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{router.url}/v1/chat/completions", data=body, headers=headers) as answer,
    ):
        return answer.status, int(answer.headers.get("retry-after", 0))


async def test_a_full_model_shuts_no_other_one_out(router: TestRouter) -> None:
    code, retry_after_s = await ask(router, "busy")
    assert (code, retry_after_s >= 30) == (429, True)
    asked = len(router.clusters[0].seen)
    code, retry_after_s = await ask(router, "busy")
    assert (code, retry_after_s >= 29) == (503, True)
    assert len(router.clusters[0].seen) == asked, "it asked to be left alone"
    assert await ask(router, "idle") == (200, 0)
    (row,) = router.registry.rows(router.clock.monotonic_s())
    assert "asked for none of busy" in row["reason"]
