"""Coarse timers for many connections.

A timer per request costs more than parsing it. Here every connection sits in one slot of a wheel and is looked at when
the slot comes up; moving a deadline away is then a plain assignment, and only moving it closer touches the wheel.
Deadlines fire at most one slot late.
"""

import asyncio
import heapq
import math
from typing import Protocol

from gir.clock import Clock

SLOT_S = 0.05
HORIZON_S = 2.0
"""Longest time between two looks at an item; progress (bytes moved since the last look) is judged at this grain."""


class Timed(Protocol):
    """Something with deadlines. `wheel_slot` belongs to the wheel; 0 means "in no slot"."""

    wheel_slot: int

    def check(self, now_s: float) -> float | None:
        """Act on deadlines that have passed; when to look again at the latest, or None to leave the wheel."""


class Wheel:
    """Calls `check` of its items in time. One per server or pool; asleep while empty."""

    __slots__ = ("_clock", "_slots", "_timer", "_upcoming")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[int, list[Timed]] = {}
        self._upcoming: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, item: Timed, due_s: float) -> None:
        """Look at `item` no later than `due_s` (monotonic), one slot's width aside."""
        slot = math.ceil(due_s / SLOT_S)
        if item.wheel_slot and item.wheel_slot <= slot:
            return
        item.wheel_slot = slot
        items = self._slots.get(slot)
        if items is not None:
            items.append(item)
            return
        self._slots[slot] = [item]
        heapq.heappush(self._upcoming, slot)
        if self._upcoming[0] == slot:
            self._arm()

    def run(self, now_s: float) -> None:
        """Look at everything that is due at `now_s`."""
        while self._upcoming and self._upcoming[0] * SLOT_S <= now_s:
            slot = heapq.heappop(self._upcoming)
            for item in self._slots.pop(slot):
                if item.wheel_slot != slot:
                    continue  # moved to an earlier slot meanwhile, or gone
                item.wheel_slot = 0
                try:
                    again_s = item.check(now_s)
                except Exception as error:  # noqa: BLE001 - one broken item must not stop the clock for the others
                    _report(item, error)
                    continue
                if again_s is not None:
                    # Never into the slot that is running: that would spin.
                    self.watch(item, max(min(again_s, now_s + HORIZON_S), now_s + SLOT_S))

    def close(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._upcoming.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, self._upcoming[0] * SLOT_S - self._clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.run(self._clock.monotonic_s())
        if self._upcoming and self._timer is None:
            self._arm()


def _report(item: Timed, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": f"deadline check of {item!r}", "exception": error})
