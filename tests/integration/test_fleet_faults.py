"""Both tiers as real processes while something is wrong: a slow cluster (F08), and a router that stood still (F16)."""

import asyncio
import json
import signal
import statistics
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from chaos.evidence import samples
from chaos.fleet import Fleet, call, get
from chaos.history import Record
from chaos.load import Load, LoadPlan
from chaos.topology import ClusterShape, PodShape, Topology
from gir.clock import SystemClock
from tests.support.rawhttp import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]

SHAPE = Topology(
    clusters=(
        ClusterShape(name="eu-1", region="eu-west", pods=(PodShape(), PodShape())),
        ClusterShape(name="us-1", region="us-east", pods=(PodShape(), PodShape())),
    ),
    time_scale=0.5,
)
SLOW = {"kind": "slow", "name": "slow", "ttft": 10.0, "itl": 10.0}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.start(SHAPE) as running:
        yield running


def rows(fleet: Fleet) -> dict[str, dict[str, Any]]:
    status, body = get(f"{fleet.admin_url}/admin/clusters")
    assert status == 200
    return {row["cluster"]: row for row in json.loads(body)["clusters"]}


def plan(fleet: Fleet, duration_s: float) -> LoadPlan:
    return LoadPlan(
        url=fleet.router_url, rps=20, duration_s=duration_s, models=("llama-70b",), keys=(("demo", fleet.api_key),)
    )


def gaps_ms(records: list[Record], cluster: str) -> list[float]:
    """Mean gaps of the streams that a cluster answered."""
    return [record.gap_ms for record in records if record.cluster == cluster and record.gap_ms is not None]


@pytest.fixture
async def victim(fleet: Fleet) -> AsyncIterator[tuple[str, float]]:
    """The busier of two equal clusters, mended afterwards, and the usual gap of its streams."""
    records = await Load(plan(fleet, 2.0), SystemClock()).run()
    asked = [record.cluster for record in records]
    name = max(fleet.clusters, key=asked.count)
    yield name, statistics.median(gaps_ms(records, name))
    for pod in fleet.cluster(name).pods:
        call("DELETE", f"{pod['url']}/debug/faults")


async def test_four_fifths_of_the_traffic_leave_a_slow_cluster_and_nobody_calls_it_sick(
    fleet: Fleet, victim: tuple[str, float]
) -> None:
    name, usual_ms = victim
    pods = fleet.cluster(name).pods
    for pod in pods:
        assert call("POST", f"{pod['url']}/debug/faults", body=json.dumps(SLOW).encode())[0] == 200
    load = Load(plan(fleet, 14.0), SystemClock())
    records = await load.run()
    assert max(gaps_ms(records, name), default=0.0) >= 5.0 * usual_ms, "nobody met the slow cluster"
    assert [record.status for record in records if not record.ok] == []
    later = [record for record in records if record.sent_s >= load.started_s + 10.0]
    there = sum(record.cluster == name for record in later)
    assert len(later) >= 40
    assert there <= 0.2 * len(later), f"{there} of {len(later)} after 10 s"
    row = rows(fleet)[name]
    assert (row["status"], row["breaker"]["gate"], row["breaker"]["ejections"]) == ("healthy", "closed", 0)


async def test_a_router_that_stood_still_accuses_nobody_and_serves_within_a_second(fleet: Fleet) -> None:
    clock = SystemClock()
    router = fleet.routers[0].process
    assert router is not None
    await until(lambda: {row["status"] for row in rows(fleet).values()} == {"healthy"}, within_s=40.0)
    stalls = samples(get(f"{fleet.admin_url}/metrics")[1].decode())["gir_loop_stalls_total"]
    load = Load(plan(fleet, 18.0), clock)
    running = asyncio.ensure_future(load.run())
    await asyncio.sleep(1.0)
    router.signal(signal.SIGSTOP)
    # Longer than silence that makes SUSPECT and DEAD.
    await asyncio.sleep(16.0)
    router.signal(signal.SIGCONT)
    resumed_s = clock.monotonic_s()
    seen: set[str] = set()
    while not running.done():
        seen |= {row["status"] for row in (await asyncio.to_thread(rows, fleet)).values()}
        await asyncio.sleep(0.1)
    records: list[Record] = await running
    assert samples(get(f"{fleet.admin_url}/metrics")[1].decode())["gir_loop_stalls_total"] > stalls, "it never stood"
    assert seen == {"healthy"}
    assert [record.status for record in records if not record.ok] == []
    first_s = min(r.first_token_s for r in records if r.first_token_s is not None and r.first_token_s > resumed_s)
    assert first_s - resumed_s <= 1.0
