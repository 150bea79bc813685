"""Addresses of a host, so that no request waits for a name server and none fails because it is away.

A known address is used at once and looked up again behind the scenes; the last good answer serves for five minutes
while lookups fail or hang. At most one lookup per host runs, so a hanging name server holds one thread and no more.
"""

import asyncio
import ipaddress
import socket

from gir.clock import Clock
from gir.tasks import TaskSet

REFRESH_S = 5.0
LAST_GOOD_S = 300.0


class Resolver:
    """Addresses of `host`, in the order in which to try them."""

    def __init__(self, host: str, port: int, *, clock: Clock) -> None:
        self._host = host
        self._port = port
        self._clock = clock
        self._addresses: tuple[str, ...] = (host,) if _is_address(host) else ()
        self._good_at_s = float("inf") if self._addresses else float("-inf")
        self._lookup: asyncio.Task[None] | None = None
        self._tasks = TaskSet(self._failed)

    def __repr__(self) -> str:
        return f"<Resolver {self._host} -> {', '.join(self._addresses) or 'unknown'}>"

    async def addresses(self) -> tuple[str, ...]:
        """At once when known; otherwise after a lookup. Raises OSError when there is nothing to try."""
        age_s = self._clock.monotonic_s() - self._good_at_s
        if age_s > REFRESH_S and self._lookup is None:
            self._lookup = self._tasks.spawn(self._look_up(), name=f"resolve {self._host}")
        if age_s > LAST_GOOD_S and self._lookup is not None:
            # Shielded: others wait for the same answer, and it is of use even when nobody does.
            await asyncio.shield(self._lookup)
        return self._addresses

    async def _look_up(self) -> None:
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
            self._good_at_s = self._clock.monotonic_s()
        finally:
            self._lookup = None

    def _failed(self, name: str, error: BaseException) -> None:
        """Whoever waits learns of it from the task; for the others the last good addresses stand."""

    async def close(self) -> None:
        """Stop looking."""
        await self._tasks.close()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
