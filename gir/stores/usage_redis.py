"""Usage totals on Redis: one hash for each replica, and an index of when each was last heard of."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gir.account.fleet import KEEP_S, ReplicaTotals, UsageStoreError
from gir.account.ledger import UsageRow
from gir.admit.ports import StoreError
from gir.stores.redis_link import RedisLink, Script
from gir.stores.redis_url import CONNECT_S

_SINCE = b"since"
_decode_row = msgspec.json.Decoder(UsageRow).decode


class RedisUsage:
    """Implements `gir.account.fleet.UsageStore`. It has connections of its own, so that no limit waits behind it."""

    def __init__(self, url: str, *, prefix: str = "gir") -> None:
        """Raises ValueError for a bad URL. Keys share the hash tag of the limits, so a cluster keeps them together."""
        self._link = RedisLink(url)
        self._index = "{" + prefix + "}:usage"
        self._tell = Script("usage_tell.lua")
        self._read = Script("usage_read.lua")

    def __repr__(self) -> str:
        return f"<RedisUsage {self._link.shown}>"

    async def tell(self, replica: str, since_wall_s: float, rows: Sequence[UsageRow]) -> None:
        words: list[Any] = [replica, int(KEEP_S), since_wall_s]
        for row in rows:
            words += (msgspec.json.encode((row.tenant, row.model)), msgspec.json.encode(row))
        await self._call(self._tell, [self._rows_of(replica), self._index], words)

    async def read(self) -> list[ReplicaTotals]:
        (heard,) = await self._call(self._read, [self._index], [])
        found = []
        for name, told_unix_s in zip(heard[::2], heard[1::2], strict=True):
            replica = name.decode(errors="backslashreplace")
            _, fields = await self._call(self._read, [self._index, self._rows_of(replica)], [])
            found.append(_totals(replica, float(told_unix_s), dict(zip(fields[::2], fields[1::2], strict=True))))
        return found

    async def close(self) -> None:
        await self._link.close()

    def _rows_of(self, replica: str) -> str:
        return f"{self._index}:{replica}"

    async def _call(self, script: Script, keys: list[str], words: list[Any]) -> Any:
        try:
            return await self._link.run(script, keys, words, CONNECT_S)
        except StoreError as error:
            raise UsageStoreError(f"{self._link.shown}: {error}") from error


def _totals(replica: str, told_unix_s: float, fields: dict[bytes, bytes]) -> ReplicaTotals:
    try:
        since_unix_s = float(fields.pop(_SINCE, b"0"))
        rows = [_decode_row(value) for value in fields.values()]
    except (ValueError, msgspec.DecodeError) as error:
        raise UsageStoreError(f"what {replica} has told cannot be read: {error}") from error
    return ReplicaTotals(replica=replica, since_unix_s=since_unix_s, told_unix_s=told_unix_s, rows=rows)
