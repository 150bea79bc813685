"""Faults of the catalogue that befall returning clusters and whole fleets, in virtual time (F27 to F30)."""

import math

import pytest

from chaos.sim.client import Told
from chaos.sim.world import World
from gir.model.policy import FlowPolicy, HealthPolicy
from tests.support.catalogue import FAULT_S, NAMES, VICTIM, Lived, Load, live

pytestmark = pytest.mark.slow
AWAY_S = 30.0
FLAPS, HALF_S = 10, 10.0
HOLD_OFF_S = 1.0
PROBE_S = 1.0
"""Between two probes: until one is refused, a fleet that fell silent at once may be the router's own trouble."""
CLASSES = Load(rps=20.0, tenants=("gold", "plain", "plain", "plain", "cheap"), tokens=32)
"""Critical, Standard and Sheddable: what a third of the fleet cannot do alone, but for the Critical part."""

KNOWN_S = 4.0
"""By then probes and requests have both found out that nobody answers."""


def told(lived: Lived, tenant: str, from_s: float, until_s: float) -> list[Told]:
    """What clients of one tenant were told, of what they asked in a span of time."""
    assert lived.world.crowd is not None
    everybody = lived.world.crowd.told
    return [t for t in everybody if t.ask.tenant == tenant and from_s <= t.started_s - FAULT_S < until_s]


def test_f27_a_cluster_that_returns_ramps_up_and_is_not_lost_again() -> None:
    seen: list[tuple[float, float]] = []

    def spoil(world: World) -> None:
        def look() -> None:
            states = world.routers[0].registry.view.clusters
            seen.extend((world.loop.time() - FAULT_S, s.weight) for s in states if s.id == VICTIM)

        for second in range(120):
            world.at(FAULT_S + second, look)

    lived = live("freeze", lasts_s=AWAY_S, spoil=spoil)
    assert lived.work_before >= 20 and lived.findings == []
    back_s = min(lived.placements(VICTIM, AWAY_S, 200.0))
    sent = [step for step in lived.find("place") if back_s <= step.at_s < back_s + 5.0]
    first = lived.placements(VICTIM, back_s, back_s + 5.0)
    assert len(sent) >= 20 and len(first) <= 0.25 * len(sent)
    returning = [(at_s, weight) for at_s, weight in seen if at_s >= back_s]
    assert [weight for _, weight in returning] == sorted(weight for _, weight in returning)
    assert next(at_s for at_s, weight in returning if weight > 0.99) <= AWAY_S + 45.0


def test_f28_a_cluster_that_flaps_is_left_alone_in_the_end() -> None:
    end_s = FLAPS * 2 * HALF_S

    def spoil(world: World) -> None:
        """Frozen by the fault; thawed and frozen again by us, ten seconds each."""

        def turn(thaw: bool) -> None:
            cluster = world.clusters[VICTIM]
            (cluster.thaw if thaw else cluster.freeze)()

        for half in range(1, 2 * FLAPS):
            world.at(FAULT_S + half * HALF_S, turn, half % 2 == 1)

    lived = live("freeze", lasts_s=end_s, health=HealthPolicy(), spoil=spoil)
    assert lived.work_before >= 20 and lived.failed_before_token == []
    third_s = 3 * 2 * HALF_S
    early = [step for step in lived.find("status", VICTIM) if 0.0 < step.at_s <= third_s]
    late = [step for step in lived.find("status", VICTIM) if third_s < step.at_s <= end_s]
    assert len(early) >= 3, "it was never lost and found"
    assert len(late) <= 2.0 * (end_s - third_s) / 60.0 + 1


def test_f29_a_lost_region_costs_nobody_an_error_before_the_first_token() -> None:
    lived = live("region")
    assert lived.find("fault", "region") and lived.work_before >= 20
    assert lived.findings == [] and lived.failed_before_token == []
    assert lived.placements("us-1", 5.0, 40.0), "the other Region took the work"
    assert not lived.placements(VICTIM, 1.0, 39.0) and not lived.placements("eu-2", 1.0, 39.0)


