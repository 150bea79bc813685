"""Faults of the catalogue one by one, in virtual time: that each hit, and that its figure is kept.

The swarm (`test_seeds.py`) finds what nobody thought of; these say what an operator was promised.
"""

import msgspec
import pytest

from chaos.sim.watchers import SeenRegistry
from chaos.sim.world import World
from gir.model.beat import BeatReport
from gir.model.policy import HealthPolicy
from tests.support.catalogue import HEALTH, MODEL, VICTIM, Lived, live

pytestmark = pytest.mark.slow

NO_PROBE = msgspec.structs.replace(HEALTH, probe=False)
LASTS_S = 40.0


def check_hit(lived: Lived, kind: str) -> None:
    """The fault was done to a cluster at work, nothing else was found, and nobody was lost for it."""
    assert lived.find("fault", kind), "the fault never happened"
    assert lived.work_before >= 20, "the victim had no work, so nothing is proved"
    assert lived.findings == []


def test_f01_a_crashed_agent_gets_nothing_more_and_its_streams_say_so_at_once() -> None:
    lived = live("crash", lasts_s=LASTS_S)
    check_hit(lived, "crash")
    assert lived.failed_before_token == []
    assert lived.last_placement_s(LASTS_S) <= 1.0
    suspected_s = lived.first_status_s("suspect")
    assert suspected_s is not None
    assert suspected_s <= 0.1, "a broken beat stream needs no timer"
    broken = lived.ended("truncated")
    assert broken, "no stream was under way on the victim"
    assert max(broken) <= 1.0


@pytest.mark.parametrize(("health", "bound_s", "waiters_s"), [(HEALTH, 4.0, 4.5), (NO_PROBE, 21.0, 21.5)])
def test_f03_a_frozen_cluster_is_left_in_time_with_and_without_probes(
    health: HealthPolicy, bound_s: float, waiters_s: float
) -> None:
    lived = live("freeze", lasts_s=LASTS_S, health=health)
    check_hit(lived, "freeze")
    assert lived.failed_before_token == []
    assert lived.last_placement_s(LASTS_S) <= bound_s
    suspected_s, dead_s = lived.first_status_s("suspect"), lived.first_status_s("dead")
    assert suspected_s is not None and suspected_s <= bound_s
    assert dead_s is not None and dead_s <= 20.5
    moved = lived.moved()
    assert moved, "nobody waited there"
    assert max(moved) <= waiters_s


def test_f05a_beats_do_not_excuse_a_dead_data_path() -> None:
    lived = live("cut_data", lasts_s=LASTS_S)
    check_hit(lived, "cut_data")
    assert lived.failed_before_token == []
    assert lived.last_placement_s(LASTS_S) <= 4.0
    assert lived.moved() and max(lived.moved()) <= 4.5
    assert lived.first_status_s("dead") is None, "its beats arrive"


def test_f05b_a_cluster_that_is_not_heard_fades_and_is_out_within_20s_and_nobody_notices() -> None:
    weights: list[float] = []

    def watch(world: World) -> None:
        def look() -> None:
            weights.extend(s.weight for s in world.routers[0].registry.view.clusters if s.id == VICTIM)

        for second in range(16):
            world.at(world.plan.faults[0].at_s + second, look)

    lived = live("cut_beats", lasts_s=LASTS_S, spoil=watch)
    check_hit(lived, "cut_beats")
    assert lived.failed_before_token == [] and lived.ended("truncated") == []
    assert lived.last_placement_s(LASTS_S) <= 20.0
    dead_s = lived.first_status_s("dead")
    assert dead_s is not None and dead_s <= 20.5
    assert weights == sorted(weights, reverse=True)
    assert any(0.0 < weight < 1.0 for weight in weights), "its weight fell off a cliff instead of fading"


def test_f05b_the_only_cluster_of_a_model_is_kept_though_it_is_not_heard() -> None:
    lived = live("cut_beats", lasts_s=LASTS_S, models=((MODEL,), ("other",), ("other",)))
    check_hit(lived, "cut_beats")
    assert lived.failed_before_token == [] and lived.ended("truncated") == []
    assert lived.placements(VICTIM, 30.0, LASTS_S), "nothing was placed there any more"
    assert lived.first_status_s("dead") is None


def test_f08_a_slow_cluster_loses_its_traffic_but_not_its_good_name() -> None:
    lived = live("slow_pods", lasts_s=LASTS_S)
    check_hit(lived, "slow_pods")
    assert lived.failed_before_token == []
    there = len(lived.placements(VICTIM, 10.0, LASTS_S))
    all_of_them = sum(10.0 <= step.at_s < LASTS_S for step in lived.find("place"))
    assert all_of_them >= 100
    assert there <= 0.2 * all_of_them, "four fifths must go elsewhere after 10 s"
    assert lived.find("status", VICTIM) == [step for step in lived.find("status", VICTIM) if step.at_s < 0]


def test_f14_beats_seen_twice_and_late_leave_the_state_of_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[str] = []
    heard: dict[str, tuple[int, int]] = {}
    right = SeenRegistry.beat

    def listen(registry: SeenRegistry, beat: BeatReport, now_s: float) -> str:
        answer = right(registry, beat, now_s)
        ignored.extend([answer] if answer else [])
        heard[beat.cluster] = max(heard.get(beat.cluster, (0, 0)), (beat.epoch, beat.seq))
        state = next(state for state in registry.view.clusters if state.id == beat.cluster)
        assert (state.epoch, state.seq) == heard[beat.cluster]
        return answer

    monkeypatch.setattr(SeenRegistry, "beat", listen)
    lived = live("noise", lasts_s=LASTS_S)
    check_hit(lived, "noise")
    assert len(ignored) >= 3, "nothing arrived twice"
    assert lived.failed_before_token == []
    assert [step for step in lived.find("status") if step.at_s > 0] == []


def test_f16_a_paused_router_accuses_nobody_and_serves_within_a_second() -> None:
    lived = live("pause_router", lasts_s=LASTS_S, other=0)
    check_hit(lived, "pause_router")
    gaps = lived.find("gap")
    assert [step.at_s >= LASTS_S for step in gaps] == [True], "the router did not notice its pause"
    assert [step for step in lived.find("status") if step.at_s > 0] == []
    assert lived.failed_before_token == []
    assert not [step for step in lived.find("place") if 0.0 < step.at_s < LASTS_S], "it was not paused"
    assert min(step.at_s for step in lived.find("end", "completed") if step.at_s > LASTS_S) <= LASTS_S + 1.0
