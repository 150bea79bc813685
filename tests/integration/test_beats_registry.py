"""Beats into the real registry: what it publishes while agents come, go, and claim one another's names."""

import random
from collections.abc import AsyncIterator

import pytest

from gir.clock import SystemClock
from gir.health.registry import Registry
from gir.model.cluster import ClusterStatus
from gir.model.ids import ModelId
from gir.model.policy import PolicySnapshot
from gir.wire import beats as wire
from tests.integration.test_beats_stream import RawAgent, until
from tests.support.beats import Router, agent, hello, report


def status(registry: Registry, cluster: str) -> ClusterStatus:
    return next(state.status for state in registry.view.clusters if state.id == cluster)


@pytest.fixture
async def registry() -> Registry:
    return Registry(PolicySnapshot(), now_s=SystemClock().monotonic_s(), jitter=random.Random(1).random)


@pytest.fixture
async def router(registry: Registry) -> AsyncIterator[Router]:
    """With another cluster reporting: the only cluster of a model is never taken out of the view."""
    running = Router(registry)
    other = agent([await running.start()], token="token-us", hello=hello("us-1"))
    other.start()
    await until(lambda: registry.view.clusters and registry.view.clusters[0].pools)
    yield running
    await other.close()
    await running.server.close(0)


async def test_a_stopped_cluster_is_not_offered(router: Router, registry: Registry) -> None:
    client = agent([router.address])
    client.start()
    await until(lambda: len(registry.view.by_model.get(ModelId("llama"), ())) == 2)
    assert status(registry, "eu-1") in (ClusterStatus.HEALTHY, ClusterStatus.RAMPING)
    await client.close()
    assert status(registry, "eu-1") is ClusterStatus.DEAD


async def test_a_lost_stream_makes_suspect_at_once(router: Router, registry: Registry) -> None:
    one = RawAgent(router.address)
    await one.greet()
    await one.ask(wire.encode_beat(report()))
    one.call.cancel()
    await until(lambda: status(registry, "eu-1") is ClusterStatus.SUSPECT, 1.0)
    await one.channel.close()


async def test_of_two_agents_with_one_name_the_later_boot_counts(router: Router, registry: Registry) -> None:
    old = agent([router.address])
    new = agent([router.address], hello=hello(epoch=2, url="http://127.0.0.1:8202"))
    old.start()
    await until(lambda: old.links_up == 1)
    new.start()
    await until(lambda: old.links_up == 0)
    cluster = next(state for state in registry.view.clusters if state.id == "eu-1")
    assert (cluster.url, cluster.epoch, new.links_up) == ("http://127.0.0.1:8202", 2, 1)
    assert "a newer agent took over a cluster" in router.log.events()
    await old.close()
    await new.close()
