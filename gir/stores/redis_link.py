"""Calls of a Redis that shared state is kept in: one script, one round trip, no second try.

A call that does not come back in time may have been carried out; what that means is for the caller to judge. What must
never happen is that a late answer is read as the answer to the next question, so every connection is thrown away after
a timeout, an error or a cancellation.
"""

import asyncio
import hashlib
from importlib.resources import files
from typing import Any

import redis.exceptions
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool

from gir.admit.ports import StoreError
from gir.stores.redis_url import CONNECT_S, Client, redis_client, shown

_SCRIPTS = files("gir.stores")


class Script:
    """A Lua script and the name Redis knows it by."""

    __slots__ = ("body", "sha")

    def __init__(self, file: str) -> None:
        self.body = _SCRIPTS.joinpath(file).read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.body.encode(), usedforsecurity=False).hexdigest()


class RedisLink:
    """One client of a Redis server, sentinel service or cluster."""

    def __init__(self, url: str, *, username: str | None = None, password: str | None = None) -> None:
        """Raises ValueError for a bad URL."""
        self.shown = shown(url)
        """The URL without credentials."""
        self._client: Client = redis_client(url, username=username, password=password)

    async def connect(self) -> None:
        """Get a connection ready, in CONNECT_S. Raises StoreError."""
        await self._bounded(self._client.ping(), CONNECT_S)

    async def run(self, script: Script, keys: list[str], args: list[Any], within_s: float) -> Any:
        """The script's answer. Raises StoreError when there is none within `within_s`."""
        return await self._bounded(self._evaluate(script, keys, args), within_s)

    async def fields(self, key: str, names: list[str], within_s: float) -> list[bytes | None]:
        """Fields of a hash, None for those it does not have. Raises StoreError."""
        found: list[bytes | None] = await self._bounded(self._client.hmget(key, names), within_s)
        return found

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()
        await self._discard()

    async def _evaluate(self, script: Script, keys: list[str], args: list[Any]) -> Any:
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
