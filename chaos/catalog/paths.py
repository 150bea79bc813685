"""Networks that let some things through and not others, a router that stands still, and clocks that are wrong."""

from chaos.drill import Drill
from chaos.faults.tcp import Toxic
from chaos.hits import counter_moved, fault_hit, health_never_changes, hidden_failures_at_most_one_each
from chaos.promises import (
    ALWAYS,
    EVERYBODY_HURT,
    attempts_bounded,
    broken_streams_say_so,
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
UNPLUGGED = Toxic(name="unplugged", kind="drop")
FORGOTTEN = Toxic(name="forgotten", kind="drop", established_only=True)
PAUSED_S = 40.0
FORGOTTEN_S = 15.0
"""Longer than the kernel takes to end a connection that nobody acknowledges, whatever the scale. What the far kernel
retransmits still arrives, and makes a stream's connection look alive until the gaps between retransmissions grow.
"""
SKEW_S = 600.0


async def _cut_data(stage: Stage) -> None:
    await stage.poison(CUT, stage.data_proxies)


async def _mend_data(stage: Stage) -> None:
    await stage.cure(CUT.name, stage.data_proxies)


async def _cut_beats(stage: Stage) -> None:
    await stage.poison(CUT, stage.beat_proxies)


async def _mend_beats(stage: Stage) -> None:
    await stage.cure(CUT.name, stage.beat_proxies)


async def _unplug(stage: Stage) -> None:
    await stage.poison(UNPLUGGED, [*stage.data_proxies, *stage.beat_proxies])


async def _plug_in(stage: Stage) -> None:
    await stage.cure(UNPLUGGED.name, [*stage.data_proxies, *stage.beat_proxies])


async def _forget(stage: Stage) -> None:
    await stage.poison(FORGOTTEN, stage.data_proxies)
    await stage.clock.sleep_s(FORGOTTEN_S)


async def _remember(stage: Stage) -> None:
    await stage.cure(FORGOTTEN.name, stage.data_proxies)


async def _step_clocks(stage: Stage) -> None:
    """Ten minutes ahead here and behind there, then the other way round: each change is one step."""
    for ahead_s in (SKEW_S, -SKEW_S):
        stage.set_clocks({ROUTER: ahead_s, "eu-1 agent": -ahead_s, "us-1 agent": ahead_s})
        await stage.pause(20.0)


async def _set_clocks_right(stage: Stage) -> None:
    stage.set_clocks_right()


async def _pause_router(stage: Stage) -> None:
    stage.signals.stop(stage.router_pids)
    await stage.pause(PAUSED_S)
    stage.signals.resume(stage.router_pids)
    stage.mark("resumed")


async def _nothing(stage: Stage) -> None:
    stage.mark("idle")


ROUTER = "router-1"

DRILLS = (
    Drill(
        id="F04",
        title="a cluster's network is unplugged",
        hypothesis="Every segment to and from one cluster is lost, beats and requests alike, while its connections "
        "stay open on both sides: the last placement comes within 4 s, waiting requests are answered elsewhere within "
        "4.5 s, nobody sees an error before the first token, streams under way say within 10 s that they broke, and no "
        "poisoned connection is used once it is back.",
        fault=_unplug,
        heal=_plug_in,
        proxied=True,
        promises=(
            *ALWAYS,
            no_error_before_token,
            last_placement_within(4.0),
            waiters_moved_within(4.5),
            broken_streams_say_so(10.0, at_least=0),
            failover_is_counted,
            fault_hit(UNPLUGGED.name, at_least=2),
        ),
    ),
    Drill(
        id="F04b",
        title="connections are forgotten",
        hypothesis="The connections that routers hold to one cluster go dead without a word, as when a middlebox "
        "forgets them, while new ones work: the cluster is not called dead, each dead connection costs at most one "
        "hidden failure, waiting requests are answered within 4.5 s, and broken streams say so within 13 s.",
        fault=_forget,
        heal=_remember,
        proxied=True,
        during_s=1.0,
        promises=(
            *ALWAYS,
            no_error_before_token,
            waiters_moved_within(4.5, scaled=False),
            broken_streams_say_so(13.0, at_least=0, scaled=False),
            hidden_failures_at_most_one_each(FORGOTTEN.name),
            never_called("dead"),
        ),
    ),
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
            broken_streams_say_so(10.0, at_least=0),
            failover_is_counted,
            fault_hit(CUT.name),
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
        promises=(*ALWAYS, no_error_at_all, last_placement_within(6.5), fault_hit(CUT.name)),
    ),
    Drill(
        id="F15",
        title="wall clocks are wrong",
        hypothesis="The wall clocks of the router and of two agents step ten minutes apart, and then ten minutes apart "
        "the other way: nobody's health changes, and nobody notices anything.",
        fault=_step_clocks,
        heal=_set_clocks_right,
        clocks_adjustable=True,
        during_s=1.0,
        promises=(
            *ALWAYS,
            no_error_at_all,
            health_never_changes,
            fault_hit(*(f"clock of {name}" for name in (ROUTER, "eu-1 agent", "us-1 agent"))),
        ),
    ),
    Drill(
        id="F16",
        title="the router stands still",
        hypothesis="SIGSTOP of the router for 40 s: the observer was the sick one, so no cluster is called suspect or "
        "dead for it, and requests succeed within 1 s of its return.",
        fault=_pause_router,
        heal=_nothing,
        control_may_fail=True,
        patience_s=90.0,
        promises=(
            *EVERYBODY_HURT,
            attempts_bounded,
            no_error_at_all,
            never_called("suspect", "dead", whom="all"),
            serving_again_within(1.0, since="resumed"),
            counter_moved("gir_loop_stalls_total", "the router noticed its pause"),
            fault_hit("SIGSTOP"),
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
        promises=(*ALWAYS, no_error_at_all, fault_hit(CUT.name, at_least=3)),
    ),
)
