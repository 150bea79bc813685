"""Counters on Redis: all questions of a replica in one script and one round trip, in 50 ms or not at all.

What a lost call means for a counter is judged by `RateLease.lost`.
"""

from collections.abc import Sequence

import msgspec

from gir.admit.ports import Census, Claim, Claimed, Replies, StoreError, Take, Taken
from gir.stores.redis_link import RedisLink, Script
from gir.stores.redis_url import CALL_S


class RedisStore:
    """Implements `gir.admit.ports.LimitStore` on a Redis server, sentinel service or cluster."""

    def __init__(
        self, url: str, *, username: str | None = None, password: str | None = None, prefix: str = "gir"
    ) -> None:
        """Raises ValueError for a bad URL. All keys share the hash tag `{prefix}`, so a cluster keeps them together."""
        self._link = RedisLink(url, username=username, password=password)
        self._prefix = "{" + prefix + "}:"
        self._exchange = Script("exchange.lua")
        self._census = Script("census.lua")

    def __repr__(self) -> str:
        return f"<RedisStore {self._link.shown}>"

    async def exchange(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        names = [*(take.key for take in takes), *(claim.key for claim in claims), "born"]
        keys = [f"{self._prefix}{name}" for name in names]
        rates = [
            (take.rate.limit, take.rate.window_s, take.rate.burst, take.need, take.want, take.owed) for take in takes
        ]
        slots = [(claim.limit, claim.replica, claim.want, claim.ttl_s) for claim in claims]
        rows = await self._link.run(self._exchange, keys, [msgspec.json.encode((rates, slots))], CALL_S)
        try:
            taken = [
                Taken(int(units), int(stamp), int(remaining), float(reset_s), float(retry_s))
                for units, stamp, remaining, reset_s, retry_s in rows[: len(takes)]
            ]
            claimed = [Claimed(int(held), int(free)) for held, free in rows[len(takes) : -1]]
            life = rows[-1].decode()
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(f"Redis answered nonsense: {error}") from error
        return Replies(taken, claimed, life)

    async def census(self, replica: str, ttl_s: float, absent_s: float) -> Census:
        keys = [f"{self._prefix}live", f"{self._prefix}joined"]
        live, absent = await self._link.run(self._census, keys, [replica, ttl_s, absent_s], CALL_S)
        return Census(int(live), int(absent))

    async def connect(self) -> None:
        await self._link.connect()

    async def close(self) -> None:
        """Close every connection."""
        await self._link.close()
