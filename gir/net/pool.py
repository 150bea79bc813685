"""Connections to one upstream: reuse, bounds, and the one resend that hides the keep-alive race.

A request is written to a connected transport and the call handed back; waiting for the answer is the call's part.
"""

import asyncio
import urllib.parse
from typing import Self

import msgspec

from gir.clock import Clock
from gir.model.outcome import Phase
from gir.net.errors import ConnectFailed, TotalTimeout
from gir.net.link import UpstreamLink
from gir.net.resolve import Resolver
from gir.net.silence import end_when_unheard
from gir.net.tls import ClientTls
from gir.net.upstream import CallDeadlines, UpstreamCall
from gir.net.wheel import HORIZON_S, Wheel

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Endpoint(msgspec.Struct, frozen=True):
    """Where an upstream listens. `base_path` (no slash at its end) goes before every request's path."""

    host: str
    port: int
    tls: bool = False
    base_path: str = ""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read `http(s)://host[:port][/base]`; ValueError names what is wrong and how to write it."""
        fix = "write http://host:port or https://host:port, with an optional path"
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"url {url!r}: {error}; {fix}") from None
        if parts.scheme not in _DEFAULT_PORTS:
            raise ValueError(f"url {url!r}: the scheme is {parts.scheme or 'missing'}; {fix}")
        if not parts.hostname:
            raise ValueError(f"url {url!r}: the host is missing; {fix}")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"url {url!r}: credentials, query and fragment have no place here; {fix}")
        if not url.isascii() or any(character.isspace() or not character.isprintable() for character in url):
            raise ValueError(f"url {url!r}: only printable ASCII without spaces is allowed; {fix}")
        if port == 0:
            raise ValueError(f"url {url!r}: port 0 cannot be dialled; {fix}")
        return cls(
            host=parts.hostname,
            port=port or _DEFAULT_PORTS[parts.scheme],
            tls=parts.scheme == "https",
            base_path=parts.path.rstrip("/"),
        )

    @property
    def authority(self) -> bytes:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority.decode()}{self.base_path}"


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one pool."""

    connections_max: int = 4_096
    """Calls at once; beyond it `send` fails at once, for queueing belongs to those who see the whole fleet."""
    idle_s: float = 4.0
    """How long an unused connection is kept: below the 5 s after which uvicorn closes its end."""
    connect_s: float = 0.5
    """Name lookup, TCP and TLS handshake together."""
    dead_s: float = 3.5
    """A peer that acknowledges nothing for so long is gone: as long as the probes take to notice a frozen cluster."""
    unread_s: float = 30.0
    """The same while a large request is on its way: an engine that is busy leaves the rest of it unread for a while."""


