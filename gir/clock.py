"""The only door to time and chance.

Everything that needs "now", a pause or a random draw takes a `Clock`, so the same code runs in production, under
virtual time in tests and inside the seeded simulator. Durations come from `monotonic_s` only; `wall_s` is for
what a human or another system reads (log stamps, token expiry) and never for deciding whether something is late.
"""

import asyncio
import random
import time
from typing import Protocol


class Clock(Protocol):
    """Time and chance as the rest of the code sees them."""

    @property
    def random(self) -> random.Random:
        """Source of chance: jitter, random ties, ids. Seeded in tests."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never steps; its zero means nothing."""

    def wall_s(self) -> float:
        """Seconds since the Unix epoch; may step at any time."""

    async def sleep_s(self, duration_s: float) -> None:
        """Pause the calling task for `duration_s` seconds (negative counts as zero)."""


class SystemClock:
    """The real clock of this process."""

    __slots__ = ("random",)

    def __init__(self, seed: int | None = None) -> None:
        self.random = random.Random(seed)

    # The functions themselves: a request reads the clock a dozen times, and a frame around each would cost more.
    monotonic_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)

    async def sleep_s(self, duration_s: float) -> None:
        await asyncio.sleep(max(0.0, duration_s))


class ManualClock:
    """A clock that moves only when told to: for pure tests and the simulator."""

    __slots__ = ("_monotonic_s", "_wall_s", "random")

    def __init__(self, *, monotonic_s: float = 1_000.0, wall_s: float = 1_800_000_000.0, seed: int = 0) -> None:
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self.random = random.Random(seed)

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def wall_s(self) -> float:
        return self._wall_s

    def advance_s(self, duration_s: float) -> None:
        """Move both clocks forward; raises ValueError on a negative step of monotonic time."""
        if duration_s < 0:
            raise ValueError(f"duration_s is {duration_s}: monotonic time never goes back; pass a step >= 0")
        self._monotonic_s += duration_s
        self._wall_s += duration_s

    def step_wall_s(self, step_s: float) -> None:
        """Shift wall time alone, either way, as an operator or NTP would."""
        self._wall_s += step_s

    async def sleep_s(self, duration_s: float) -> None:
        """Advance at once: a manual clock has nobody else to wait for."""
        self.advance_s(max(0.0, duration_s))
        await asyncio.sleep(0)
