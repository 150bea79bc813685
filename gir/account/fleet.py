"""The ledger of all replicas: each tells a shared store its totals, and any of them can add up everybody's.

What is told are totals, not changes, under a name that belongs to one process for its life. So telling twice does no
harm, a lost call is made good by the next one, and the sum over names holds every request once. A replica that has
ended leaves its last totals behind; one that was killed leaves them as they were up to TELL_S before.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gir.account.ledger import UsageLedger, UsageRow, added_up
from gir.clock import Clock
from gir.tasks import TaskSet

TELL_S = 5.0
RETELL_S = 60.0
"""Rows that have not changed are told again this often: a store may lose what it held (flush, failover)."""
KEEP_S = 40 * 86_400.0
"""A replica not heard of for so long is forgotten, with what it counted: a month can be read after its end."""
BATCH_ROWS = 500
"""Rows told in one call, so that none holds up a store that others wait for."""


class UsageStoreError(Exception):
    """The shared totals cannot be read or written now."""


class ReplicaTotals(msgspec.Struct, kw_only=True):
    """What one replica has told: its rows, since when it counts, and when it was last heard of."""

    replica: str
    since_unix_s: float
    told_unix_s: float
    rows: list[UsageRow]


class FleetTotals(msgspec.Struct, kw_only=True):
    """Everybody's rows, added up, and whose they are."""

    replicas: list[ReplicaTotals]
    rows: list[UsageRow]


class UsageStore(Protocol):
    """Totals by replica, kept for KEEP_S after the last word of each."""

    async def tell(self, replica: str, since_wall_s: float, rows: Sequence[UsageRow]) -> None:
        """Replace these rows of `replica`, which lives. Raises UsageStoreError.

        `rows` are taken as they are when the call is made.
        """

    async def read(self) -> list[ReplicaTotals]:
        """What every replica has told. Raises UsageStoreError."""

    async def close(self) -> None:
        """Give back connections."""


class FleetUsage:
    """Tells the store about `ledger`, and reads everybody's totals from it."""

    def __init__(
        self,
        ledger: UsageLedger,
        store: UsageStore,
        *,
        replica: str,
        clock: Clock,
        on_change: Callable[[bool, str], None],
    ) -> None:
        """`replica` must be this process' alone. `on_change` hears when telling begins to fail, and when it works."""
        self.replica = replica
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._told: dict[tuple[str, str], int] = {}
        """Requests of each row, as the store knows them: rows that have changed since have more."""
        self._retell_at_s = clock.monotonic_s() + RETELL_S
        self._failing = False

    def __repr__(self) -> str:
        return f"<FleetUsage {self.replica} {len(self._told)} rows told{', failing' if self._failing else ''}>"

    def start(self, tasks: TaskSet) -> None:
        """Begin to tell."""
        _ = tasks.spawn(self._run(), name="usage")

    async def _run(self) -> None:
        while True:
            await self._clock.sleep_s(TELL_S * (0.8 + 0.2 * self._clock.random.random()))
            with contextlib.suppress(UsageStoreError):
                await self.tell()

    async def tell(self) -> None:
        """Tell what has changed. Raises UsageStoreError; the next call makes up for it."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._retell_at_s:
            self._retell_at_s = now_s + RETELL_S
            self._told.clear()
        changed = [row for row in self._ledger if self._told.get((row.tenant, row.model)) != row.requests]
        try:
            for start in range(0, max(1, len(changed)), BATCH_ROWS):
                batch = changed[start : start + BATCH_ROWS]
                requests = {(row.tenant, row.model): row.requests for row in batch}
                await self._store.tell(self.replica, self._ledger.since_wall_s, batch)
                self._told |= requests
        except UsageStoreError as error:
            self._changed(ok=False, reason=str(error))
            raise
        self._changed(ok=True)

    async def read(self) -> FleetTotals:
        """Totals of the fleet: what others have told, and what this replica has counted up to now.

        Raises UsageStoreError.
        """
        others = [totals for totals in await self._store.read() if totals.replica != self.replica]
        own = ReplicaTotals(
            replica=self.replica,
            since_unix_s=self._ledger.since_wall_s,
            told_unix_s=self._clock.wall_s(),
            rows=[msgspec.structs.replace(row) for row in self._ledger],
        )
        everybody = [own, *others]
        # In a thread, as a month of restarts is more rows than requests under way should wait for.
        rows = await asyncio.to_thread(added_up, [row for totals in everybody for row in totals.rows])
        return FleetTotals(replicas=everybody, rows=rows)

    async def close(self) -> None:
        """Tell the last totals, as far as the store answers."""
        with contextlib.suppress(UsageStoreError):
            await self.tell()
        await self._store.close()

    def _changed(self, *, ok: bool, reason: str = "") -> None:
        if self._failing == ok:
            self._failing = not ok
            self._on_change(ok, reason)
