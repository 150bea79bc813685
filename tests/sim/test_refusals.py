"""Every cluster answers 503 for 30 s (F41): refused at once, asked seldom, and served again as soon as it ends."""

import msgspec
import pytest

from chaos.sim.client import Ask, Told
from chaos.sim.cluster import ClusterSpec
from chaos.sim.plan import START_S, WARM_S, Fault, Plan, plan_of
from chaos.sim.world import World, drop_pending
from gir.model.ids import TenantId
from gir.model.policy import PolicySnapshot, TenantPolicy

FAULT_S = START_S + WARM_S + 20.0
LASTS_S = 30.0
PER_S = 20
CLUSTERS = 3


def _plan(illness: str) -> Plan:
    asks = tuple(
        Ask(
            at_s=FAULT_S - 15.0 + number / PER_S,
            router=0,
            tenant="plain",
            model="llama",
            stream=True,
            prompt_bytes=400,
            tokens=16,
        )
        for number in range(PER_S * 75)
    )
    return msgspec.structs.replace(
        plan_of(1, clusters=CLUSTERS),
        routers=1,
        clusters=tuple(
            ClusterSpec(name=f"eu-{number}", region="eu", tier="reserved", models=("llama",), pods=2, slots=8, pace=1.0)
            for number in range(CLUSTERS)
        ),
        policy=PolicySnapshot(version=1, tenants=(TenantPolicy(id=TenantId("plain")),)),
        faults=tuple(
            Fault(kind="ill", illness=illness, at_s=FAULT_S, lasts_s=LASTS_S, target=number)
            for number in range(CLUSTERS)
        ),
        asks=asks,
        safety_s=120.0,
        shared_store=False,
        core=-1,
    )


def _took_s(told: Told) -> float:
    assert told.ended_s is not None
    return told.ended_s - told.started_s


@pytest.mark.slow
@pytest.mark.parametrize("illness", ["503", "429"])
def test_a_fleet_that_refuses_for_30_s_is_asked_seldom_and_serves_as_soon_as_it_can(illness: str) -> None:
    world = World(_plan(illness))
    world.live()
    drop_pending(world)
    assert not world.observed.failed
    assert world.crowd is not None
    told = [one for one in world.crowd.told if one.started_s < FAULT_S + LASTS_S + 30.0]
    refused = [one for one in told if one.status in (429, 503)]
    assert len(refused) > 0.9 * LASTS_S * PER_S
    assert sorted(map(_took_s, refused))[int(0.99 * len(refused))] <= 0.1
    attempts = sum(len(log) for cluster in world.clusters.values() for log in cluster.log.values())
    assert attempts <= 1.1 * len(told)
    before_s = max(_took_s(one) for one in told if one.started_s < FAULT_S - 2.0)
    after = [one for one in told if one.started_s >= FAULT_S + LASTS_S + 5.0]
    assert all(one.status == 200 for one in after)
    assert max(map(_took_s, after)) <= 1.25 * before_s
