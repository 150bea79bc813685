"""Who goes, who waits and who is shed when the fleet has less room than work. Pure: one object, `now_s` and room in.

Order in a pool (all clusters serving one model): Critical first, then Standard; inside a class tenants share by
tokens. A Sheddable request never waits and is let in only while nobody waits and slots are to spare, and not within
HOLD_OFF_S of a better request having been turned away (invariant I9). Part of the slots is kept for Critical requests;
those they already use count towards it, so nothing idles while they are there. A class that waits is not starved for
ever: a Standard request that has waited `aging_s` goes before Critical ones, once in each `aging_s`.

Waiting is for slots that will be free again. Who has nobody to wait for (every cluster gone, or asking to be left
alone) is told so within HOPELESS_S, as an arrival is at once.

Dispatch is reserved: a ticket that may go holds its slot until the placement has counted it (`taken`), so that many
waiters never race for one slot.
"""

import heapq
import math
from itertools import count

from gir.admit.backlog import Backlog
from gir.admit.fair import FairQueue
from gir.admit.ticket import (
    RETRY_S_MAX,
    RETRY_S_MIN,
    RETRY_S_UNKNOWN,
    Action,
    Changes,
    Reason,
    Refused,
    Room,
    State,
    Ticket,
    Verdict,
)
from gir.model.ids import ModelId
from gir.model.policy import FlowPolicy
from gir.model.request import Criticality

HOLD_OFF_S = 1.0
HOPELESS_S = 1.0
"""Longest wait while no cluster may serve the request at all: one that is back by then was worth waiting for."""
DRAIN_MEMORY_S = 10.0
_ADMIT = Verdict(Action.ADMIT)
_WAIT = Verdict(Action.WAIT)
_NOTHING = Changes()


class _Pool:
    """One pool: who waits, who runs, how fast it drains."""

    __slots__ = ("critical", "critical_running", "drain_per_s", "drained_s", "held_off_s", "reserved", "running",
                 "standard", "standard_served_s")  # fmt: skip

    def __init__(self, now_s: float) -> None:
        self.critical = FairQueue()
        self.standard = FairQueue()
        self.reserved = 0
        self.running = 0
        self.critical_running = 0
        """Critical tickets reserved or running here."""
        self.standard_served_s = now_s
        self.held_off_s = float("-inf")
        """Until when Sheddable requests are kept out because a better one was turned away."""
        self.drain_per_s = 0.0
        self.drained_s = now_s

    @property
    def waiting(self) -> int:
        return self.critical.count + self.standard.count

    def drained(self, now_s: float) -> None:
        """One request ended: update the drain rate, an average over DRAIN_MEMORY_S."""
        self.drain_per_s = self.rate(now_s) + 1.0 / DRAIN_MEMORY_S
        self.drained_s = now_s

    def rate(self, now_s: float) -> float:
        return self.drain_per_s * math.exp((self.drained_s - now_s) / DRAIN_MEMORY_S)


