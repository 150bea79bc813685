"""All waiting tickets of one class, over all pools: who is the newest, who waits with the most. Pure."""

from collections.abc import Iterator

from gir.admit.ticket import Ticket
from gir.model.ids import TenantId


class Backlog:
    """Bookkeeping for eviction."""

    __slots__ = ("_by_tenant", "_order", "_tokens")

    def __init__(self) -> None:
        self._order: dict[Ticket, None] = {}
        self._by_tenant: dict[TenantId, dict[Ticket, None]] = {}
        self._tokens: dict[TenantId, float] = {}
        """Waiting tokens divided by the tenant's share."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._order)

    def add(self, ticket: Ticket) -> None:
        """`ticket` begins to wait."""
        self._order[ticket] = None
        self._by_tenant.setdefault(ticket.tenant, {})[ticket] = None
        self._tokens[ticket.tenant] = self._tokens.get(ticket.tenant, 0.0) + ticket.tokens / ticket.share

    def remove(self, ticket: Ticket) -> None:
        """`ticket` waits no longer."""
        del self._order[ticket]
        tickets = self._by_tenant[ticket.tenant]
        del tickets[ticket]
        if tickets:
            self._tokens[ticket.tenant] -= ticket.tokens / ticket.share
        else:
            del self._by_tenant[ticket.tenant], self._tokens[ticket.tenant]

    def newest(self) -> Ticket | None:
        """The ticket that came last."""
        return next(reversed(self._order), None)

    def newest_of_heavier(self, than: Ticket) -> Ticket | None:
        """Newest ticket of the tenant that waits with the most work, if it is more than `than`'s tenant would have."""
        if not self._tokens:
            return None
        heaviest = max(self._tokens, key=self._tokens.__getitem__)
        ours = self._tokens.get(than.tenant, 0.0) + than.tokens / than.share
        if heaviest == than.tenant or self._tokens[heaviest] <= ours:
            return None
        return next(reversed(self._by_tenant[heaviest]))
