"""A shared store of usage totals in this process, which can be away, forget, or do what it does not confirm."""

from collections.abc import Sequence

import msgspec

from gir.account.fleet import ReplicaTotals, UsageStoreError
from gir.account.ledger import UsageRow


class FakeUsageStore:
    """`fault` is None, `away` (nothing happens) or `mute` (it happens, but the caller hears of a failure)."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[float, dict[tuple[str, str], UsageRow]]] = {}
        self.fault: str | None = None
        self.calls = 0
        self.rows = 0
        self.closed = False

    async def tell(self, replica: str, since_wall_s: float, rows: Sequence[UsageRow]) -> None:
        self.calls += 1
        self.rows += len(rows)
        if self.fault != "away":
            _, held = self.held.setdefault(replica, (since_wall_s, {}))
            held |= {(row.tenant, row.model): msgspec.structs.replace(row) for row in rows}
        self._heard()

    async def read(self) -> list[ReplicaTotals]:
        self._heard()
        return [
            ReplicaTotals(replica=replica, since_unix_s=since_s, told_unix_s=0.0, rows=list(rows.values()))
            for replica, (since_s, rows) in self.held.items()
        ]

    async def close(self) -> None:
        self.closed = True

    def _heard(self) -> None:
        if self.fault is not None:
            raise UsageStoreError(self.fault)
