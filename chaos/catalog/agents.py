"""Clusters that crash, leave politely, or freeze."""

from chaos.drill import Drill
from chaos.promises import (
    ALWAYS,
    broken_streams_say_so,
    failover_is_counted,
    last_placement_within,
    no_error_at_all,
    no_error_before_token,
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
        ),
    ),
    Drill(
        id="F02",
        title="an agent is stopped cleanly",
        hypothesis="SIGTERM of an agent: it says goodbye, nothing more is placed there after 100 ms, and nobody "
        "notices anything, not even in the middle of a stream.",
        fault=_terminate_agent,
        heal=_start_again,
        promises=(*ALWAYS, no_error_at_all, last_placement_within(0.1)),
    ),
    Drill(
        id="F03",
        title="a cluster freezes",
        hypothesis="SIGSTOP of an agent and its pods, connections open and nothing answering: the last placement comes "
        "within 4 s (contract: 35 s), waiting requests are answered elsewhere within 4.5 s, nobody sees an error "
        "before the first token; what the thawed cluster says too late reaches nobody.",
        fault=_freeze,
        heal=_thaw,
        promises=(
            *ALWAYS,
            no_error_before_token,
            last_placement_within(4.0),
            waiters_moved_within(4.5),
            failover_is_counted,
        ),
    ),
)
