"""A new version of a model that is worse than the old one, in clusters that serve both."""

import asyncio
from typing import Any

import msgspec

from chaos.canary_promises import Split, aborted_within, canary_failed, canary_was_slower, stable_users_untouched
from chaos.drill import Drill
from chaos.engine.faults import Fault
from chaos.evidence import samples
from chaos.fleet import get
from chaos.hits import fault_hit
from chaos.promises import ALWAYS, Promise
from chaos.stage import CANARY_MODEL, EXPERIMENT_MODEL, Stage
from gir.model.policy import CanaryRule
from gir.place.trial import Trial

USERS = 200
BOUND_S, REQUESTS_MAX = 30.0, 50
"""By then a bad canary is gone: in seconds, or in its requests, whichever comes first. Neither is scaled: requests do
not come faster in a shorter drill."""
PATIENCE_S = 15.0
RULE: dict[str, Any] = {
    "name": "next",
    "matches": [{"model": EXPERIMENT_MODEL}],
    "targets": [{"model": EXPERIMENT_MODEL, "weight": 80}, {"model": CANARY_MODEL, "weight": 20}],
    "guard": {},
}


def _drawn() -> frozenset[str]:
    """Users whom the rule sends to the canary: the draw is a stable hash."""
    trial = Trial(msgspec.convert(RULE, CanaryRule), 0.0, [])
    names = [f"user-{number}" for number in range(USERS)]
    return frozenset(name for name in names if trial.draw(f"experiment\0{name}".encode())[0])


SPLIT = Split(RULE["name"], CANARY_MODEL, _drawn())


async def _fail(stage: Stage) -> None:
    await stage.order(Fault(kind="status", name="bad", status=500, probability=0.5, seed=42), stage.canary_pods)
    await _begin(stage)


async def _slow(stage: Stage) -> None:
    await stage.order(Fault(kind="slow", name="slow", ttft=3.0, itl=3.0), stage.canary_pods)
    await _begin(stage)


async def _begin(stage: Stage) -> None:
    """Have the policy draw users to the canary, and wait until it no longer does."""
    stage.fleet.reload({"rewrites": [RULE]})
    begun, give_up_s = False, stage.clock.monotonic_s() + BOUND_S + PATIENCE_S
    while stage.clock.monotonic_s() < give_up_s:
        share = await asyncio.to_thread(_share, stage)
        if begun and not share:
            return
        begun = begun or share > 0.0
        await stage.clock.sleep_s(0.1)


def _share(stage: Stage) -> float:
    _, page = get(f"{stage.fleet.admin_url}/metrics")
    name = f'gir_canary_weight_ratio{{rule="{SPLIT.rule}",target="{SPLIT.canary}"}}'
    return samples(page.decode()).get(name, 0.0)


async def _mend(stage: Stage) -> None:
    await stage.relieve(stage.canary_pods)


def _promises(*hit: Promise) -> tuple[Promise, ...]:
    return (*ALWAYS, aborted_within(SPLIT, BOUND_S, REQUESTS_MAX), stable_users_untouched(SPLIT), *hit)


DRILLS = (
    Drill(
        id="F42",
        title="a new version fails half the time",
        hypothesis="A fifth of the users are drawn to a new version whose engines answer every other request 500: the "
        "guard sends everybody back within 30 s or 50 of its requests, and the others notice nothing.",
        fault=_fail,
        heal=_mend,
        canary=True,
        users=USERS,
        victims=("eu-1", "us-1"),
        during_s=20.0,
        promises=_promises(canary_failed(SPLIT, 0.3), fault_hit("bad", at_least=10)),
    ),
    Drill(
        id="F42s",
        title="a new version is three times as slow",
        hypothesis="As F42, with a new version whose engines answer well but take three times as long.",
        fault=_slow,
        heal=_mend,
        canary=True,
        users=USERS,
        victims=("eu-1", "us-1"),
        during_s=20.0,
        promises=_promises(canary_was_slower(SPLIT, 2.0)),
    ),
)
