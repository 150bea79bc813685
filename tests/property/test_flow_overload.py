"""Demand three times the capacity, in virtual time: who is served, who is shed, what the slots do meanwhile."""

import itertools

import pytest

from gir.admit.ticket import Ticket
from gir.model.policy import FlowPolicy
from tests.support.flowing import CRITICAL, SHEDDABLE, STANDARD, Overload

SLOTS = 40
SERVICE_S = 2.0
CAPACITY_PER_S = SLOTS / SERVICE_S
LASTS_S = 240.0
pytestmark = pytest.mark.slow


def three_times(policy: FlowPolicy, seed: int = 7) -> Overload:
    """20 / 40 / 40 % of three times the capacity."""
    world = Overload(policy, slots=SLOTS, service_s=SERVICE_S, seed=seed)
    demand = 3.0 * CAPACITY_PER_S
    world.stream("critical", CRITICAL, 0.2 * demand, ends_s=LASTS_S)
    world.stream("standard", STANDARD, 0.4 * demand, ends_s=LASTS_S)
    world.stream("sheddable", SHEDDABLE, 0.4 * demand, ends_s=LASTS_S)
    return world


@pytest.fixture(scope="module", params=[1, 2, 3])
def overloaded(request: pytest.FixtureRequest) -> Overload:
    world = three_times(FlowPolicy(), seed=request.param)
    world.run(LASTS_S)
    world.served_in_time = sum(world.served.values())
    world.run(LASTS_S + 60.0)
    return world


def test_critical_succeeds_while_its_demand_fits(overloaded: Overload) -> None:
    assert overloaded.served["critical"] >= 0.999 * overloaded.arrived["critical"]
    waits_s = [
        at_s - one.arrived_s for at_s, what, one in overloaded.log if what == "admitted" and one.criticality is CRITICAL
    ]
    assert sorted(waits_s)[int(0.99 * len(waits_s))] <= 0.5


def test_goodput_is_the_capacity(overloaded: Overload) -> None:
    assert overloaded.served_in_time >= 0.95 * CAPACITY_PER_S * LASTS_S


def test_no_standard_is_shed_while_a_sheddable_is_admitted(overloaded: Overload) -> None:
    """I9: between the arrival of a better request that is turned away and one second after, none gets in."""
    let_in = [at_s for at_s, what, one in overloaded.log if what == "admitted" and one.criticality is SHEDDABLE]
    shed = [
        (one.arrived_s, at_s)
        for at_s, what, one in overloaded.log
        if what == "refused" and one.criticality is not SHEDDABLE
    ]
    assert shed, "an overload that sheds nobody proves nothing"
    for arrived_s, at_s in shed:
        assert not any(arrived_s < when_s < at_s + 1.0 for when_s in let_in)


def test_sheddable_is_shed_first(overloaded: Overload) -> None:
    assert overloaded.served["sheddable"] < 0.05 * overloaded.arrived["sheddable"]
    assert overloaded.served["standard"] > 0.25 * overloaded.arrived["standard"]


def test_below_capacity_nobody_is_turned_away() -> None:
    world = Overload(FlowPolicy(), slots=SLOTS, service_s=SERVICE_S)
    for name, criticality in (("critical", CRITICAL), ("standard", STANDARD), ("sheddable", SHEDDABLE)):
        world.stream(name, criticality, 0.2 * CAPACITY_PER_S, ends_s=LASTS_S)
    world.run(LASTS_S + 30.0)
    assert world.served["critical"] == world.arrived["critical"]
    assert world.served["standard"] == world.arrived["standard"]
    assert world.served["sheddable"] >= 0.97 * world.arrived["sheddable"]


@pytest.mark.parametrize("shares", [(1.0, 1.0), (3.0, 1.0)])
def test_tenants_share_by_tokens_whatever_they_ask_for(shares: tuple[float, float]) -> None:
    """One asks ten times as often, the other for four times as much each time: both get their share of the tokens."""
    world = Overload(FlowPolicy(), slots=SLOTS, service_s=SERVICE_S)
    world.stream("many", STANDARD, 8.0 * CAPACITY_PER_S, tenant="many", tokens=50, share=shares[0], ends_s=LASTS_S)
    world.stream("big", STANDARD, 0.8 * CAPACITY_PER_S, tenant="big", tokens=200, share=shares[1], ends_s=LASTS_S)
    world.run(LASTS_S)
    ratio = world.served_tokens["many"] / world.served_tokens["big"]
    assert ratio == pytest.approx(shares[0] / shares[1], rel=0.10)


def test_standard_is_not_starved_when_critical_fills_the_fleet() -> None:
    policy = FlowPolicy(aging_s=5.0)
    world = Overload(policy, slots=SLOTS, service_s=SERVICE_S)
    world.stream("critical", CRITICAL, 1.5 * CAPACITY_PER_S, ends_s=LASTS_S)
    world.stream("standard", STANDARD, 0.3 * CAPACITY_PER_S, ends_s=LASTS_S)
    world.run(LASTS_S)
    times = [at_s for at_s, what, one in world.log if what == "admitted" and one.criticality is STANDARD]
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert max(gaps) <= policy.aging_s + 0.5
    assert LASTS_S - times[-1] <= policy.aging_s + 0.5


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = three_times(FlowPolicy(), seed=9), three_times(FlowPolicy(), seed=9)
    for world in (first, second):
        world.run(30.0)

    def shape(log: list[tuple[float, str, Ticket]]) -> list[tuple[float, str]]:
        return [(at_s, what) for at_s, what, _ in log]

    assert shape(first.log) == shape(second.log)
