"""A pool of slots under flow control, in virtual time: arrivals, service, an event heap. No asyncio."""

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable

from gir.admit.flow import FlowControl
from gir.admit.ticket import Action, Room, State, Ticket
from gir.model.ids import ModelId, RequestId, TenantId
from gir.model.policy import FlowPolicy
from gir.model.request import Criticality

CRITICAL, STANDARD, SHEDDABLE = Criticality.CRITICAL, Criticality.STANDARD, Criticality.SHEDDABLE


class Slots:
    """Room of one pool, counted as the placement would."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0

    def __call__(self) -> Room:
        return Room(self.total, self.total - self.used)


_ids = itertools.count()


def ticket(
    criticality: Criticality = STANDARD,
    room: Callable[[], Room] = Slots(1),  # noqa: B008 (tests that care pass their own)
    *,
    tenant: str = "team",
    tokens: int = 100,
    body_bytes: int = 10,
    share: float = 1.0,
    pool: str = "llama",
    deadline_s: float = float("inf"),
) -> Ticket:
    """A ticket with a fresh id."""
    return Ticket(
        request_id=RequestId(f"r-{next(_ids)}"),
        pool=ModelId(pool),
        tenant=TenantId(tenant),
        criticality=criticality,
        room=room,
        tokens=tokens,
        body_bytes=body_bytes,
        share=share,
        deadline_s=deadline_s,
    )


class Overload:
    """Poisson arrivals of several streams at one pool; every event is judged by the flow control under test."""

    def __init__(self, policy: FlowPolicy, *, slots: int, service_s: float, seed: int = 7) -> None:
        self.flow = FlowControl(policy)
        self.slots = Slots(slots)
        self.service_s = service_s
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.arrived: dict[str, int] = defaultdict(int)
        self.served: dict[str, int] = defaultdict(int)
        self.served_tokens: dict[str, int] = defaultdict(int)
        self.served_in_time = 0
        """Requests served while demand lasted; for whoever stops the run there."""
        self.log: list[tuple[float, str, Ticket]] = []
        """(time, `admitted` or `refused`, ticket) in order."""
        self.names: dict[Ticket, str] = {}
        self._order = itertools.count()

    def stream(
        self,
        name: str,
        criticality: Criticality,
        rate_per_s: float,
        *,
        tenant: str = "team",
        tokens: int = 100,
        share: float = 1.0,
        ends_s: float,
    ) -> None:
        """Arrivals of one kind."""

        def arrive() -> None:
            made = ticket(criticality, self.slots, tenant=tenant, tokens=tokens, share=share)
            self.names[made] = name
            self.arrived[name] += 1
            verdict = self.flow.arrive(made, self.now_s)
            if verdict.action is Action.ADMIT:
                self._go(made)
            self._apply(verdict.admitted, [refused.ticket for refused in verdict.refused])
            self._at(self.now_s + self.random.expovariate(rate_per_s), arrive, ends_s)

        self._at(self.random.expovariate(rate_per_s), arrive, ends_s)

    def run(self, until_s: float) -> None:
        """Play every event up to then, ticking each 50 ms."""

        def tick() -> None:
            changes = self.flow.tick(self.now_s)
            self._apply(changes.admitted, [refused.ticket for refused in changes.refused])
            self._at(self.now_s + 0.05, tick, until_s)

        self._at(0.0, tick, until_s)
        while self.events and self.events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self.events)
            event()

    def _at(self, at_s: float, event: Callable[[], None], ends_s: float = float("inf")) -> None:
        if at_s <= ends_s:
            heapq.heappush(self.events, (at_s, next(self._order), event))

    def _apply(self, admitted: tuple[Ticket, ...], refused: list[Ticket]) -> None:
        for one in refused:
            self.log.append((self.now_s, "refused", one))
        for one in admitted:
            self._go(one)

    def _go(self, one: Ticket) -> None:
        assert one.state is State.RESERVED
        self.log.append((self.now_s, "admitted", one))
        self.slots.used += 1
        assert self.slots.used <= self.slots.total, "two waiters got one slot"
        self.flow.taken(one)
        lasts_s = self.random.uniform(0.5, 1.5) * self.service_s * one.tokens / 100
        self._at(self.now_s + lasts_s, lambda: self._end(one))

    def _end(self, one: Ticket) -> None:
        self.slots.used -= 1
        name = self.names[one]
        self.served[name] += 1
        self.served_tokens[name] += one.tokens
        self._apply(self.flow.leave(one, self.now_s).admitted, [])
