"""One seed is one history: in this process, in another one, and whatever the wall clocks say (F15)."""

import os
import subprocess
import sys

import pytest

from chaos.sim.plan import plan_of
from chaos.sim.run import simulate, simulate_plan
from chaos.sim.world import World, drop_pending

SEEDS = (1, 4, 9)


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = simulate(7), simulate(7)
    assert (first.trace, first.events) == (second.trace, second.events)


def test_other_seeds_give_other_histories() -> None:
    assert len({simulate(seed).trace for seed in SEEDS}) == len(SEEDS)


@pytest.mark.slow
def test_the_history_does_not_depend_on_the_process() -> None:
    here = [simulate(seed).trace for seed in SEEDS]
    code = f"from chaos.sim.run import simulate; print(*[simulate(seed).trace for seed in {SEEDS}])"
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.split() == here


@pytest.mark.slow
def test_wall_clocks_that_step_by_minutes_change_no_history() -> None:
    wrong = {"agents": 0, "routers": 0}
    for seed in range(1, 16):
        plan = plan_of(seed, faults=frozenset({"skew"}))
        world = World(plan)
        world.live()
        drop_pending(world)
        wrong["agents"] += any(cluster.clock.skew_s for cluster in world.clusters.values())
        wrong["routers"] += any(router.clock.skew_s for router in world.routers)
        assert world.observed.trace == simulate_plan(plan, skew=False).trace
    assert min(wrong.values()) >= 5, f"clocks were left wrong in {wrong} of 15 runs only"


def test_every_seed_obeys_the_bounds_of_its_knobs() -> None:
    for seed in range(300):
        plan = plan_of(seed)
        assert 2 <= len(plan.clusters) <= 10
        assert plan.faults
        assert all(fault.at_s + fault.lasts_s <= plan.heal_s for fault in plan.faults)
        assert all(fault.target != plan.core for fault in plan.faults)
