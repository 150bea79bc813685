"""A desk for operators' orders with nobody but its tests to follow them, and stores that misbehave."""

from collections.abc import Callable
from typing import Any

from gir.admin.orders import Company, Office
from gir.admit.ports import StoreError
from gir.clock import Clock, SystemClock
from gir.control.orders import Kept, OrderCopy, OrderDesk, OrderStore
from gir.model.orders import Orders
from gir.stores.orders_memory import MemoryOrders

WHERE: dict[str, Any] = {
    "kept": "memory",
    "place": "this process",
    "shared_by": "this process, until it stops",
    "everywhere": True,
    "note": "",
    "up": True,
    "trouble": "",
    "version": 0,
    "untold": 0,
}
"""What an office says of itself in the simplest case."""


class Watcher:
    """Remembers what operators would have seen."""

    def __init__(self) -> None:
        self.changes: list[tuple[bool, str]] = []
        self.versions: list[int] = []
        self.copies_failed: list[str] = []

    def orders_store(self, up: bool, reason: str) -> None:
        self.changes.append((up, reason))

    def orders_taken(self, version: int) -> None:
        self.versions.append(version)

    def orders_not_copied(self, reason: str) -> None:
        self.copies_failed.append(reason)


class ShakyOrders:
    """A view of a shared store that can be away for this router only. `hook` runs before each replacement."""

    kind = "redis"
    place = "shaky"

    def __init__(self, inner: MemoryOrders) -> None:
        self.inner = inner
        self.away = False
        self.hook: Callable[[], None] = lambda: None

    async def read(self) -> Kept:
        self._trip()
        return await self.inner.read()

    async def replace(self, over: int, kept: Kept) -> bool:
        self._trip()
        hook, self.hook = self.hook, lambda: None
        hook()
        return await self.inner.replace(over, kept)

    async def close(self) -> None:
        """Nothing is held."""

    def _trip(self) -> None:
        if self.away:
            raise StoreError("no answer within 50 ms")


class Desk(OrderDesk):
    """A desk that remembers what it was told to carry out."""

    def __init__(
        self,
        store: OrderStore | None = None,
        *,
        clock: Clock | None = None,
        copy: OrderCopy | None = None,
        follow: Callable[[Orders], None] = lambda _: None,
    ) -> None:
        self.followed: list[Orders] = []
        self.watcher = Watcher()

        def heed(orders: Orders) -> None:
            self.followed.append(orders)
            follow(orders)

        super().__init__(
            store or MemoryOrders(), clock=clock or SystemClock(), follow=heed, observer=self.watcher, copy=copy
        )


def office(desk: OrderDesk, clock: Clock, **company: Any) -> Office:
    """An office in the given company."""
    return Office(desk, clock, Company(**company))
