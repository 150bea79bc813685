"""A raw HTTP/1.1 client that sees each byte's moment: the load client's ears.

It hides nothing: no redirects, no retries, no decoding. What came and how it ended goes to a `Listener`.
"""

import asyncio
from typing import Protocol

import httptools

from gir.clock import Clock

IDLE_MAX = 256


class Listener(Protocol):
    """Told about one answer. Times are seconds of the monotonic clock."""

    def head(self, status: int, headers: list[tuple[str, str]], now_s: float) -> None:
        """Status and headers (names in lower case) have come."""

    def data(self, data: bytes, now_s: float) -> None:
        """A piece of the body has come."""

    def end(self, how: str, now_s: float) -> None:
        """Called once: `complete`, `eof` (closed inside the answer), `reset`, `timeout`, `refused` or `garbled`."""


class Link(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._listener: Listener | None = None
        self._done: asyncio.Future[str] | None = None
        self._headers: list[tuple[str, str]] = []
        self._transport: asyncio.Transport | None = None
        self.alive = True

    async def call(self, request: bytes, listener: Listener) -> str:
        """Send a request and wait for the end of its answer; says how it ended."""
        self._listener = listener
        self._done = asyncio.get_running_loop().create_future()
        if self._transport is None or not self.alive:
            return "reset"
        self._transport.write(request)
        return await self._done

    def abort(self) -> None:
        """Drop the connection at once."""
        self.alive = False
        self._listener = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._finish("garbled")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._client.forget(self)
        self._finish("reset" if exc is not None else "eof")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._listener is not None:
            self._listener.head(self._parser.get_status_code(), self._headers, self._client.clock.monotonic_s())
        self._headers = []

    def on_body(self, body: bytes) -> None:
        if self._listener is not None:
            self._listener.data(body, self._client.clock.monotonic_s())

    def on_message_complete(self) -> None:
        self.alive = self.alive and self._parser.should_keep_alive()
        self._finish("complete")

    def _finish(self, how: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(how)


class Client:
    """Calls to one address over a pool of connections."""

    def __init__(self, host: str, port: int, clock: Clock) -> None:
        self.clock = clock
        self._address = (host, port)
        self._idle: list[Link] = []

    async def call(self, request: bytes, listener: Listener, *, within_s: float) -> None:
        """One call; `listener.end` has been called when this returns. Cancelling it drops the connection."""
        how = "timeout"
        link: Link | None = None
        try:
            async with asyncio.timeout(within_s):
                link = self._idle.pop() if self._idle else await self._connect()
                how = await link.call(request, listener)
        except TimeoutError:
            how = "timeout"
        except OSError:
            how = "refused"
        finally:
            if link is not None and how == "complete" and link.alive and len(self._idle) < IDLE_MAX:
                self._idle.append(link)
            elif link is not None:
                link.abort()
        listener.end(how, self.clock.monotonic_s())

    def forget(self, link: Link) -> None:
        """A connection has ended by itself."""
        if link in self._idle:
            self._idle.remove(link)

    def close(self) -> None:
        """Drop idle connections."""
        for link in list(self._idle):
            link.abort()
        self._idle.clear()

    async def _connect(self) -> Link:
        _, link = await asyncio.get_running_loop().create_connection(lambda: Link(self), *self._address)
        return link
