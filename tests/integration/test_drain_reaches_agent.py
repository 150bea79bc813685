"""What an operator tells a router about a cluster reaches the cluster's agent, which shows it and serves on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gir.control.beats import directives_for
from gir.model.cluster import Intent
from gir.wire import beats as wire
from tests.support.beats import Router, agent
from tests.support.routers import RouterProcess, Site


@pytest.fixture
async def two() -> AsyncIterator[tuple[Router, Router]]:
    pair = Router(router_id="r-1"), Router(router_id="r-2")
    for one in pair:
        await one.start()
    yield pair
    for one in pair:
        await one.server.close(0)


async def until(condition: Callable[[], Any], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("intent", "told"),
    [
        (Intent.SERVE, ()),
        (Intent.DRAIN, (wire.Drain("drain at r-1"),)),
        (Intent.MAINTENANCE, (wire.Drain("maintenance at r-1"),)),
    ],
)
def test_an_agent_is_told_what_its_router_will_not_send_and_where_that_was_said(
    intent: Intent, told: tuple[wire.Directive, ...]
) -> None:
    assert directives_for(intent, "r-1") == told


async def test_a_cluster_is_unwanted_when_every_router_that_listens_says_so(two: tuple[Router, Router]) -> None:
    first, second = two
    client = agent([first.address, second.address])
    client.start()
    await until(lambda: client.links_up == 2)
    assert not client.unwanted
    first.directives = (wire.Drain("drain at r-1"),)
    await until(lambda: any(link.directives for link in client.state()))
    assert not client.unwanted, "the other router still sends work"
    second.directives = (wire.Drain("drain at r-2"),)
    await until(lambda: client.unwanted)
    first.directives = ()
    await until(lambda: not client.unwanted)
    await client.close()
    assert not client.unwanted, "nobody is heard any more"


@pytest.mark.slow
async def test_gir_drain_reaches_the_agent_with_the_next_beat_and_undrain_takes_it_back(tmp_path: Path) -> None:
    router, site = RouterProcess(tmp_path, "r-1"), Site()
    try:
        await router.start()
        await site.start(router.beat_addresses)
        client = site.client
        await until(lambda: client.links_up == 1, 10.0)
        while not (await router.get("/admin/clusters"))["clusters"]:
            await asyncio.sleep(0.05)
        assert (await router.command("drain", "eu-1"))[0] == 0
        await until(lambda: client.unwanted, 5.0)
        assert client.state()[0].directives == ("Drain(reason='drain at r-1')",)
        assert (await router.command("undrain", "eu-1"))[0] == 0
        await until(lambda: not client.unwanted, 5.0)
    finally:
        await site.close()
        router.kill()
