"""Operators' orders on the Redis that limits are counted in: one hash, shared by every router that uses it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gir.admit.ports import StoreError
from gir.control.orders import Kept
from gir.stores.redis_link import RedisLink, Script
from gir.stores.redis_url import CALL_S


class RedisOrders:
    """Implements `gir.control.orders.OrderStore`. A lost call is not repeated: the next look tells."""

    kind = "redis"

    def __init__(self, url: str, *, prefix: str = "gir") -> None:
        """Raises ValueError for a bad URL."""
        self._link = RedisLink(url)
        self._key = "{" + prefix + "}:orders"
        self._replace = Script("orders.lua")
        self._connected = False
        self.place = f"{self._link.shown} ({prefix})"

    async def read(self) -> Kept:
        async with self._linked() as link:
            version, text = await link.fields(self._key, ["version", "text"], CALL_S)
        try:
            return Kept(0 if version is None else int(version), text or b"")
        except ValueError:
            raise StoreError(f"{self.place}: {self._key} holds no orders") from None

    async def replace(self, over: int, kept: Kept) -> bool:
        async with self._linked() as link:
            return bool(await link.run(self._replace, [self._key], [over, kept.version, kept.text], CALL_S))

    async def close(self) -> None:
        await self._link.close()

    @asynccontextmanager
    async def _linked(self) -> AsyncIterator[RedisLink]:
        """The link, connected: handshakes may take longer than a call."""
        try:
            if not self._connected:
                await self._link.connect()
            self._connected = True
            yield self._link
        except StoreError:
            self._connected = False
            raise
