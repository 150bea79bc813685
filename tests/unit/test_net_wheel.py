"""The timer wheel: nothing fires early, nothing more than a slot late, and moving a deadline away costs nothing."""

import asyncio

import pytest

from gir.clock import ManualClock
from gir.net.wheel import HORIZON_S, SLOT_S, Wheel


class Item:
    """Fires at `due_s`; remembers when."""

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.fired_at_s: float | None = None
        self.looks = 0
        self.wheel_slot = 0

    def check(self, now_s: float) -> float | None:
        self.looks += 1
        if now_s < self.due_s:
            return self.due_s
        self.fired_at_s = now_s
        return None


def turn(wheel: Wheel, clock: ManualClock, until_s: float, step_s: float = 0.01) -> None:
    """Let time pass in small steps, as a loop would."""
    while clock.monotonic_s() < until_s:
        clock.advance_s(step_s)
        wheel.run(clock.monotonic_s())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_s=100.0)


@pytest.fixture
async def wheel(clock: ManualClock) -> Wheel:
    return Wheel(clock)


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.3, 1.99, 2.0, 7.77, 30.0])
async def test_a_deadline_fires_within_a_slot_of_its_time(wheel: Wheel, clock: ManualClock, after_s: float) -> None:
    item = Item(100.0 + after_s)
    wheel.watch(item, item.due_s)
    turn(wheel, clock, item.due_s + 0.2)
    assert item.fired_at_s is not None
    assert item.due_s <= item.fired_at_s <= item.due_s + SLOT_S + 0.011
    wheel.close()


async def test_a_deadline_moved_away_is_found_moved(wheel: Wheel, clock: ManualClock) -> None:
    item = Item(101.0)
    wheel.watch(item, item.due_s)
    item.due_s = 105.0
    turn(wheel, clock, 104.9)
    assert item.fired_at_s is None
    turn(wheel, clock, 105.2)
    assert item.fired_at_s is not None
    wheel.close()


async def test_a_deadline_moved_closer_is_met_when_the_wheel_is_told(wheel: Wheel, clock: ManualClock) -> None:
    item = Item(130.0)
    wheel.watch(item, item.due_s)
    item.due_s = 100.4
    wheel.watch(item, item.due_s)
    turn(wheel, clock, 100.5)
    assert item.fired_at_s is not None
    looks = item.looks
    turn(wheel, clock, 140.0, step_s=0.5)
    assert item.looks == looks, "the slot it left must not look at it again"
    wheel.close()


async def test_far_deadlines_are_looked_at_rarely_but_never_less_than_each_horizon(
    wheel: Wheel, clock: ManualClock
) -> None:
    item = Item(160.0)
    wheel.watch(item, clock.monotonic_s() + HORIZON_S)
    turn(wheel, clock, 159.0)
    assert 59.0 / HORIZON_S - 2 <= item.looks <= 59.0 / HORIZON_S + 2
    wheel.close()


async def test_an_item_that_wants_to_be_seen_at_once_does_not_spin(wheel: Wheel, clock: ManualClock) -> None:
    class Eager(Item):
        def check(self, now_s: float) -> float | None:
            self.looks += 1
            return now_s

    item = Eager(0.0)
    wheel.watch(item, clock.monotonic_s())
    turn(wheel, clock, 101.0)
    assert item.looks <= 1.0 / SLOT_S + 1
    wheel.close()


async def test_an_item_that_left_is_not_looked_at(wheel: Wheel, clock: ManualClock) -> None:
    item = Item(100.5)
    wheel.watch(item, item.due_s)
    item.wheel_slot = 0
    turn(wheel, clock, 102.0)
    assert item.looks == 0
    wheel.close()


async def test_an_item_that_breaks_is_reported_and_the_others_go_on(wheel: Wheel, clock: ManualClock) -> None:
    class Broken(Item):
        def check(self, now_s: float) -> float | None:
            raise ZeroDivisionError

    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    broken, sound = Broken(100.5), Item(100.5)
    wheel.watch(broken, 100.5)
    wheel.watch(sound, 100.5)
    turn(wheel, clock, 101.0)
    assert sound.fired_at_s is not None
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]
    wheel.close()


@pytest.mark.looptime
async def test_the_loop_wakes_the_wheel_and_an_empty_wheel_sleeps() -> None:
    class LoopClock(ManualClock):
        def monotonic_s(self) -> float:
            return asyncio.get_running_loop().time()

    wheel = Wheel(LoopClock())
    start_s = asyncio.get_running_loop().time()
    early, late = Item(start_s + 0.5), Item(start_s + 20.0)
    wheel.watch(late, late.due_s)
    wheel.watch(early, early.due_s)
    await asyncio.sleep(30.0)
    assert early.fired_at_s is not None
    assert early.fired_at_s <= start_s + 0.6
    assert late.fired_at_s is not None
    assert late.fired_at_s <= start_s + 20.1
    assert not wheel._slots
    assert wheel._timer is None
    wheel.close()
