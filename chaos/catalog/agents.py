"""Clusters that crash, leave politely, or freeze."""

import asyncio

from chaos.drill import Drill
from chaos.fleet import live_clusters
from chaos.hits import fault_hit, late_answers_are_counted, nothing_sent_goes_there_after
from chaos.promises import (
    ALWAYS,
    broken_streams_say_so,
    comes_back_for_good,
    engines_stop_for_those_who_leave,
    failover_is_counted,
    last_placement_within,
    no_error_at_all,
    no_error_before_token,
    returns_gently,
    settles_down,
    streams_are_continued,
    waiters_moved_within,
)
from chaos.stage import Stage


async def _kill_agent(stage: Stage) -> None:
    stage.signals.kill(stage.agent_pids)


async def _terminate_agent(stage: Stage) -> None:
    stage.signals.terminate(stage.agent_pids)


async def _start_again(stage: Stage) -> None:
    stage.start_victims()


async def _freeze(stage: Stage) -> None:
    stage.signals.stop(stage.victim_pids)


async def _thaw(stage: Stage) -> None:
    stage.signals.resume(stage.victim_pids)


async def _replace_agents(stage: Stage) -> None:
    """One agent after the other: asked to stop, waited for, started again, waited for."""
    for cluster in stage.victims:
        assert cluster.agent is not None, "a running cluster has an agent"
        stage.signals.terminate([cluster.agent.pid])
        while cluster.agent.alive:
            await stage.clock.sleep_s(0.05)
        stage.start_victims()
        while cluster.name not in await asyncio.to_thread(live_clusters, stage.fleet.admin_url):
            await stage.clock.sleep_s(0.05)
        stage.mark(f"replaced {cluster.name}")


async def _flap(stage: Stage) -> None:
    """Ten seconds away, ten seconds back, ten times; the last time for good."""
    for flap in range(10):
        if flap == FLAPS_FREE:
            stage.mark("flapping")
        stage.signals.stop(stage.victim_pids)
        await stage.pause(10.0)
        stage.signals.resume(stage.victim_pids)
        await stage.pause(10.0)


async def _nothing(stage: Stage) -> None:
    stage.mark("idle")


FLAPS_FREE = 3
"""Flaps after which the router must have lost its patience."""

DRILLS = (
    Drill(
        id="F01",
        title="an agent crashes",
        hypothesis="SIGKILL of an agent under 20 rps of mixed streams: nobody sees an error before the first token, "
        "nothing more is placed there after 1 s, and streams past their first token end with the error event within "
        "1 s.",
        fault=_kill_agent,
        heal=_start_again,
        promises=(
            *ALWAYS,
            no_error_before_token,
            last_placement_within(1.0),
            broken_streams_say_so(1.0),
            failover_is_counted,
            fault_hit("SIGKILL"),
        ),
    ),
    Drill(
        id="F01r",
        title="an agent crashes, and its streams are continued",
        hypothesis="As F01, with policy allowing continuation: streams past their first token go on elsewhere, every "
        "token once and in order, and nobody notices anything.",
        fault=_kill_agent,
        heal=_start_again,
        resume=True,
        stream_share=1.0,
        promises=(*ALWAYS, no_error_at_all, streams_are_continued, fault_hit("SIGKILL")),
    ),
    Drill(
        id="F02",
        title="an agent is stopped cleanly",
        hypothesis="SIGTERM of an agent: it says goodbye, nothing more is placed there after 100 ms, and nobody "
        "notices anything, not even in the middle of a stream.",
        fault=_terminate_agent,
        heal=_start_again,
        promises=(
            *ALWAYS,
            no_error_at_all,
            last_placement_within(0.1),
            nothing_sent_goes_there_after(0.1),
            fault_hit("SIGTERM"),
        ),
    ),
    Drill(
        id="F03",
        title="a cluster freezes",
        hypothesis="SIGSTOP of an agent and its pods, connections open and nothing answering: the last placement comes "
        "within 4 s (contract: 35 s), waiting requests are answered elsewhere within 4.5 s, nobody sees an error "
        "before the first token, and streams under way say within 10 s that they broke; what the thawed cluster says "
        "too late reaches nobody.",
        fault=_freeze,
        heal=_thaw,
        promises=(
            *ALWAYS,
            no_error_before_token,
            last_placement_within(4.0),
            waiters_moved_within(4.5),
            broken_streams_say_so(10.0),
            failover_is_counted,
            late_answers_are_counted,
            fault_hit("SIGSTOP", at_least=2),
        ),
    ),
    Drill(
        id="F03b",
        title="a cluster freezes, and nobody probes it",
        hypothesis="As F03 with probes off, so that only the silence of its beats can tell: the last placement comes "
        "within 21 s, waiting requests are answered elsewhere within 21.5 s, and nobody sees an error before the first "
        "token.",
        fault=_freeze,
        heal=_thaw,
        probe=False,
        promises=(
            *ALWAYS,
            no_error_before_token,
            last_placement_within(21.0),
            waiters_moved_within(21.5),
            failover_is_counted,
            late_answers_are_counted,
            fault_hit("SIGSTOP", at_least=2),
        ),
    ),
    Drill(
        id="F27",
        title="a frozen cluster returns",
        hypothesis="A cluster that was frozen for 30 s is thawed under load: it gets at most a quarter of the traffic "
        "in its first 5 s, its share only grows and is whole 45 s after the thaw, and it is not lost a second time.",
        fault=_freeze,
        heal=_thaw,
        rps=30.0,
        after_s=40.0,
        promises=(
            *ALWAYS,
            no_error_before_token,
            returns_gently(0.25, 5.0),
            comes_back_for_good(45.0),
            fault_hit("SIGSTOP", at_least=2),
        ),
    ),
    Drill(
        id="F28",
        title="a cluster flaps",
        hypothesis="Ten seconds frozen, ten seconds well, ten times over: nobody sees an error before the first token, "
        "and after the third flap the router's mind changes at most twice a minute.",
        fault=_flap,
        heal=_nothing,
        during_s=1.0,
        promises=(
            *ALWAYS,
            no_error_before_token,
            settles_down(2.0, since="flapping"),
            fault_hit("SIGSTOP", at_least=20),
        ),
    ),
    Drill(
        id="F37",
        title="agents are replaced one by one",
        hypothesis="A rolling upgrade of every agent under load: each drains, leaves and returns, and nobody notices.",
        fault=_replace_agents,
        heal=_nothing,
        victims=("eu-1", "eu-2", "us-1"),
        during_s=1.0,
        promises=(*ALWAYS, no_error_at_all),
    ),
    Drill(
        id="F35",
        title="clients leave in the middle",
        hypothesis="A third of the clients hang up at a random moment: engines stop generating for them, every request "
        "has one end, and nothing is left over.",
        fault=_nothing,
        heal=_nothing,
        leave_share=0.33,
        promises=(*ALWAYS, no_error_at_all, engines_stop_for_those_who_leave),
    ),
)
