"""Whatever operators say to whichever router, and however the store comes and goes: in the end all routers agree."""

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gir.admit.ports import StoreError
from gir.control import changes
from gir.control.changes import Change, Seen, SupersededError, Voice
from gir.control.orders import Kept
from gir.model.orders import decode
from gir.stores.orders_memory import MemoryOrders
from tests.support.orders import Desk, ShakyOrders
from tests.unit.test_orders import RULE

ROUTERS = 3
AT_ONCE = ("drain", "serve", "weight", "abort", "condemn", "stage")
DEEDS = (*AT_ONCE, "promote", "start", "away", "back", "look", "empty")
STEPS = st.lists(
    st.tuples(st.integers(0, ROUTERS - 1), st.sampled_from(DEEDS), st.sampled_from(["eu-1", "us-1"])), max_size=40
)


def change_of(what: str, cluster: str, desk: Desk, at_s: float) -> Change:
    """What somebody at this desk would say, by what is known there."""
    voice, held = Voice("ann", at_s), desk.orders.canaries.get("next")
    seen = Seen(
        rule=RULE,
        launched=False,
        run=held.run if held else 0,
        state=held.state if held else "running",
        began_unix_s=1.0,
    )
    match what:
        case "weight":
            return changes.cluster(cluster, None, voice, weight=0.5)
        case "abort":
            return changes.abort(seen, voice, "")
        case "condemn":
            return changes.condemn(seen, voice, "slow")
        case "stage":
            return changes.advance(seen, voice, 1)
        case "promote":
            return changes.promote(seen, voice)
        case "start":
            return changes.start(seen, voice)
        case _:
            return changes.cluster(cluster, None, voice, intent="drain" if what == "drain" else "serve")


async def play(steps: list[tuple[int, str, str]]) -> None:
    store = MemoryOrders()
    views = [ShakyOrders(store) for _ in range(ROUTERS)]
    desks = [Desk(view) for view in views]
    for at_s, (number, what, cluster) in enumerate(steps, start=1):
        desk, view = desks[number], views[number]
        if what in ("away", "back"):
            view.away = what == "away"
        elif what == "empty":
            store._kept = Kept()
        elif what == "look":
            await desk.look()
        else:
            change = change_of(what, cluster, desk, float(at_s))
            try:
                with contextlib.suppress(SupersededError):
                    await desk.change(change)
            except StoreError:
                if what in AT_ONCE:
                    desk.insist(change)
    for view in views:
        view.away = False
    for _ in range(ROUTERS + 1):
        for desk in desks:
            await desk.look()
    agreed = decode(store._kept.text)
    for desk in desks:
        assert (desk.orders, desk.untold, desk.trouble) == (agreed, 0, "")
        assert desk.version == store._kept.version
        for before, after in zip(desk.followed, desk.followed[1:], strict=False):
            was, now = before.canaries.get("next"), after.canaries.get("next")
            if was is not None and now is not None and was.run == now.run and was.state != "running":
                assert now.state != "running", "a run went back to running"


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_routers_agree_in_the_end(steps: list[tuple[int, str, str]]) -> None:
    asyncio.run(play(steps))
