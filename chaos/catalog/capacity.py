"""Clusters that are slow, full, or gone all together."""

import asyncio

from chaos.class_promises import (
    CRITICAL,
    SHEDDABLE,
    STANDARD,
    critical_succeed,
    room_was_short,
    sheddable_are_shed_first,
)
from chaos.drill import Drill
from chaos.engine.faults import Fault
from chaos.evidence import samples
from chaos.fleet import get
from chaos.hits import fault_hit, victims_were_slower
from chaos.promises import (
    ALWAYS,
    EVERYBODY_HURT,
    WHOLE,
    as_fast_as_before_within,
    attempts_bounded,
    failover_is_counted,
    never_called,
    no_error_at_all,
    no_error_before_token,
    refusals_are_quick_and_honest,
    serving_again_within,
    victims_share_at_most,
)
from chaos.stage import Stage
from chaos.topology import PodShape


async def _slow(stage: Stage) -> None:
    await stage.order(Fault(kind="slow", name="slow", ttft=10.0, itl=10.0), stage.victim_pods)


async def _full(stage: Stage) -> None:
    await stage.order(Fault(kind="status", name="full", status=429, retry_after_s=1), stage.victim_pods)


async def _all_full(stage: Stage) -> None:
    await stage.order(Fault(kind="status", name="full", status=503, retry_after_s=1), stage.experiment_pods)


async def _relieve(stage: Stage) -> None:
    await stage.relieve(stage.experiment_pods)


async def _kill(stage: Stage) -> None:
    stage.signals.kill(stage.victim_pids)


async def _start_again(stage: Stage) -> None:
    stage.start_victims()
    while not any(get(f"{cluster.agent_url}/healthz")[0] == 200 for cluster in stage.victims):
        await stage.clock.sleep_s(0.05)
    stage.mark("back")


async def _start_again_and_ramp(stage: Stage) -> None:
    """Also wait until the victims have all their work back: until then room is short still."""
    await _start_again(stage)
    while not await asyncio.to_thread(_whole, stage):
        await stage.clock.sleep_s(0.1)


def _whole(stage: Stage) -> bool:
    _, page = get(f"{stage.fleet.admin_url}/metrics")
    found = samples(page.decode())
    names = [f'gir_cluster_weight_ratio{{cluster="{cluster.name}"}}' for cluster in stage.victims]
    return all(found.get(name, 0.0) > WHOLE for name in names)


FEW_SLOTS = 8
"""Of an engine where room is to be short: a cluster has two of them, and the load needs 25 slots."""
EVERY_CLUSTER = ("eu-1", "eu-2", "us-1", "control")

DRILLS = (
    Drill(
        id="F08",
        title="a cluster becomes ten times slower",
        hypothesis="First tokens and gaps of one cluster take ten times as long: within 10 s four fifths of new "
        "traffic go elsewhere, nobody sees an error, and nobody calls the cluster dead, for slow is not dead.",
        fault=_slow,
        heal=_relieve,
        promises=(
            *ALWAYS,
            no_error_at_all,
            victims_share_at_most(0.2, after_s=10.0, within_s=30.0),
            never_called("suspect", "dead"),
            victims_were_slower(5.0),
        ),
    ),
    Drill(
        id="F12",
        title="a cluster is full",
        hypothesis="Every pod of a cluster answers 429 with Retry-After: other clusters take its work, nobody sees an "
        "error, and the cluster is not blamed.",
        fault=_full,
        heal=_relieve,
        promises=(*ALWAYS, no_error_at_all, never_called("suspect", "dead"), fault_hit("full")),
    ),
    Drill(
        id="F29",
        title="a Region is lost",
        hypothesis="Every process of a Region is killed while the other has room: nobody sees an error before the "
        "first token.",
        fault=_kill,
        heal=_start_again,
        victims=("eu-1", "eu-2"),
        promises=(*ALWAYS, no_error_before_token, failover_is_counted, fault_hit("SIGKILL", at_least=4)),
    ),
    Drill(
        id="F29b",
        title="a Region is lost, and the rest has too little room",
        hypothesis="Every process of a Region is killed and the other has a fifth of the slots: no Standard request is "
        "shed while a Sheddable one is let in, and 99.9 % of the Critical ones succeed, for which there is room.",
        fault=_kill,
        heal=_start_again_and_ramp,
        victims=("eu-1", "eu-2"),
        classes=(CRITICAL, STANDARD, STANDARD, STANDARD, SHEDDABLE),
        settings=lambda _: {"policy": {"flow": {"queue_max": 8}}},
        engines={"us-1": PodShape(gpu="llama2-70b/h100-80gb/tp8", slots=FEW_SLOTS)},
        time_scale=1.0,
        before_s=60.0,
        during_s=60.0,
        rps=24.0,
        promises=(
            *ALWAYS,
            room_was_short,
            sheddable_are_shed_first,
            critical_succeed(0.999, slots=2 * FEW_SLOTS),
            fault_hit("SIGKILL", at_least=4),
        ),
    ),
    Drill(
        id="F30",
        title="every cluster is gone",
        hypothesis="All clusters are killed: clients get 503 with Retry-After within 50 ms, nothing is tried in vain, "
        "and traffic flows again within 5 s of their return.",
        fault=_kill,
        heal=_start_again,
        victims=EVERY_CLUSTER,
        control_may_fail=True,
        promises=(
            *EVERYBODY_HURT,
            attempts_bounded,
            refusals_are_quick_and_honest(0.05),
            serving_again_within(5.0, since="back"),
            fault_hit("SIGKILL", at_least=8),
        ),
    ),
    Drill(
        id="F41",
        title="every cluster answers 503",
        hypothesis="A fleet that says it is full is not asked again and again: at most 1.1 attempts for each request, "
        "refusals within 100 ms, and normal service within 5 s of its recovery.",
        fault=_all_full,
        heal=_relieve,
        victims=("eu-1", "eu-2", "us-1"),
        promises=(
            *ALWAYS,
            refusals_are_quick_and_honest(0.1),
            serving_again_within(5.0, scaled=False),
            as_fast_as_before_within(5.0),
        ),
        after_s=60.0,
    ),
)
