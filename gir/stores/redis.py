"""Counters on Redis: one script, one round trip, 50 ms, no second try.

A call that does not come back in time may have been carried out; what that means for a counter is for the caller to
judge (`RateLease.lost`). What must never happen is that a late answer is read as the answer to the next question, so
every connection is thrown away after a timeout, an error or a cancellation.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec
import redis.exceptions
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool

from gir.admit.ports import Census, Claim, Claimed, Replies, StoreError, Take, Taken
from gir.stores.redis_url import CALL_S, CONNECT_S, Client, redis_client, shown

_SCRIPTS = files("gir.stores")


class _Script:
    """A Lua script and the name Redis knows it by."""

    __slots__ = ("body", "sha")

    def __init__(self, file: str) -> None:
        self.body = _SCRIPTS.joinpath(file).read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.body.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """Implements `gir.admit.ports.LimitStore` on a Redis server, sentinel service or cluster."""

    def __init__(
        self, url: str, *, username: str | None = None, password: str | None = None, prefix: str = "gir"
    ) -> None:
        """Raises ValueError for a bad URL. All keys share the hash tag `{prefix}`, so a cluster keeps them together."""
        self._client: Client = redis_client(url, username=username, password=password)
        self._shown = shown(url)
        self._prefix = "{" + prefix + "}:"
        self._exchange = _Script("exchange.lua")
        self._census = _Script("census.lua")

    def __repr__(self) -> str:
        return f"<RedisStore {self._shown}>"

    async def exchange(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        keys = [f"{self._prefix}{name}" for name in [*(take.key for take in takes), *(claim.key for claim in claims)]]
        rates = [
            (take.rate.limit, take.rate.window_s, take.rate.burst, take.need, take.want, take.owed) for take in takes
        ]
        slots = [(claim.limit, claim.replica, claim.want, claim.ttl_s) for claim in claims]
        rows = await self._run(self._exchange, keys, [msgspec.json.encode((rates, slots))], CALL_S)
        try:
            taken = [
                Taken(int(units), int(stamp), int(remaining), float(reset_s), float(retry_s))
                for units, stamp, remaining, reset_s, retry_s in rows[: len(takes)]
            ]
            claimed = [Claimed(int(held), int(free)) for held, free in rows[len(takes) :]]
        except (ValueError, TypeError) as error:
            raise StoreError(f"Redis answered nonsense: {error}") from error
        return Replies(taken, claimed)

    async def census(self, replica: str, ttl_s: float) -> Census:
        keys = [f"{self._prefix}live", f"{self._prefix}overrides"]
        live, pairs = await self._run(self._census, keys, [replica, ttl_s], CALL_S)
        return Census(int(live), dict(zip((name.decode() for name in pairs[::2]), pairs[1::2], strict=True)))

    async def connect(self) -> None:
        await self._bounded(self._client.ping(), CONNECT_S)

    async def override(self, rule: str, value: bytes | None) -> None:
        key = f"{self._prefix}overrides"
        change = self._client.hdel(key, rule) if value is None else self._client.hset(key, rule, value.decode())
        await self._bounded(change, CONNECT_S)

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()
        await self._discard()

    async def _run(self, script: _Script, keys: list[str], args: list[Any], within_s: float) -> Any:
        return await self._bounded(self._evaluate(script, keys, args), within_s)

    async def _evaluate(self, script: _Script, keys: list[str], args: list[Any]) -> Any:
        try:
            return await self._client.evalsha(script.sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            # Flushed or restarted. Nothing has run, so sending it in full is no second try.
            return await self._client.eval(script.body, len(keys), *keys, *args)

    async def _bounded(self, call: Any, within_s: float) -> Any:
        try:
            async with asyncio.timeout(within_s):
                return await call
        except TimeoutError as error:
            await self._discard()
            raise StoreError(f"no answer within {within_s * 1000:.0f} ms") from error
        except (redis.exceptions.RedisError, OSError) as error:
            await self._discard()
            raise StoreError(f"{type(error).__name__}: {error}") from error
        except BaseException:
            await self._discard()
            raise

    async def _discard(self) -> None:
        """Throw every connection away, also those to sentinels: a reply may still be on its way on one of them."""
        if isinstance(self._client, RedisCluster):
            await self._client.aclose()
            return
        pool = self._client.connection_pool
        pools = [pool]
        if isinstance(pool, SentinelConnectionPool):
            pools += [watcher.connection_pool for watcher in pool.sentinel_manager.sentinels]
        for one in pools:
            await one.disconnect(inuse_connections=True)
