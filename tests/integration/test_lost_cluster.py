"""What a router does about a cluster that its probes call lost (F03, F04): connections, waiters, late answers."""

import asyncio
from typing import cast

import pytest

from gir.model.cluster import ClusterStatus, Intent
from gir.model.ids import ClusterId
from gir.model.outcome import Outcome
from gir.net.exchange import Exchange
from gir.telemetry.logs import Logger
from gir.watch import Watch
from tests.integration.test_failover_before_first_token import ANSWER, ask, good
from tests.support.beats import Log
from tests.support.router import TestRouter
from tests.support.upstream import JSON, FakeCluster

LATE_S = 0.4


async def late(exchange: Exchange) -> None:
    await asyncio.sleep(LATE_S)
    exchange.respond(200, JSON, b'{"late":true}')


def watch_of(router: TestRouter) -> Watch:
    return Watch(
        clock=router.clock,
        registry=router.registry,
        dispatcher=router.dispatcher,
        waiting=router.waiting,
        trials=lambda: None,
        pools=router.pools,
        metrics=router.metrics,
        log=cast("Logger", Log()),
    )


def idle(router: TestRouter, cluster: str) -> int:
    return sum(pool.idle for name, pool in router.pools.items() if name == cluster)


@pytest.mark.slow
async def test_waiters_move_poisoned_connections_go_and_a_late_answer_is_counted_and_not_delivered() -> None:
    clusters = [await FakeCluster(name, good).start() for name in ("a", "b")]
    router = await TestRouter(clusters).start()
    watch = watch_of(router)
    try:
        await asyncio.gather(*(ask(router) for _ in range(12)))
        router.recorder.ended.clear()
        asked = asyncio.ensure_future(ask(router))
        for cluster in clusters:
            cluster.seen.clear()
            cluster.script = late
        while not any(cluster.seen for cluster in clusters):
            await asyncio.sleep(0.002)
        lost = next(cluster for cluster in clusters if cluster.seen)
        other = next(cluster for cluster in clusters if cluster is not lost)
        other.script = good
        assert idle(router, lost.name) and idle(router, other.name), "nothing is pooled, so nothing can be purged"
        for _ in range(router.policies.current.health.probe_misses):
            router.registry.probe(ClusterId(lost.name), False, None, router.clock.monotonic_s())
        watch.look()
        states = {state.id: state.status for state in router.registry.view.clusters}
        assert states[ClusterId(lost.name)] is ClusterStatus.SUSPECT
        assert idle(router, lost.name) == 0
        assert idle(router, other.name) > 0
        code, body, headers = await asyncio.wait_for(asked, LATE_S / 2)
        assert (code, body, headers["x-gir-cluster"]) == (200, ANSWER, other.name)
        await asyncio.sleep(LATE_S)
        assert lost.gone == 1, "it was left to answer somebody who has moved on"
        assert router.metrics.wasted.child(ClusterId(lost.name)).value == 1
        (scope,) = router.recorder.ended
        assert scope.outcome is Outcome.COMPLETED
        assert scope.usage is not None and scope.usage.completion_tokens == 2, "the late answer was settled"
    finally:
        for item in (router, *clusters):
            await item.close()


@pytest.mark.slow
@pytest.mark.parametrize("leaving", ["goodbye", "maintenance"])
async def test_who_waits_for_a_cluster_that_leaves_moves_when_it_freezes_over_it(leaving: str) -> None:
    clusters = [await FakeCluster(name, late).start() for name in ("a", "b")]
    router = await TestRouter(clusters).start()
    watch = watch_of(router)
    try:
        asked = asyncio.ensure_future(ask(router))
        while not any(cluster.seen for cluster in clusters):
            await asyncio.sleep(0.002)
        lost = next(cluster for cluster in clusters if cluster.seen)
        other = next(cluster for cluster in clusters if cluster is not lost)
        other.script = good
        name, now_s = ClusterId(lost.name), router.clock.monotonic_s()
        if leaving == "goodbye":
            router.registry.goodbye(name, 1, now_s)
        else:
            router.registry.set_intent(name, Intent.MAINTENANCE, now_s)
        watch.look()
        await asyncio.sleep(0.02)
        assert not other.seen, "what runs there is left alone as long as it is alive"
        for _ in range(router.policies.current.health.probe_misses):
            router.registry.probe(name, False, None, router.clock.monotonic_s())
        watch.look()
        code, _, headers = await asyncio.wait_for(asked, LATE_S / 2)
        assert (code, headers["x-gir-cluster"]) == (200, other.name)
    finally:
        for item in (router, *clusters):
            await item.close()
