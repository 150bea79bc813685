"""One rate counter as this replica sees it: the units in hand, drawn from the store ahead of need. Pure.

Units are counted by the store when they are drawn, so what replicas hold unspent is all by which they can overshoot
together; it is kept below AHEAD_SHARE of the limit over all replicas. Small limits draw nothing ahead and are exact.
While the store is away the same object judges alone, from its own record of the last window.
"""

import enum

from gir.admit.meter import Meter
from gir.admit.ports import SEGMENTS, Rate, Take, Taken

AHEAD_SHARE = 0.04
"""Most of a limit that all replicas together hold unspent. With rounding it keeps the overshoot under 5 %."""
AHEAD_S = 0.2
"""Seconds of recent demand drawn ahead."""
LARGE = 65_536
"""A store in this process is asked ahead of need only for limits from here on, and then for a 1,024th of them."""
EXACT_MAX = 20
"""Limits up to this are exact: one unit at a time."""
FRESH_S = 5.0
"""Counters in use are heard of at least this often."""
HOLD_S = 1.0
"""Unspent units go back to the store after this long without demand."""
DENIED_S_MIN, DENIED_S_MAX = 0.03, 1.0
"""After a refusal the store is not asked again sooner than this, nor believed longer than that."""


class Within(enum.Enum):
    """What bounds a replica that judges alone."""

    SHARE = "share"
    WHOLE = "whole"
    """The whole limit: for Critical requests, which nobody may refuse only because the store is away."""
    NOTHING = "nothing"


