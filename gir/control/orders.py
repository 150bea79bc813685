"""The operators' orders: what this router heeds, and the store all routers share them by.

A command is a change of one small document. It is worked out on the newest one and put back only if nobody else was
faster (compare and set by version); whoever writes last has therefore seen what came before. Every router looks at the
store once a second, and what it finds is taken whole or not at all.

A store that is away, or holds what cannot be read, changes nothing here: the last good orders stay, and it is asked
again. One that has lost something (emptied, restored, failed over) is given back what this router knows. What must not
wait (a drain, an abort, a guard's verdict) holds here at once and is told when the store is back.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

import msgspec

from gir.admit.ports import StoreError
from gir.clock import Clock
from gir.control.changes import Change, remember
from gir.model.orders import Orders, decode, encode
from gir.model.policy import PolicySnapshot
from gir.place.check import check_placement

POLL_S = 1.0
TRIES_MAX = 50
"""Times that others may be faster before a change is given up; operators are few, but scripts are not."""
LATER_MAX = 1_000
VERSION_MAX = 2**53 - 1
"""Redis compares versions as floating-point numbers, which are exact up to here."""


class Kept(msgspec.Struct, frozen=True):
    """A document as a store holds it. Version 0 is that of an empty store; each change counts up."""

    version: int = 0
    text: bytes = b""


class OrderStore(Protocol):
    """Keeps one document."""

    kind: str
    """`memory`, `file` or `redis`."""
    place: str
    """Where, for people; without credentials."""

    async def read(self) -> Kept:
        """The newest. Raises StoreError, at the latest after a moment."""

    async def replace(self, over: int, kept: Kept) -> bool:
        """Hold `kept` from now on, if version `over` is held; else False and nothing happens. Raises StoreError.

        After a StoreError it may or may not have happened.
        """

    async def close(self) -> None:
        """Give back connections."""


class OrderCopy(Protocol):
    """A copy on this host, to start from while the store is away."""

    async def read(self) -> Kept:
        """The copy. Raises StoreError."""

    async def keep(self, kept: Kept) -> None:
        """Replace it. Raises StoreError."""


class OrderObserver(Protocol):
    """What operators see."""

    def orders_store(self, up: bool, reason: str) -> None:
        """The store can no longer be used, or can again. Once for each change."""

    def orders_taken(self, version: int) -> None:
        """Another version is in force."""

    def orders_not_copied(self, reason: str) -> None:
        """The copy on this host could not be written, or not be read when it was needed."""


class OrderDesk:
    """`orders` are in force here; `follow(orders)` carries them out."""

    def __init__(
        self,
        store: OrderStore,
        *,
        clock: Clock,
        follow: Callable[[Orders], None],
        observer: OrderObserver,
        copy: OrderCopy | None = None,
    ) -> None:
        self.store = store
        self.orders = Orders()
        self.trouble = ""
        """Why the store cannot be used; '' while it can."""
        self._clock = clock
        self._follow = follow
        self._observer = observer
        self._copy = copy
        self._known, self._held = Kept(), Orders()
        """What was last read or written and taken, and its meaning."""
        self._later: list[Change] = []
        """Carried out here, and not told yet."""
        self._woken = asyncio.Event()
        self._alone = asyncio.Lock()
        """One exchange at a time: an older answer must not be taken after a newer one."""

    def __repr__(self) -> str:
        return f"<OrderDesk {self.store.kind} version {self.version}{' AWAY' if self.trouble else ''}>"

    @property
    def version(self) -> int:
        """Version in force; the same on every router that has heard the newest."""
        return self._known.version

    @property
    def untold(self) -> int:
        """Changes that hold here and that the store has not taken yet."""
        return len(self._later)

    async def open(self) -> None:
        """Take what is in force before serving; from the copy on this host while the store is away."""
        await self.look()
        if self.trouble and self._copy is not None:
            try:
                await self._take(await self._copy.read())
            except StoreError as error:
                self._observer.orders_not_copied(str(error))

    async def run(self) -> None:
        """Follow the store for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            self._woken.clear()
            await self.look()

    async def look(self) -> None:
        """Tell what waits to be told, and take what is new."""
        try:
            async with self._alone:
                await self._read()
                if self._later:
                    await self._tell()
        except StoreError as error:
            self._report(str(error))
        else:
            self._report("")

    async def change(self, change: Change) -> None:
        """Carry out `change` everywhere: on the newest orders, or not at all.

        Raises ValueError when it makes no sense there, StoreError when the store does not take it.
        """
        try:
            async with self._alone:
                await self._change(change, late=False)
        except StoreError as error:
            self._report(str(error))
            raise
        self._report("")

    def insist(self, change: Change) -> None:
        """Carry out `change` here and now, and everywhere as soon as the store takes it. Raises ValueError."""
        wanted = change(self.orders, False)
        if len(self._later) < LATER_MAX:
            self._later.append(change)
        self._put_in_force(wanted)
        self._woken.set()

    async def close(self) -> None:
        """Tell what waits, if the store answers, and let go of it."""
        if self._later:
            await self.look()
        await self.store.close()

    async def _tell(self) -> None:
        """Make every waiting change in turn. What no longer makes sense is dropped, here too."""
        for change in list(self._later):
            with contextlib.suppress(ValueError):
                await self._change(change, late=True)
            self._later.remove(change)
        self._put_in_force(self._held)

    async def _change(self, change: Change, *, late: bool) -> None:
        for _ in range(TRIES_MAX):
            await self._read()
            wanted = change(self._held, late)
            if wanted == self._held:
                return
            kept = Kept(self._known.version + 1, encode(wanted))
            check_orders(decode(kept.text))  # what others would refuse must not get into the store
            if await self.store.replace(self._known.version, kept):
                await self._take(kept)
                return
        raise StoreError(f"{self.store.place} was changed {TRIES_MAX} times in between")

    async def _read(self) -> None:
        """Take the store's document if it is another. Raises StoreError, also for one that cannot be used."""
        kept = await self.store.read()
        if kept != self._known:
            await self._take(kept)

    async def _take(self, kept: Kept) -> None:
        try:
            if not 0 <= kept.version < VERSION_MAX:
                raise ValueError("no version counts so far; mend it in the store")
            orders = decode(kept.text)
            check_orders(orders)
        except ValueError as error:
            raise StoreError(f"{self.store.place}: version {kept.version} is refused: {error}") from None
        # Versions only count up: another document of a known one was put there after the store had lost something.
        forgotten = remember(self._held, lost=kept.version <= self._known.version)
        if forgotten(orders, True) != orders:
            self._later.append(forgotten)
        self._known, self._held = kept, orders
        for change in self._later:
            orders = change(orders, True)
        self._put_in_force(orders)
        self._observer.orders_taken(self.version)
        if self._copy is not None:
            try:
                await self._copy.keep(kept)
            except StoreError as error:
                self._observer.orders_not_copied(str(error))

    def _put_in_force(self, orders: Orders) -> None:
        if orders != self.orders:
            self.orders = orders
            self._follow(orders)

    def _report(self, trouble: str) -> None:
        if bool(trouble) is not bool(self.trouble):
            self._observer.orders_store(not trouble, trouble)
        self.trouble = trouble


def check_orders(orders: Orders) -> None:
    """Raise ValueError for a rule that no policy could have. What suits no policy today waits for one."""
    for order in orders.canaries.values():
        if order.rule is not None:
            check_placement(PolicySnapshot(rewrites=(order.rule,)))