def test_f29_a_lost_region_that_leaves_too_little_room_costs_the_sheddable_first_and_no_critical_one() -> None:
    lived = live("region", load=CLASSES, slots=8, flow=FlowPolicy(queue_max=8))
    assert lived.work_before >= 20 and lived.findings == []
    assert all(t.status == 200 for tenant in CLASSES.tenants for t in told(lived, tenant, -10.0, -2.0))
    shed = [t for t in told(lived, "plain", 0.0, 40.0) if t.status == 429]
    sheddable = told(lived, "cheap", 0.0, 40.0)
    assert len(shed) >= 50, "the rest had room for everybody"
    assert sum(t.status == 429 and t.retry_after >= "1" for t in sheddable) >= 0.9 * len(sheddable)
    let_in = [t.started_s for t in sheddable if t.status == 200]
    for one in shed:
        assert one.ended_s is not None
        assert not [s for s in let_in if one.started_s < s < one.ended_s + HOLD_OFF_S - 0.01], "invariant I9"
    critical = told(lived, "gold", -10.0, 50.0)
    assert len(critical) >= 200
    assert all(t.status == 200 for t in critical)


def test_f30_every_beat_lost_at_once_is_the_observers_own_trouble() -> None:
    lived = live("all_beats")
    assert lived.find("fault", "all_beats") and lived.work_before >= 20
    assert lived.findings == [] and lived.failed_before_token == []
    assert lived.ended("truncated") == []
    assert lived.placements(VICTIM, 20.0, 40.0), "it goes on as before"


def test_f30_a_fleet_that_is_gone_is_not_tried_in_vain_and_serves_soon_after_the_first_return() -> None:
    def spoil(world: World) -> None:
        def first_returns() -> None:
            world.clusters["us-1"].restart()

        world.at(FAULT_S + AWAY_S, first_returns)

    lived = live("crash", targets=range(len(NAMES)), lasts_s=AWAY_S + 20.0, spoil=spoil)
    assert len(lived.find("fault", "crash")) == len(NAMES)
    assert lived.work_before >= 20 and lived.findings == []
    gone = told(lived, "plain", 0.0, AWAY_S)
    assert len(gone) >= 200
    assert {(t.status, t.broke) for t in gone} == {(503, False)}
    assert all(t.retry_after.isdigit() and int(t.retry_after) >= 1 for t in gone)
    assert max((t.ended_s or math.inf) - t.started_s for t in gone) <= 0.05
    tried = [step.at_s for step in lived.find("place") if 0.0 <= step.at_s < AWAY_S]
    assert not tried or max(tried) <= PROBE_S, "tried in vain"
    back = told(lived, "plain", AWAY_S, AWAY_S + 20.0)
    assert min(t.ended_s or math.inf for t in back if t.status == 200) - FAULT_S <= AWAY_S + 5.0
    assert {t.status for t in told(lived, "plain", AWAY_S + 5.0, AWAY_S + 20.0)} == {200}
    assert {step.rest[1] for step in lived.find("place") if AWAY_S <= step.at_s < AWAY_S + 20.0} == {"us-1"}


def test_f30_hosts_that_are_gone_without_a_word_cost_nobody_a_timeout_once_that_is_known() -> None:
    def spoil(world: World) -> None:
        def first_returns() -> None:
            world.clusters["us-1"].restart()

        world.at(FAULT_S + AWAY_S, first_returns)

    lived = live("power", targets=range(len(NAMES)), lasts_s=AWAY_S + 20.0, spoil=spoil)
    assert len(lived.find("fault", "power")) == len(NAMES)
    assert lived.work_before >= 20
    gone = told(lived, "plain", KNOWN_S, AWAY_S)
    assert len(gone) >= 200
    assert {t.status for t in gone} == {503}
    assert all(t.retry_after.isdigit() and int(t.retry_after) >= 1 for t in gone)
    at_once = sum((t.ended_s or math.inf) - t.started_s <= 0.05 for t in gone)
    assert at_once >= 0.75 * len(gone), "but for a few tries when an ejection is over"
    tried = [step for step in lived.find("place") if KNOWN_S <= step.at_s < AWAY_S]
    assert len(tried) <= 0.4 * len(gone)
    back = told(lived, "plain", AWAY_S, AWAY_S + 20.0)
    assert min(t.ended_s or math.inf for t in back if t.status == 200) - FAULT_S <= AWAY_S + 5.0
