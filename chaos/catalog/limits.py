"""A store of shared limits that dies, freezes, dawdles, forgets, fails over, or is heard by one router only.

Two routers share one real Redis and the load. The experiment asks for far more than its limit; the control group is
Critical, below its limit, and its rule is closed without the store, so any refusal there is a broken promise.
"""

import asyncio

from chaos.drill import Drill
from chaos.faults.tcp import Toxic
from chaos.figures import figure_at_least
from chaos.hits import fault_hit
from chaos.limit_promises import (
    decided_at_once,
    degraded_seen,
    every_router_serves,
    nobody_fails_but_by_the_limit,
    one_line_an_outage,
    steady_within_limits,
    whole_again_within,
    within_the_limit,
)
from chaos.promises import (
    Promise,
    attempts_bounded,
    control_unmoved,
    every_request_has_one_end,
    no_lies,
    nothing_leaks,
)
from chaos.stage import Stage
from chaos.topology import StoreShape

ROUTERS = 2
OUTAGE_S = 75.0
"""Longer than the window that limits count in."""
SLOW = Toxic(name="slow", kind="latency", delay_s=0.2)
CUT = Toxic(name="cut", kind="timeout")
FORGOTTEN = "keys that were forgotten"


async def _kill(stage: Stage) -> None:
    stage.signals.kill(stage.store_pids)


async def _start_again(stage: Stage) -> None:
    await stage.start_store()


async def _freeze(stage: Stage) -> None:
    stage.signals.stop(stage.store_pids)


async def _thaw(stage: Stage) -> None:
    stage.signals.resume(stage.store_pids)


async def _slow(stage: Stage) -> None:
    await stage.poison(SLOW, stage.store_proxies)


async def _hurry(stage: Stage) -> None:
    await stage.cure(SLOW.name, stage.store_proxies)


async def _cut_one(stage: Stage) -> None:
    await stage.poison(CUT, stage.store_proxies)


async def _mend_one(stage: Stage) -> None:
    await stage.cure(CUT.name, stage.store_proxies)


async def _flush(stage: Stage) -> None:
    """Every counter and every script goes."""
    counters = await asyncio.to_thread(stage.store.command, "DBSIZE")
    await asyncio.to_thread(stage.store.command, "FLUSHALL")
    await asyncio.to_thread(stage.store.command, "SCRIPT", "FLUSH")
    stage.measured(FORGOTTEN, float(counters))


async def _nothing(stage: Stage) -> None:
    stage.mark("idle")


WITHIN_LIMITS: tuple[Promise, ...] = (
    steady_within_limits,
    no_lies,
    attempts_bounded,
    every_request_has_one_end,
    nothing_leaks,
    control_unmoved,
    nobody_fails_but_by_the_limit,
    every_router_serves(ROUTERS),
)
OUTAGE: tuple[Promise, ...] = (
    *WITHIN_LIMITS,
    within_the_limit(0.10, until="heal"),
    decided_at_once(0.060, 0.001),
    one_line_an_outage(routers=ROUTERS),
    degraded_seen(ROUTERS),
)

DRILLS = (
    Drill(
        id="F17",
        title="one router loses the store",
        hypothesis="A link that drops every packet between one of two routers and the store: both serve, at most 10 % "
        "more than the limit is let in within any 60 s, and the router that was cut off says so once.",
        fault=_cut_one,
        heal=_mend_one,
        victims=(),
        routers=ROUTERS,
        store=StoreShape(kind="redis", proxied=1),
        limited=True,
        during_s=OUTAGE_S,
        promises=(
            *WITHIN_LIMITS,
            within_the_limit(0.10),
            one_line_an_outage(routers=1),
            degraded_seen(1),
            fault_hit(CUT.name),
        ),
    ),
    Drill(
        id="F18",
        title="the store is killed",
        hypothesis="SIGKILL of Redis: the first decision takes 60 ms at most and the others 1 ms, two routers together "
        "let in at most 10 % more than the limit within any 60 s, no Critical request is refused for it, nobody sees "
        "a 5xx, and each router says it once; started again, empty, it costs one limit more at most.",
        fault=_kill,
        heal=_start_again,
        victims=(),
        routers=ROUTERS,
        store=StoreShape(kind="redis"),
        limited=True,
        during_s=OUTAGE_S,
        promises=(*OUTAGE, within_the_limit(0.10, extra_limits=1), fault_hit("SIGKILL")),
    ),
    Drill(
        id="F19",
        title="the store freezes",
        hypothesis="SIGSTOP of Redis, connections open and nothing answering: as when it is killed.",
        fault=_freeze,
        heal=_thaw,
        victims=(),
        routers=ROUTERS,
        store=StoreShape(kind="redis"),
        limited=True,
        during_s=OUTAGE_S,
        promises=(*OUTAGE, within_the_limit(0.10), fault_hit("SIGSTOP")),
    ),
    Drill(
        id="F19s",
        title="the store is slow",
        hypothesis="200 ms on the way to and from Redis: as when it is killed, for slow is as bad as gone.",
        fault=_slow,
        heal=_hurry,
        victims=(),
        routers=ROUTERS,
        store=StoreShape(kind="redis", proxied=ROUTERS),
        limited=True,
        during_s=OUTAGE_S,
        promises=(*OUTAGE, within_the_limit(0.10), fault_hit(SLOW.name)),
    ),
    Drill(
        id="F20",
        title="the store forgets everything",
        hypothesis="FLUSHALL and SCRIPT FLUSH: at most one limit is let in on top, and nothing goes wrong.",
        fault=_flush,
        heal=_nothing,
        victims=(),
        routers=ROUTERS,
        store=StoreShape(kind="redis"),
        limited=True,
        promises=(
            *WITHIN_LIMITS,
            within_the_limit(0.05, extra_limits=1),
            one_line_an_outage(routers=0),
            figure_at_least(FORGOTTEN, 3.0),
        ),
    ),
    Drill(
        id="F21",
        title="the store fails over",
        hypothesis="SIGKILL of the primary with a replica and a sentinel beside it: limits are shared again within "
        "5 s, and at most 5 % more than the limit is let in.",
        fault=_kill,
        heal=_nothing,
        victims=(),
        routers=ROUTERS,
        store=StoreShape(kind="sentinel"),
        limited=True,
        promises=(
            *WITHIN_LIMITS,
            within_the_limit(0.05),
            decided_at_once(0.060, 0.001, returns=True),
            one_line_an_outage(routers=ROUTERS),
            degraded_seen(ROUTERS),
            whole_again_within(5.0),
            fault_hit("SIGKILL"),
        ),
    ),
)