class UpstreamPool:
    """Connections to `endpoint`. Sends requests; never waits for a free connection, never queues."""

    def __init__(self, endpoint: Endpoint, limits: PoolLimits, *, clock: Clock, tls: ClientTls | None = None) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.clock = clock
        self.wheel = Wheel(clock)
        self._tls = (tls or ClientTls()) if endpoint.tls else None
        self._resolver = Resolver(endpoint.host, endpoint.port, clock=clock)
        self._idle: list[UpstreamLink] = []
        self._links: set[UpstreamLink] = set()
        self._connecting = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Pool {self.endpoint.host}:{self.endpoint.port} {self.active} active, {self.idle} idle>"

    @property
    def active(self) -> int:
        """Connections in use or being made."""
        return len(self._links) - len(self._idle) + self._connecting

    @property
    def idle(self) -> int:
        """Connections ready for reuse."""
        return len(self._idle)

    async def send(
        self, head: bytes, body: bytes, *, deadlines: CallDeadlines, idempotent_resend: bool = True
    ) -> UpstreamCall:
        """Write a request; returns when it is on a connected transport. Does not suspend if a connection is idle.

        With `idempotent_resend`, a reused connection that dies before any byte of an answer gets one transparent
        resend on a fresh one: the engine closed it while the request was on its way. Raises ConnectFailed, or
        TotalTimeout when the deadline passes before there is a connection.
        """
        call = UpstreamCall(self, head, body, deadlines, resend=idempotent_resend)
        now_s = self.clock.monotonic_s()
        link = self._take_idle(now_s)
        if link is not None:
            call.dispatch(link, now_s, reused=True)
        else:
            call.dispatch(await self.connect(deadlines.total_at_s), self.clock.monotonic_s(), reused=False)
        return call

    def _take_idle(self, now_s: float) -> UpstreamLink | None:
        """The connection used last: the others may age out."""
        while self._idle:
            link = self._idle.pop()
            if link.open and now_s - link.idle_since_s < self.limits.idle_s:
                return link
            link.close()
        return None

    async def connect(self, total_at_s: float = float("inf")) -> UpstreamLink:
        """A fresh connection; raises ConnectFailed, or TotalTimeout if there was less time than connecting may take."""
        if self.active >= self.limits.connections_max:
            raise ConnectFailed(f"{self.endpoint}: all {self.limits.connections_max} connections are in use")
        budget_s = min(self.limits.connect_s, total_at_s - self.clock.monotonic_s())
        self._connecting += 1
        try:
            async with asyncio.timeout(budget_s):
                link = await self._connect_any(budget_s)
        except TimeoutError:
            if budget_s < self.limits.connect_s:
                raise TotalTimeout(Phase.CONNECTING, "the request's deadline passed") from None
            raise ConnectFailed(f"{self.endpoint}: no connection within {budget_s:.3g} s") from None
        except (OSError, UnicodeError) as error:
            raise ConnectFailed(f"{self.endpoint}: {error}") from error
        finally:
            self._connecting -= 1
        self._links.add(link)
        link.watch(self.clock.monotonic_s() + HORIZON_S)
        return link

    async def _connect_any(self, budget_s: float) -> UpstreamLink:
        """Try the host's addresses in turn, each with its share of the time; raises what the last one raised."""
        addresses = await self._resolver.addresses()
        for address in addresses[:-1]:
            try:
                async with asyncio.timeout(budget_s / len(addresses)):
                    return await self._connect_to(address)
            except OSError:
                continue  # the next address may be alive; TimeoutError is an OSError too
        return await self._connect_to(addresses[-1])

    async def _connect_to(self, address: str) -> UpstreamLink:
        context, name = None, None
        if self._tls is not None:
            context, name = self._tls.context(), self._tls.server_name or self.endpoint.host
        transport, link = await asyncio.get_running_loop().create_connection(
            lambda: UpstreamLink(self), address, self.endpoint.port, ssl=context, server_hostname=name
        )
        sock = transport.get_extra_info("socket")
        if sock is not None:
            end_when_unheard(sock, self.limits.dead_s)
        return link

    # What calls and links call

    def new_future(self) -> asyncio.Future[None]:
        """A future of the running loop, which is kept, for asking asyncio costs a system call each time."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        return loop.create_future()

    def give_back(self, link: UpstreamLink) -> None:
        """The link's call is over and the connection is clean."""
        self._idle.append(link)

    def lost(self, link: UpstreamLink) -> None:
        """The link's connection has ended."""
        self._links.discard(link)
        if link in self._idle:
            self._idle.remove(link)

    # Housekeeping

    def purge_idle(self) -> int:
        """Close every idle connection, as after the upstream proved dead; how many there were."""
        idle, self._idle = self._idle, []
        for link in idle:
            link.close()
        return len(idle)

    async def close(self) -> None:
        """Close every connection; calls in progress fail with ConnectionLost."""
        self.purge_idle()
        for link in list(self._links):
            link.close()
        self.wheel.close()
        await self._resolver.close()
        await asyncio.sleep(0)  # transports report their end in the next turn