class FlowControl:
    """One per process. Every method says which waiting tickets it let go or turned away."""

    def __init__(self, policy: FlowPolicy) -> None:
        self._policy = policy
        self._pools: dict[ModelId, _Pool] = {}
        self._backlogs = {Criticality.STANDARD: Backlog(), Criticality.CRITICAL: Backlog()}
        self._bytes = 0
        self._ends: list[tuple[float, int, Ticket]] = []
        self._order = count()
        self.in_flight = 0
        """Tickets waiting, reserved or running."""

    def __repr__(self) -> str:
        standard, critical = self._backlogs.values()
        return f"<FlowControl {self.in_flight} in flight, waiting {len(critical)} critical {len(standard)} standard>"

    def apply(self, policy: FlowPolicy) -> None:
        """Take over a new policy; it bounds what arrives from now on."""
        self._policy = policy

    @property
    def waiting(self) -> int:
        """Tickets that wait."""
        return sum(map(len, self._backlogs.values()))

    @property
    def waiting_bytes(self) -> int:
        """Bodies of the tickets that wait."""
        return self._bytes

    @property
    def door_shut(self) -> bool:
        """Whether a request should be refused before its body is read."""
        return self.in_flight >= self._policy.in_flight_max

    def counts(self) -> dict[Criticality, int]:
        """Waiting tickets by class."""
        return {criticality: len(backlog) for criticality, backlog in self._backlogs.items()}

    # Arrive and go

    def arrive(self, ticket: Ticket, now_s: float) -> Verdict:
        """Decide about a new ticket: it may go (RESERVED), waits, or is refused (named in `refused`)."""
        ticket.arrived_s = now_s
        ticket.ends_s = min(ticket.deadline_s, now_s + self._policy.wait_max_s)
        pool = self._pools.get(ticket.pool)
        if pool is None:
            pool = self._pools[ticket.pool] = _Pool(now_s)
        if not self._ahead_of(ticket, pool) and self._fits(ticket, pool, now_s):
            self._reserve(ticket, pool, now_s)
            self.in_flight += 1
            return _ADMIT
        if ticket.criticality is Criticality.SHEDDABLE:
            return self._turned_away(ticket, pool, Reason.SHED, now_s)
        if ticket.ends_s <= now_s:
            return self._turned_away(ticket, pool, Reason.DEADLINE, now_s)
        evicted = self._make_place(ticket, now_s)
        if not self._has_place(ticket):
            refused = (*evicted, self._refuse(ticket, pool, Reason.QUEUE_FULL, now_s))
            return Verdict(Action.SHED, (), refused)
        self._wait(ticket, pool)
        admitted = self._serve(pool, now_s)
        if ticket.state is State.RESERVED:
            return Verdict(Action.ADMIT, tuple(other for other in admitted if other is not ticket), evicted)
        return Verdict(Action.WAIT, tuple(admitted), evicted) if admitted or evicted else _WAIT

    def taken(self, ticket: Ticket) -> None:
        """The placement has counted `ticket`'s slot; `room` shows it from now on."""
        if ticket.state is State.RESERVED:
            ticket.state = State.RUNNING
            pool = self._pools[ticket.pool]
            pool.reserved -= 1
            pool.running += 1

    def leave(self, ticket: Ticket, now_s: float) -> Changes:
        """`ticket` is over, from whatever state; its slot is free in `room` already. Safe to call again."""
        state, ticket.state = ticket.state, State.GONE
        if state is State.GONE or state is State.NEW:
            return _NOTHING
        self.in_flight -= 1
        pool = self._pools[ticket.pool]
        if state is State.WAITING:
            self._unwait(ticket, pool)
        else:
            if state is State.RESERVED:
                pool.reserved -= 1
            else:
                pool.running -= 1
                pool.drained(now_s)
            if ticket.criticality is Criticality.CRITICAL:
                pool.critical_running -= 1
        return Changes(tuple(self._serve(pool, now_s))) if pool.waiting else _NOTHING

    def tick(self, now_s: float) -> Changes:
        """Time passed or the fleet changed: end waits that are over, let go whoever fits now, forget idle pools."""
        refused: list[Refused] = []
        while self._ends and self._ends[0][0] <= now_s:
            ticket = heapq.heappop(self._ends)[2]
            if ticket.state is State.WAITING:
                refused.append(self._drop(ticket, self._why_ended(ticket, now_s), now_s))
        admitted: list[Ticket] = []
        for model, pool in list(self._pools.items()):
            if pool.waiting:
                admitted += self._serve(pool, now_s)
                refused += self._give_up(pool, now_s)
            elif not (pool.reserved or pool.running) and now_s - pool.drained_s > 6 * DRAIN_MEMORY_S:
                del self._pools[model]
        return Changes(tuple(admitted), tuple(refused))

    def close(self, now_s: float) -> Changes:
        """Turn everybody away who waits."""
        waiting = [ticket for backlog in self._backlogs.values() for ticket in backlog]
        return Changes((), tuple(self._drop(ticket, Reason.SHUTTING_DOWN, now_s) for ticket in waiting))

    # Rules

    @staticmethod
    def _ahead_of(ticket: Ticket, pool: _Pool) -> int:
        """Waiting tickets that go before a new one."""
        return pool.critical.count if ticket.criticality is Criticality.CRITICAL else pool.waiting

    def _fits(self, ticket: Ticket, pool: _Pool, now_s: float) -> bool:
        """Whether there is a slot for `ticket` now, its class considered."""
        total, free = ticket.room()
        free -= pool.reserved
        if ticket.criticality is Criticality.CRITICAL:
            return free >= 1
        kept = max(0, int(self._policy.critical_reserve * total) - pool.critical_running)
        if ticket.criticality is Criticality.STANDARD:
            return free >= 1 + kept
        return now_s >= pool.held_off_s and free >= 1 + kept + int(self._policy.sheddable_headroom * total)

    def _serve(self, pool: _Pool, now_s: float) -> list[Ticket]:
        """Let go every waiting ticket of `pool` that fits, in order."""
        admitted: list[Ticket] = []
        while (ticket := self._next(pool, now_s)) is not None:
            self._forget(ticket)
            self._reserve(ticket, pool, now_s)
            admitted.append(ticket)
        return admitted

    def _next(self, pool: _Pool, now_s: float) -> Ticket | None:
        if pool.critical:
            aged = self._aged(pool, now_s)
            if aged is not None and self._has_slot(aged, pool):
                pool.standard.remove(aged)
                return aged
            ticket = pool.critical.pop(lambda waiting: self._has_slot(waiting, pool))
            if ticket is not None:
                return ticket
        if pool.standard:
            return pool.standard.pop(lambda waiting: self._fits(waiting, pool, now_s))
        return None

    def _aged(self, pool: _Pool, now_s: float) -> Ticket | None:
        """The Standard ticket whose time has come in spite of waiting Critical ones."""
        aging_s = self._policy.aging_s
        if now_s - pool.standard_served_s < aging_s:
            return None
        oldest = pool.standard.oldest()
        return oldest if oldest is not None and now_s - oldest.arrived_s >= aging_s else None

    @staticmethod
    def _has_slot(ticket: Ticket, pool: _Pool) -> bool:
        room: Room = ticket.room()
        return room.slots_free - pool.reserved >= 1

    def _give_up(self, pool: _Pool, now_s: float) -> list[Refused]:
        """Turn away who has had nobody to wait for during HOPELESS_S."""
        refused: list[Refused] = []
        for queue in (pool.critical, pool.standard):
            # Asking the first of each tenant is cheap; everybody is asked only when one of them is in trouble.
            if all(ticket.roomless_s is None and ticket.room().slots_total > 0 for ticket in queue.heads()):
                continue
            for ticket in list(queue):
                if ticket.room().slots_total > 0:
                    ticket.roomless_s = None
                elif ticket.roomless_s is None:
                    ticket.roomless_s = now_s
                elif now_s - ticket.roomless_s >= HOPELESS_S:
                    refused.append(self._drop(ticket, Reason.NO_CAPACITY, now_s))
        return refused

    def _has_place(self, ticket: Ticket) -> bool:
        policy = self._policy
        return self.waiting < policy.queue_max and self._bytes + ticket.body_bytes <= policy.queue_bytes_max

    def _make_place(self, ticket: Ticket, now_s: float) -> tuple[Refused, ...]:
        """Evict until `ticket` may wait, or until nobody has to make place for it."""
        evicted: list[Refused] = []
        while not self._has_place(ticket) and ticket.body_bytes <= self._policy.queue_bytes_max:
            victim = self._victim(ticket)
            if victim is None:
                break
            evicted.append(self._drop(victim, Reason.EVICTED, now_s))
        return tuple(evicted)

    def _victim(self, ticket: Ticket) -> Ticket | None:
        """Lowest class first, newest first; in the ticket's own class only a tenant that waits with more."""
        standard = self._backlogs[Criticality.STANDARD]
        if ticket.criticality is Criticality.CRITICAL and (newest := standard.newest()) is not None:
            return newest
        return self._backlogs[ticket.criticality].newest_of_heavier(ticket)

    def _why_ended(self, ticket: Ticket, now_s: float) -> Reason:
        if now_s >= ticket.deadline_s:
            return Reason.DEADLINE
        return Reason.WAITED if ticket.room().slots_total > 0 else Reason.NO_CAPACITY

    # Bookkeeping

    def _reserve(self, ticket: Ticket, pool: _Pool, now_s: float) -> None:
        ticket.state = State.RESERVED
        pool.reserved += 1
        if ticket.criticality is Criticality.CRITICAL:
            pool.critical_running += 1
        elif ticket.criticality is Criticality.STANDARD:
            pool.standard_served_s = now_s

    def _wait(self, ticket: Ticket, pool: _Pool) -> None:
        ticket.state = State.WAITING
        queue = pool.critical if ticket.criticality is Criticality.CRITICAL else pool.standard
        queue.push(ticket)
        self._backlogs[ticket.criticality].add(ticket)
        self._bytes += ticket.body_bytes
        self.in_flight += 1
        heapq.heappush(self._ends, (ticket.ends_s, next(self._order), ticket))
        if len(self._ends) > 2 * self.waiting + 64:
            self._ends = [end for end in self._ends if end[2].state is State.WAITING]
            heapq.heapify(self._ends)

    def _unwait(self, ticket: Ticket, pool: _Pool) -> None:
        queue = pool.critical if ticket.criticality is Criticality.CRITICAL else pool.standard
        queue.remove(ticket)
        self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        self._backlogs[ticket.criticality].remove(ticket)
        self._bytes -= ticket.body_bytes

    def _drop(self, ticket: Ticket, reason: Reason, now_s: float) -> Refused:
        pool = self._pools[ticket.pool]
        self._unwait(ticket, pool)
        self.in_flight -= 1
        return self._refuse(ticket, pool, reason, now_s)

    def _turned_away(self, ticket: Ticket, pool: _Pool, reason: Reason, now_s: float) -> Verdict:
        return Verdict(Action.SHED, (), (self._refuse(ticket, pool, reason, now_s),))

    def _refuse(self, ticket: Ticket, pool: _Pool, reason: Reason, now_s: float) -> Refused:
        ticket.state = State.GONE
        if ticket.criticality is not Criticality.SHEDDABLE:
            pool.held_off_s = now_s + HOLD_OFF_S
        return Refused(ticket, reason, self._retry_s(ticket, pool, now_s))

    def _retry_s(self, ticket: Ticket, pool: _Pool, now_s: float) -> float:
        """Time until the pool has worked off what goes before `ticket`, at the rate it drains now."""
        rate = pool.rate(now_s)
        if rate <= 0.0:
            return RETRY_S_UNKNOWN
        return min(max((self._ahead_of(ticket, pool) + 1) / rate, RETRY_S_MIN), RETRY_S_MAX)
