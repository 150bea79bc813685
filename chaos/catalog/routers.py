"""Routers that are stopped and started while others, and dozens of agents, depend on them."""

import asyncio
from collections.abc import Callable
from typing import Any

from chaos.drill import Drill
from chaos.figures import figure_at_least, figure_at_most
from chaos.fleet import get
from chaos.members import Router
from chaos.phantoms import Herd, peak_over_mean
from chaos.promises import ALWAYS, ASKED_BY_DRILL, no_error_at_all
from chaos.rude import Caller
from chaos.stage import EXPERIMENT_MODEL, Stage

LISTEN_S, FINISH_S = 5.0, 60.0
"""The router's defaults, written out so that they can be scaled."""
HURRY_S = 1.0
AGENTS = 50
SPREAD_S = 5.0
LOOK_S = 0.01
NOT_READY = "not ready after the first TERM"
LISTENED = "listener open after the first TERM"
ENDED = "ended after the first TERM, with every stream finished"
STATUS = "exit status after one TERM"
HURRIED = "ended after the second TERM"
SPREAD = "reconnects of fifty agents spread over"
PEAK = "most reconnects in a second, over the mean"


async def _terminate(stage: Stage) -> None:
    """One TERM under load, watched until the end."""
    router = stage.fleet.routers[0]
    since_s = _term(stage, router)
    await _while(stage, lambda: get(f"{router.admin_url}/readyz")[0] == 200)
    stage.measured(NOT_READY, stage.clock.monotonic_s() - since_s)
    while await _accepts(stage, router):
        await stage.clock.sleep_s(LOOK_S)
    stage.measured(LISTENED, stage.clock.monotonic_s() - since_s)
    await _ended(stage, router)
    stage.measured(ENDED, stage.clock.monotonic_s() - since_s)
    assert router.process is not None, "it was started"
    stage.measured(STATUS, abs(router.process.exit_code or 0))


async def _terminate_twice(stage: Stage) -> None:
    """Started again, then told twice while it still streams: the second time it must not wait."""
    await _start_again(stage)
    router = stage.fleet.routers[0]
    caller = Caller(router.url, stage.fleet.keys["experiment"], stage.clock)
    sip = caller.sip(EXPERIMENT_MODEL, 5_000, bytes_per_s=65_536)
    streaming = asyncio.get_running_loop().create_task(sip)
    stage.measured(ASKED_BY_DRILL, 1)
    await stage.clock.sleep_s(1.0)
    _term(stage, router)
    # Long enough for everybody else's streams, short of the time that ours may take.
    await stage.clock.sleep_s(3.0)
    since_s = _term(stage, router)
    await _ended(stage, router)
    stage.measured(HURRIED, stage.clock.monotonic_s() - since_s)
    await streaming
    await _start_again(stage)


async def _restart_under_agents(stage: Stage) -> None:
    """Fifty agents report to a router that is replaced."""
    herd = Herd(stage.fleet, stage.clock)
    try:
        await herd.gather()
        await stage.clock.sleep_s(1.0)
        router = stage.fleet.routers[0]
        _term(stage, router)
        await _ended(stage, router)
        await herd.all_gone()
        coming = asyncio.get_running_loop().create_task(herd.all_up())
        await _start_again(stage)
        moments = await coming
    finally:
        await herd.close()
    stage.measured(SPREAD, moments[-1] - moments[0])
    stage.measured(PEAK, peak_over_mean(moments))


async def _nothing(stage: Stage) -> None:
    stage.mark("idle")


def _term(stage: Stage, router: Router) -> float:
    """Ask a router to stop; when that was."""
    stage.facts.router_ended = True
    assert stage.signals.terminate(router.pids) == 1, "there was nobody to stop"
    return stage.clock.monotonic_s()


async def _ended(stage: Stage, router: Router) -> None:
    while router.process is not None and router.process.alive:
        await stage.clock.sleep_s(LOOK_S)


async def _start_again(stage: Stage) -> None:
    stage.start_routers()
    await _while(stage, lambda: not all(get(f"{r.admin_url}/readyz")[0] == 200 for r in stage.fleet.routers))


async def _accepts(stage: Stage, router: Router) -> bool:
    try:
        _, writer = await Caller(router.url, "", stage.clock).connect()
    except OSError:
        return False
    writer.transport.abort()
    return True


async def _while(stage: Stage, condition: Callable[[], bool]) -> None:
    while await asyncio.to_thread(condition):
        await stage.clock.sleep_s(LOOK_S)


def _drain(scale: float) -> dict[str, Any]:
    return {"drain": {"listen_s": LISTEN_S * scale, "finish_s": FINISH_S * scale}}


DRILLS = (
    Drill(
        id="F36",
        title="a router is told to stop, once and twice",
        hypothesis="SIGTERM of one of two routers under load: it says at once that it is not ready, keeps listening "
        "for 5 s, finishes every stream and ends with status 0, and nobody notices anything; told twice, it ends "
        "within 1 s.",
        fault=_terminate,
        heal=_terminate_twice,
        victims=(),
        routers=2,
        settings=_drain,
        during_s=1.0,
        promises=(
            *ALWAYS,
            no_error_at_all,
            figure_at_most(NOT_READY, 0.1),
            figure_at_least(LISTENED, LISTEN_S, unit="s", scaled=True),
            figure_at_most(ENDED, LISTEN_S + FINISH_S, scaled=True),
            figure_at_most(STATUS, 0, unit=""),
            figure_at_most(HURRIED, HURRY_S),
        ),
    ),
    Drill(
        id="F27r",
        title="a router is replaced under fifty agents",
        hypothesis="A router that fifty agents report to is stopped and started: they come back over 5 s and more, at "
        "most three times as many in any second as in the mean, and nobody else notices anything.",
        fault=_restart_under_agents,
        heal=_nothing,
        victims=(),
        routers=2,
        phantoms=AGENTS,
        settings=_drain,
        during_s=1.0,
        promises=(
            *ALWAYS,
            no_error_at_all,
            figure_at_least(SPREAD, SPREAD_S, unit="s"),
            figure_at_most(PEAK, 3.0, unit="times"),
        ),
    ),
)
