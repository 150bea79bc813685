"""Networks that let some things through and not others, and a router that stands still."""

from chaos.drill import Drill
from chaos.faults.tcp import Toxic
from chaos.promises import (
    ALWAYS,
    EVERYBODY_HURT,
    attempts_bounded,
    failover_is_counted,
    last_placement_within,
    never_called,
    no_error_at_all,
    no_error_before_token,
    serving_again_within,
    waiters_moved_within,
)
from chaos.stage import Stage

CUT = Toxic(name="cut", kind="timeout")
PAUSED_S = 20.0
"""Shorter than the clients' patience, so that what is judged is the router."""


async def _cut_data(stage: Stage) -> None:
    await stage.poison(CUT, stage.data_proxies)


async def _mend_data(stage: Stage) -> None:
    await stage.cure(CUT.name, stage.data_proxies)


async def _cut_beats(stage: Stage) -> None:
    await stage.poison(CUT, stage.beat_proxies)


async def _mend_beats(stage: Stage) -> None:
    await stage.cure(CUT.name, stage.beat_proxies)


async def _pause_router(stage: Stage) -> None:
    stage.signals.stop(stage.router_pids)
    await stage.pause(PAUSED_S)
    stage.signals.resume(stage.router_pids)
    stage.mark("resumed")


async def _nothing(stage: Stage) -> None:
    stage.mark("idle")


DRILLS = (
    Drill(
        id="F05a",
        title="beats arrive, but the data path is dead",
        hypothesis="A link that drops every packet between routers and one cluster's data port, while its beats go "
        "through: probes and breaker overrule the beats within 4 s, and nobody sees an error before the first token.",
        fault=_cut_data,
        heal=_mend_data,
        proxied=True,
        promises=(
            *ALWAYS,
            no_error_before_token,
            last_placement_within(4.0),
            waiters_moved_within(4.5),
            failover_is_counted,
        ),
    ),
    Drill(
        id="F05b",
        title="the data path is fine, but beats are lost",
        hypothesis="A link that drops every packet between one cluster's agent and the routers' beat port: no client "
        "sees an error, and new work goes elsewhere within 6.5 s.",
        fault=_cut_beats,
        heal=_mend_beats,
        proxied=True,
        promises=(*ALWAYS, no_error_at_all, last_placement_within(6.5)),
    ),
    Drill(
        id="F16",
        title="the router stands still",
        hypothesis="SIGSTOP of the router for 20 s: the observer was the sick one, so no cluster is called suspect or "
        "dead for it, and requests succeed within 1 s of its return.",
        fault=_pause_router,
        heal=_nothing,
        control_may_fail=True,
        promises=(
            *EVERYBODY_HURT,
            attempts_bounded,
            no_error_at_all,
            never_called("suspect", "dead", whom="all"),
            serving_again_within(1.0, since="resumed"),
        ),
    ),
    Drill(
        id="F30b",
        title="every beat stops at once",
        hypothesis="The beats of all experiment clusters are cut at the same moment while their data paths work: that "
        "is taken for the observer's own trouble, and nobody sees an error.",
        fault=_cut_beats,
        heal=_mend_beats,
        victims=("eu-1", "eu-2", "us-1"),
        proxied=True,
        promises=(*ALWAYS, no_error_at_all),
    ),
)
