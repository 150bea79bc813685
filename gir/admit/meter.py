"""One rate counter: GCRA for the pace, a segmented window for the sum. Pure; `now_s` must not go back.

GCRA alone cannot keep both promises a limit of N a minute makes. With a burst of N it lets 2N through in the worst
minute; with a small burst it refuses a client that has been silent and now sends five requests at once. So two tests
must pass, and each does what it is good at:

- window: units taken in the last `window_s` seconds <= limit, in *any* window, counted in SEGMENTS pieces;
- GCRA (virtual scheduling): tat' = max(now, tat) + n * T <= now + burst * T, with T = window_s / limit.

With burst = limit, the default, the window test implies the other, which is then left out (and a raised limit takes
effect at once); a smaller burst spreads the limit over the minute.
`gir/stores/exchange.lua` is the same algorithm, line for line, on Redis.
"""

from collections.abc import Iterable

from gir.admit.ports import SEGMENTS, Rate, Taken

_EPSILON = 1e-6


class Meter:
    """Units taken lately, by segment, and the theoretical arrival time."""

    __slots__ = ("_segments", "_tat_s", "total")

    def __init__(self) -> None:
        self._segments: dict[int, int] = {}
        """Units by segment number, in ascending order."""
        self._tat_s = 0.0
        self.total = 0
        """Units in the window, as of the last call."""

    def take(self, rate: Rate, need: int, want: int, now_s: float) -> Taken:
        """Take between `need` and `want` units, or none. See `Take`."""
        segment_s = rate.window_s / SEGMENTS
        segment = int(now_s / segment_s)
        self.expire(segment)
        interval_s = rate.window_s / rate.limit
        room = rate.limit - self.total
        backlog = 0.0
        if rate.burst < rate.limit:
            backlog = max(0.0, self._tat_s - now_s) / interval_s
            room = min(room, int(rate.burst - backlog + _EPSILON))
        units = 0 if room < need else min(room, want)
        if units > 0:
            self.add(segment, units)
            self._tat_s = (max(now_s, self._tat_s)) + units * interval_s
        retry_s = 0.0
        if units < need:
            paced_s = (backlog + need - rate.burst) * interval_s if rate.burst < rate.limit else 0.0
            retry_s = max(paced_s, self._frees_s(need - (rate.limit - self.total), segment_s) - now_s, 0.0)
        reset_s = (next(reversed(self._segments)) + SEGMENTS + 1) * segment_s - now_s if self.total else 0.0
        return Taken(units, segment, max(0, room - units), reset_s, retry_s)

    def correct(self, rate: Rate, owed: Iterable[tuple[int, int]], now_s: float) -> None:
        """Apply corrections, oldest first: see `Take.owed`. Those older than the window change nothing.

        A replica reckons stamps of its own use by its own clock and may be a segment ahead: that counts as now.
        """
        segment_s = rate.window_s / SEGMENTS
        segment = int(now_s / segment_s)
        self.expire(segment)
        interval_s = rate.window_s / rate.limit
        for reckoned, units in owed:
            stamp = min(reckoned, segment)
            if stamp >= segment - SEGMENTS:
                if units > 0:
                    self.add(stamp, units)
                else:
                    self._uncount(stamp, -units)
                started_s = max(self._tat_s, stamp * segment_s) if units > 0 else self._tat_s
                self._tat_s = started_s + units * interval_s

    def _uncount(self, stamp: int, units: int) -> None:
        """Uncount `units` of segment `stamp`, and what it does not hold of those before it, the newest first: units in
        hand may have been drawn a little at a time, and are given back under the stamp of the last draw.
        """
        for number in [number for number in reversed(self._segments) if number <= stamp]:
            taken = min(units, self._segments[number])
            self.add(number, -taken)
            units -= taken
            if units == 0:
                return

    def add(self, segment: int, units: int) -> None:
        """Count `units` (negative: uncount, never below zero) in `segment`."""
        segments = self._segments
        held = segments.get(segment)
        if held is None:
            late = bool(segments) and segment < next(reversed(segments))
            held = 0
        else:
            late = False
        changed = max(0, held + units)
        self.total += changed - held
        segments[segment] = changed
        if late:
            self._segments = dict(sorted(segments.items()))

    def expire(self, segment: int) -> None:
        """Forget what left the window that ends in `segment`."""
        segments = self._segments
        if segments and next(iter(segments)) < segment - SEGMENTS:
            for number in [number for number in segments if number < segment - SEGMENTS]:
                self.total -= segments.pop(number)

    def by_segment(self) -> list[tuple[int, int]]:
        """Units in the window by segment number, the oldest first."""
        return [(number, units) for number, units in self._segments.items() if units]

    def _frees_s(self, missing: int, segment_s: float) -> float:
        """When `missing` more units will have left the window."""
        if missing > 0:
            for number, units in self._segments.items():
                missing -= units
                if missing <= 0:
                    return (number + SEGMENTS + 1) * segment_s
        return 0.0
