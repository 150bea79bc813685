"""The one conversation between this replica and the store.

Requests never talk to the store themselves: they leave a question and wait for the next turn. So there is at most one
round trip under way, it carries everybody's questions, and a request that is cancelled leaves no half-read answer on a
connection, because it owns none.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from gir.admit.breaker import StoreBreaker
from gir.admit.lease import RateLease
from gir.admit.ports import Census, Claim, LimitStore, LocalLimitStore, Replies, StoreError, Take
from gir.admit.rules import Counters
from gir.admit.slots import SlotLease
from gir.clock import Clock

FLUSH_S = 0.05
"""Corrections wait this long for company."""
TICK_S = 0.25
SWEEP_COUNT = 500
"""Counters looked at in one tick: bounded, so that many counters never hold up the loop."""
HEARTBEAT_S = 2.0
REPLICA_TTL_S = 6.0
ABSENT_S = 600.0
"""How long the share of a replica that fell silent is kept for it: crashed, or cut off from the store and serving."""


class LimitObserver(Protocol):
    """What operators see of the store."""

    def store_changed(self, up: bool, reason: str, lasted_s: float) -> None:
        """The store went away or came back; `lasted_s` is how long the state before held. Once for each change."""

    def store_called(self, took_s: float, ok: bool) -> None:
        """One round trip ended."""


class SilentLimitObserver:
    """Sees nothing: for tests and tools."""

    def store_changed(self, up: bool, reason: str, lasted_s: float) -> None:
        """Ignore."""

    def store_called(self, took_s: float, ok: bool) -> None:
        """Ignore."""


class Pump:
    """Collects questions, asks them in one round trip, and tells whoever waits that the answers are in."""

    def __init__(
        self,
        store: LimitStore,
        counters: Counters,
        *,
        replica: str,
        clock: Clock,
        observer: LimitObserver,
        on_census: Callable[[Census], None],
    ) -> None:
        self.breaker = StoreBreaker(clock.monotonic_s(), up=isinstance(store, LocalLimitStore))
        self.calls = 0
        """Round trips that carried questions."""
        self._store = store
        self._counters = counters
        self._replica = replica
        self._clock = clock
        self._observer = observer
        self._on_census = on_census
        self._needs: dict[RateLease, int] = {}
        """Smallest need of those that wait for a counter: what the store must grant for anybody to go on."""
        self._claims: dict[SlotLease, None] = {}
        self._notes: dict[RateLease | SlotLease, None] = {}
        self._urgent = asyncio.Event()
        self._turn: asyncio.Future[None] | None = None
        self._heartbeat_at_s = 0.0
        self._life = ""
        """Of the store that answered last."""

    def __repr__(self) -> str:
        return f"<Pump {self.breaker!r}, {self.calls} calls, {len(self._notes)} notes>"

    def need(self, lease: RateLease, units: int) -> None:
        """Somebody waits for `units` of `lease`."""
        self._needs[lease] = min(units, self._needs.get(lease, units))
        self._urgent.set()

    def place(self, lease: SlotLease) -> None:
        """Somebody waits for a place of `lease`."""
        self._claims[lease] = None
        self._urgent.set()

    def refill(self, lease: RateLease) -> None:
        """`lease` runs low: draw more before anybody has to wait."""
        if lease not in self._needs:
            self._needs[lease] = 1
            self._urgent.set()

    def note(self, lease: RateLease | SlotLease) -> None:
        """The store should hear about `lease`, with the next question or in FLUSH_S."""
        self._notes[lease] = None

    def turn(self) -> asyncio.Future[None]:
        """Done when questions left until now have been answered, or have failed."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().create_future()
        return self._turn

    async def run(self) -> None:
        """Talk until cancelled."""
        await self._heartbeat()
        while True:
            await self._pause()
            now_s = self._clock.monotonic_s()
            if self.breaker.up:
                for lease in self._counters.sweep(now_s, SWEEP_COUNT):
                    self._notes[lease] = None
                await self.exchange()
            await self._heartbeat()

    async def _pause(self) -> None:
        if self.breaker.up and (self._needs or self._claims):
            return
        self._urgent.clear()
        try:
            async with asyncio.timeout(FLUSH_S if self._notes else TICK_S):
                await self._urgent.wait()
        except TimeoutError:
            return

    async def exchange(self) -> None:
        """One round trip with everything there is to ask; nothing to ask, no trip."""
        now_s = self._clock.monotonic_s()
        takes, claims = self._questions(now_s)
        turn, self._turn = self._turn, None
        try:
            if takes or claims:
                self.calls += 1
                replies = await self._store.exchange([take for _, take in takes], [claim for _, claim in claims])
                self._observer.store_called(self._clock.monotonic_s() - now_s, True)
                self._answered(takes, claims, replies)
        except StoreError as error:
            self._observer.store_called(self._clock.monotonic_s() - now_s, False)
            for lease, take in takes:
                lease.lost(take)
            self._failed(error)
        finally:
            _done(turn)

    def _questions(self, now_s: float) -> tuple[list[tuple[RateLease, Take]], list[tuple[SlotLease, Claim]]]:
        needs, places, notes = self._needs, self._claims, self._notes
        self._needs, self._claims, self._notes = {}, {}, {}
        for lease in notes:
            if isinstance(lease, SlotLease):
                places[lease] = None
            else:
                needs.setdefault(lease, 0)
        takes = [(lease, lease.draw(now_s, need)) for lease, need in needs.items()]
        return takes, [(lease, lease.claim(self._replica)) for lease in places]

    def _answered(
        self, takes: list[tuple[RateLease, Take]], claims: list[tuple[SlotLease, Claim]], replies: Replies
    ) -> None:
        now_s = self._clock.monotonic_s()
        forgotten = self._life not in ("", replies.life)
        self._life = replies.life
        if forgotten:
            asked = {rate for rate, _ in takes}
            for rate in self._counters.rates.values():
                if rate not in asked:
                    rate.retell(None, rate.in_hand, now_s)
        for (rate, take), units in zip(takes, replies.taken, strict=True):
            in_hand = rate.in_hand
            rate.drew(take, units, now_s)
            if forgotten:
                rate.retell(take, in_hand, now_s)
        for (slot, claim), places in zip(claims, replies.claimed, strict=True):
            slot.claimed(claim, places, now_s)
        if forgotten:
            self._tell_again()

    def _tell_again(self) -> None:
        """Leave a note for everything that a store without memory should know."""
        for rate in self._counters.rates.values():
            if rate.owed:
                self._notes[rate] = None
        for slot in self._counters.slots.values():
            if slot.held:
                self._notes[slot] = None

    async def leave(self) -> None:
        """Say that this replica is gone for good, if the store can be had: nobody then keeps a share for it."""
        if self.breaker.up:
            with contextlib.suppress(StoreError):
                _ = await self._store.census(self._replica, REPLICA_TTL_S, 0.0)

    async def _heartbeat(self) -> None:
        now_s = self._clock.monotonic_s()
        due_s = self._heartbeat_at_s if self.breaker.up else self.breaker.probe_at_s
        if now_s < due_s:
            return
        self._heartbeat_at_s = now_s + HEARTBEAT_S
        try:
            if not self.breaker.up:
                await self._store.connect()
            census = await self._store.census(self._replica, REPLICA_TTL_S, ABSENT_S)
        except StoreError as error:
            self._failed(error)
            return
        now_s = self._clock.monotonic_s()
        lasted_s = now_s - self.breaker.since_s
        if self.breaker.succeeded(now_s):
            self._observer.store_changed(True, "", lasted_s)
        self._on_census(census)

    def _failed(self, error: StoreError) -> None:
        now_s = self._clock.monotonic_s()
        lasted_s = now_s - self.breaker.since_s
        if self.breaker.failed(str(error), now_s, self._clock.random.random()):
            self._observer.store_changed(False, str(error), lasted_s)
        # Whoever came while the failing call was under way must not wait for an exchange that will not take place.
        self._needs.clear()
        self._claims.clear()
        turn, self._turn = self._turn, None
        _done(turn)


def _done(turn: asyncio.Future[None] | None) -> None:
    if turn is not None and not turn.done():
        turn.set_result(None)