class RateLease:
    """Units in hand of one counter. `local` when the store is in this process: next to nothing is drawn ahead."""

    __slots__ = (
        "_cap_at_loss", "_demand_per_s", "_denied_need", "_denied_until_s", "_drawn", "_heard_s", "_loss",
        "_own", "_shift", "_since_s", "_spent", "_used_s", "absent", "absent_since_s", "in_hand", "key", "live",
        "local", "owed", "rate", "remaining", "reset_at_s", "retry_at_s", "stamp", "waiting",
    )  # fmt: skip

    def __init__(self, key: str, rate: Rate, *, local: bool, now_s: float) -> None:
        self.key = key
        self.rate = rate
        self.local = local
        self.live = 1
        """Replicas that share the limit."""
        self.absent = 0
        """Those of them that fell silent. They may be serving by their share, so it is left to them."""
        self.absent_since_s = 0.0
        self.in_hand = 0
        self.stamp = 0
        """Store segment that the units in hand are counted in."""
        self.owed: dict[int, int] = {}
        """By stamp, what the store has still to be told: see `Take.owed`."""
        self.waiting = 0
        """Units that waiting requests need."""
        self.remaining = rate.limit
        """Units nobody had taken when the store last answered."""
        self.reset_at_s = 0.0
        self.retry_at_s = 0.0
        """When the store expects to have what it last refused."""
        self._denied_until_s = 0.0
        self._denied_need = 0
        self._loss = 0
        """Number of the outage that `_cap_at_loss` belongs to."""
        self._cap_at_loss = 0.0
        self._own = Meter()
        """What this replica spent in the last window."""
        self._shift: int | None = None
        """Store segment minus own segment."""
        self._drawn = 0
        self._spent = 0
        self._demand_per_s = 0.0
        self._since_s = now_s
        self._used_s = now_s
        self._heard_s = now_s

    def __repr__(self) -> str:
        return f"<RateLease {self.key} {self.in_hand} in hand, {self.remaining} left of {self.rate.limit}>"

    def _segment(self, now_s: float) -> int:
        return int(now_s * SEGMENTS / self.rate.window_s)

    @property
    def left(self) -> int:
        """Units that could still be had, as far as this replica knows."""
        left = self.remaining + self.in_hand
        if self.owed:
            left -= sum(self.owed.values())
        return max(0, left)

    def change(self, rate: Rate) -> None:
        """Take over other numbers: what was left moves by as much, and what was refused under the old may be asked."""
        if rate == self.rate:
            return
        self.remaining = max(0, self.remaining + rate.limit - self.rate.limit)
        self._denied_until_s = self.retry_at_s = 0.0
        self.rate = rate

    def low(self, now_s: float) -> bool:
        """Whether it is time to draw more, before the units drawn ahead run out."""
        return 2 * self.in_hand < self._drawn and now_s >= self._denied_until_s

    def denies(self, units: int, now_s: float) -> bool:
        """Whether the store refused as much a moment ago, so that asking again is pointless."""
        return now_s < self._denied_until_s and units >= self._denied_need

    def spend(self, units: int, now_s: float) -> int:
        """Use `units` of those in hand and return their stamp. The caller has made sure that they are there."""
        self.in_hand -= units
        self._spent += units
        self._used_s = now_s
        if not self.local:
            self._own.add(self._segment(now_s), units)
        return self.stamp

    def give_back(self, stamp: int, units: int, now_s: float) -> None:
        """`units` spent under `stamp` were not used after all (negative: more was used)."""
        if units == 0:
            return
        if self.local:
            self.owed[stamp] = self.owed.get(stamp, 0) - units
            return
        shift = self._shift or 0
        fresh = 0 <= self._segment(now_s) + shift - stamp <= 1
        if fresh and 0 < units <= self.ahead_max - self.in_hand:
            self.in_hand += units
            self._used_s = now_s
        else:
            self.owed[stamp] = self.owed.get(stamp, 0) - units
        self._own.add(min(stamp - shift, self._segment(now_s)), -units)

    def draw(self, now_s: float, need: int) -> Take:
        """The question to put to the store: `need` now, and what recent demand will use soon."""
        owed: tuple[tuple[int, int], ...] = ()
        if self.owed:
            owed = tuple(sorted(self.owed.items()))
            self.owed.clear()
        lacking = max(0, need - self.in_hand)
        if self.local:
            self._used_s = now_s
            return Take(self.key, self.rate, lacking, lacking + self.ahead_max, owed)
        elapsed_s = now_s - self._since_s
        if elapsed_s > 0.0:
            share = min(1.0, elapsed_s / AHEAD_S)
            self._demand_per_s += share * ((self._spent + self.waiting) / max(elapsed_s, 0.01) - self._demand_per_s)
            self._since_s, self._spent = now_s, 0
        ahead = min(int(self._demand_per_s * AHEAD_S), self.ahead_max - self.in_hand)
        want = max(lacking, self.waiting - self.in_hand) + max(0, ahead)
        return Take(self.key, self._left_to_us(now_s) if self.absent else self.rate, lacking, want, owed)

    def _left_to_us(self, now_s: float) -> Rate:
        """The limit without the shares of those who fell silent. They take effect over one window, as fast as what the
        silent have taken from the store leaves it."""
        passed = min(1.0, (now_s - self.absent_since_s) / self.rate.window_s)
        limit = max(1, int(self.rate.limit * (1.0 - self.absent / self.live * passed)))
        return Rate(limit, self.rate.window_s, min(self.rate.burst, limit))

    @property
    def ahead_max(self) -> int:
        """Most units this replica may hold unspent."""
        if self.local:
            limit = min(self.rate.limit, self.rate.burst)
            return limit // 1_024 if limit >= LARGE else 0
        if self.rate.limit <= EXACT_MAX:
            return 0
        return int(AHEAD_SHARE * min(self.rate.limit, self.rate.burst) / self.live)

    def drew(self, take: Take, taken: Taken, now_s: float) -> None:
        """Take in the store's answer."""
        if taken.units == 0 and take.want > 0:
            self.retry_at_s = now_s + taken.retry_after_s
            self._denied_until_s = now_s + min(max(taken.retry_after_s, DENIED_S_MIN), DENIED_S_MAX)
            self._denied_need = self.in_hand + max(take.need, 1)
        self.in_hand += taken.units
        self.remaining = taken.remaining
        self.reset_at_s = now_s + taken.reset_s
        if taken.units > 0:
            self.stamp = taken.stamp
        if not self.local:
            self._heard_s = now_s
            self._shift = taken.stamp - self._segment(now_s)
            if taken.units > 0:
                self._drawn = max(0, min(self.in_hand - self.waiting, self.ahead_max))

    def lost(self, take: Take) -> None:
        """The store did not answer. Charges are told again; what was to be given back is forfeited.

        The question may have been heeded. Telling a charge twice or a refund never errs on the side of the limit.
        """
        for stamp, units in take.owed:
            if units > 0:
                self.owed[stamp] = self.owed.get(stamp, 0) + units

    def retell(self, told: Take | None, in_hand: int, now_s: float) -> None:
        """The store has forgotten everything: owe it what this replica used in the last window, and what it holds.

        `told` is the first question the new store answered: its charges are known there, and so are the units it
        brought. `in_hand` are those from before.
        """
        if self.local or self._shift is None:
            return
        segment = self._segment(now_s)
        self._own.expire(segment)
        owed = {number + self._shift: units for number, units in self._own.by_segment()}
        for stamp, units in told.owed if told is not None else ():
            if units > 0:
                owed[stamp] = owed.get(stamp, 0) - units
        stamp = segment + self._shift
        owed[stamp] = owed.get(stamp, 0) + in_hand
        self.owed = {stamp: units for stamp, units in owed.items() if units}

    def trim(self, keep: int) -> None:
        """Put what is in hand beyond `keep` among what the store has still to be told."""
        surplus = self.in_hand - keep
        if surplus > 0:
            self.owed[self.stamp] = self.owed.get(self.stamp, 0) - surplus
            self.in_hand = keep

    def trim_surplus(self) -> None:
        """Put back what neither waiting requests nor recent demand will use."""
        self.trim(self.ahead_max + self.waiting)

    def stale(self, now_s: float) -> bool:
        """Whether a counter in use has not been heard of for a while: what others use must be known in an outage."""
        return now_s - self._heard_s >= FRESH_S and now_s - self._used_s < self.rate.window_s

    def idle(self, now_s: float) -> bool:
        """Return unspent units when there is no demand. True when nothing is left to say or to remember."""
        if now_s - self._used_s >= HOLD_S and self.waiting == 0:
            self.trim(0)
            self._drawn = 0
        else:
            self.trim_surplus()
        return not self.owed and self.waiting == 0 and now_s - self._used_s > 2 * self.rate.window_s

    def spend_alone(self, units: int, now_s: float, *, loss: int, within: Within) -> int | None:
        """Judge without the store, in its `loss`-th outage; the stamp, or None when this replica's share is used up.

        The share begins at what this replica used in the last window plus its part of what was left, and ends at
        limit / live replicas. Those with more shrink over the first window of the outage; those with less grow over
        the second, when what the others gave up has left every window. So the sum over all replicas is never above
        the limit, also when one of them had most of the traffic.
        """
        segment = self._segment(now_s)
        self._own.expire(segment)
        if loss != self._loss:
            self._loss = loss
            self._since_s = now_s
            self._cap_at_loss = self._own.total + self.in_hand + self.remaining / self.live
            self.trim(0)
        if within is Within.SHARE:
            change = self.rate.limit / self.live - self._cap_at_loss
            windows = (now_s - self._since_s) / self.rate.window_s
            cap = self._cap_at_loss + change * min(max(windows - (change > 0), 0.0), 1.0)
        else:
            cap = float("inf") if within is Within.NOTHING else self.rate.limit
        if self._own.total + units > max(1.0, cap):
            self.retry_at_s = now_s + self.rate.window_s / SEGMENTS
            return None
        self._own.add(segment, units)
        self._used_s = now_s
        stamp = segment + (self._shift or 0)
        self.owed[stamp] = self.owed.get(stamp, 0) + units
        while len(self.owed) > 2 * SEGMENTS:
            del self.owed[min(self.owed)]
        return stamp
