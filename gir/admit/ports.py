"""What admission asks of a store of counters that all replicas share, in the words of admission.

Two kinds of counter. A *rate* hands out units that come back by themselves one window after they were taken. A *slot*
counter hands out places that are held: each replica says how many it wants to hold in all, so saying it twice does no
harm. Adapters live in `gir.stores`; one conformance suite runs against each.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

SEGMENTS = 60
"""Pieces a window is counted in. A unit comes back at most window / SEGMENTS late."""


class StoreError(Exception):
    """The store did not answer in time or not usefully. What was asked may or may not have happened."""


class Rate(msgspec.Struct, frozen=True):
    """At most `limit` units in any window of `window_s` seconds, at most `burst` of them at once."""

    limit: int
    window_s: float
    burst: int


class Take(msgspec.Struct, frozen=True):
    """Ask for units: at least `need`, or none at all; up to `want`.

    `owed` corrects the past first: (stamp, units) pairs, positive for units used that the store does not know of,
    negative for units taken and not used. A stamp is the one a `Taken` carried.
    """

    key: str
    rate: Rate
    need: int
    want: int
    owed: tuple[tuple[int, int], ...] = ()


class Taken(msgspec.Struct, frozen=True):
    """Answer to a `Take`."""

    units: int
    """0, or between need and want."""
    stamp: int
    """Segment of the store's clock the units were counted in."""
    remaining: int
    """Units that could be taken now."""
    reset_s: float
    """Seconds until nothing is counted any more."""
    retry_after_s: float
    """Seconds until `need` could be had, if nobody else asked; 0 when it was."""


class Claim(msgspec.Struct, frozen=True):
    """Set the places `replica` holds to `want`, or as many of them as are left. It lapses after `ttl_s`."""

    key: str
    limit: int
    replica: str
    want: int
    ttl_s: float


class Claimed(msgspec.Struct, frozen=True):
    """Answer to a `Claim`: places held by this replica from now on, and those nobody holds."""

    held: int
    free: int


class Replies(msgspec.Struct, frozen=True):
    """Answers in the order of the questions."""

    taken: Sequence[Taken] = ()
    claimed: Sequence[Claimed] = ()
    life: str = ""
    """Another than before: the store has forgotten everything in between (flush, restart, an empty successor)."""


class Census(msgspec.Struct, frozen=True):
    """What a heartbeat brings back."""

    live: int
    """Replicas heard of lately, this one included."""
    absent: int = 0
    """Replicas that fell silent without leaving: they may be serving by their own share, cut off from the store."""


class LimitStore(Protocol):
    """Counters shared by every replica."""

    async def connect(self) -> None:
        """Get ready: connections, handshakes. May take long; everything else must not. Raises StoreError."""

    async def exchange(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        """One round trip for all questions, in 50 ms or not at all. Raises StoreError."""

    async def census(self, replica: str, ttl_s: float, absent_s: float) -> Census:
        """Say that `replica` (name#id) lives; hear who else does. Raises StoreError.

        Who is silent for `ttl_s` is absent for `absent_s`, unless a newcomer of its name has taken its place meanwhile.
        `absent_s` 0: this one leaves for good.
        """

    async def close(self) -> None:
        """Give back connections."""


@runtime_checkable
class LocalLimitStore(LimitStore, Protocol):
    """Counters in this process: exact, never away, and no reason to draw ahead."""

    def exchange_now(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        """As `exchange`, at once."""
