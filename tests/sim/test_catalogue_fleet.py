"""Faults of the catalogue that befall returning clusters and whole fleets, in virtual time (F27 to F30)."""

import pytest

from chaos.sim.world import World
from gir.model.policy import HealthPolicy
from tests.support.catalogue import FAULT_S, VICTIM, live

pytestmark = pytest.mark.slow
AWAY_S = 30.0
FLAPS, HALF_S = 10, 10.0


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


def test_f30_every_beat_lost_at_once_is_the_observers_own_trouble() -> None:
    lived = live("all_beats")
    assert lived.find("fault", "all_beats") and lived.work_before >= 20
    assert lived.findings == [] and lived.failed_before_token == []
    assert lived.ended("truncated") == []
    assert lived.placements(VICTIM, 20.0, 40.0), "it goes on as before"
