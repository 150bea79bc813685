"""Waiting tickets of one class in one pool: deficit round robin between tenants, by tokens. Pure.

Each tenant in turn earns QUANTUM x share tokens and may send as many requests as it has earned (Shreedhar and
Varghese, 1995). A tenant that asks for long answers or asks often waits for itself, not for others.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from gir.admit.ticket import Ticket
from gir.model.ids import TenantId

QUANTUM = 2_048
HEADS_MAX = 16
"""When the first tickets of so many tenants do not fit, the pool counts as full; next time others are tried."""


class _Flow:
    """Tickets of one tenant, oldest first, and the tokens it has earned."""

    __slots__ = ("earned", "paid", "share", "tickets")

    def __init__(self, share: float) -> None:
        self.tickets: deque[Ticket] = deque()
        self.earned = 0.0
        self.paid = False
        """Whether it has had its quantum in this turn. A turn goes on while it waits for room."""
        self.share = share

    @property
    def missing(self) -> float:
        """Rounds until the first ticket is earned."""
        return (self.tickets[0].tokens - self.earned) / (QUANTUM * self.share)


class FairQueue:
    """Order in which waiting tickets go."""

    __slots__ = ("_flows", "_ring", "count")

    def __init__(self) -> None:
        self._flows: dict[TenantId, _Flow] = {}
        self._ring: deque[TenantId] = deque()
        self.count = 0
        """Tickets waiting."""

    def __len__(self) -> int:
        return self.count

    def push(self, ticket: Ticket) -> None:
        """Append `ticket` to its tenant's line."""
        flow = self._flows.get(ticket.tenant)
        if flow is None:
            flow = self._flows[ticket.tenant] = _Flow(ticket.share)
            self._ring.append(ticket.tenant)
        flow.share = ticket.share
        flow.tickets.append(ticket)
        self.count += 1

    def remove(self, ticket: Ticket) -> None:
        """Take `ticket` out, wherever it stands."""
        flow = self._flows[ticket.tenant]
        flow.tickets.remove(ticket)
        self.count -= 1
        if not flow.tickets:
            self._retire(ticket.tenant)

    def heads(self) -> Iterator[Ticket]:
        """First tickets of the next HEADS_MAX tenants."""
        return (self._flows[tenant].tickets[0] for tenant in islice(self._ring, HEADS_MAX))

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for flow in self._flows.values() for ticket in flow.tickets)

    def oldest(self) -> Ticket | None:
        """The ticket that has waited longest."""
        heads = [flow.tickets[0] for flow in self._flows.values()]
        return min(heads, key=_arrival) if heads else None

    def pop(self, fits: Callable[[Ticket], bool]) -> Ticket | None:
        """Next ticket in fair order that `fits` accepts; None when none of the first HEADS_MAX tenants' does."""
        fitting: dict[TenantId, None] = {}
        blocked = rounds = 0
        while self._ring:
            tenant = self._ring[0]
            flow = self._flows[tenant]
            if tenant in fitting or fits(flow.tickets[0]):
                fitting[tenant] = None
                if not flow.paid:
                    flow.earned += QUANTUM * flow.share
                    flow.paid = True
                if flow.earned >= flow.tickets[0].tokens:
                    return self._serve(tenant, flow)
                flow.paid = False
                rounds += 1
            else:
                blocked += 1
            self._ring.rotate(-1)
            if not fitting and blocked >= min(len(self._ring), HEADS_MAX):
                return None
            if rounds > len(self._ring):
                rounds = 0
                self._skip_rounds(fitting)
        return None

    def _skip_rounds(self, tenants: Iterable[TenantId]) -> None:
        """Long prompts take many rounds to earn; skip those in which nobody would go."""
        flows = [self._flows[tenant] for tenant in tenants]
        rounds = max(0.0, min(flow.missing for flow in flows) - 1.0)
        for flow in flows:
            flow.earned += rounds * QUANTUM * flow.share

    def _serve(self, tenant: TenantId, flow: _Flow) -> Ticket:
        ticket = flow.tickets.popleft()
        flow.earned -= ticket.tokens
        self.count -= 1
        if not flow.tickets:
            self._retire(tenant)
        return ticket

    def _retire(self, tenant: TenantId) -> None:
        """A tenant without waiting tickets keeps no earnings: fairness is about those who wait now."""
        del self._flows[tenant]
        self._ring.remove(tenant)


def _arrival(ticket: Ticket) -> float:
    return ticket.arrived_s
