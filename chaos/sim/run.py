"""One seed from plan to verdict."""

import gc
import time

import msgspec

from chaos.sim.plan import START_S, Plan, plan_of
from chaos.sim.world import World, drop_pending


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of one seed."""

    seed: int
    failed: tuple[str, ...]
    """Findings, in order; empty when all is well."""
    trace: str
    """Hash of the whole history: equal for equal seeds and equal code."""
    events: int
    simulated_s: float
    cpu_s: float
    """Processor time it took."""
    outcomes: dict[str, int]


def simulate(seed: int, *, clusters: int | None = None, faults: frozenset[str] | None = None) -> Result:
    """Run one seed. `clusters` fixes the size of the fleet, `faults` the kinds of trouble."""
    return simulate_plan(plan_of(seed, clusters=clusters, faults=faults))


def simulate_plan(plan: Plan, *, skew: bool = True) -> Result:
    """Run a plan. Without `skew` wall clocks are never touched, which must not change anything."""
    started_s = time.process_time()
    # A run makes much and keeps little; looking for cycles in between costs a third of it.
    gc.disable()
    try:
        world = World(plan, skew=skew)
        world.live()
        drop_pending(world)
    finally:
        gc.enable()
    return Result(
        seed=plan.seed,
        failed=tuple(world.observed.failed),
        trace=world.observed.trace,
        events=world.loop.events,
        simulated_s=world.loop.time() - START_S,
        cpu_s=time.process_time() - started_s,
        outcomes=world.observed.outcomes,
    )
