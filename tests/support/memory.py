"""A server without sockets: bytes go straight into a connection, and what it writes is kept."""

import asyncio
from collections.abc import Iterable
from typing import Any

from gir.clock import ManualClock
from gir.net.connection import ServerConnection
from gir.net.exchange import Exchange
from gir.net.link import UpstreamLink
from gir.net.server import Handler, HttpServer, ServerLimits


class MemoryTransport(asyncio.Transport):
    """Takes everything that is written; `unsent` plays a client that does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.closing = False
        self.aborted = False
        self.eof_written = False

    def write(self, data: Any) -> None:
        assert not self.closing, "written to a closed transport"
        self.written += data

    def write_eof(self) -> None:
        self.eof_written = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class UpstreamTransport(MemoryTransport):
    """The other end of a link; says so when the link closes."""

    def __init__(self, link: UpstreamLink) -> None:
        super().__init__()
        self._link = link

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        if not self.closing:
            super().abort()
            asyncio.get_running_loop().call_soon(self._link.connection_lost, None)


class MemoryClient:
    """One connection to a server in memory. `requests` are the (method, target, body) its handler was given."""

    def __init__(self, handler: Handler | None = None, limits: ServerLimits | None = None) -> None:
        self.requests: list[tuple[str, bytes, bytes]] = []
        self.clock = ManualClock()
        self._custom = handler
        self.server = HttpServer(self._handle, limits=limits or ServerLimits(), clock=self.clock, origin="gir")
        self.transport = MemoryTransport()
        self.connection = ServerConnection(self.server, "peer")
        self.connection.connection_made(self.transport)

    async def _handle(self, exchange: Exchange) -> None:
        body = await exchange.read_body()
        self.requests.append((exchange.head.method, exchange.head.target, body))
        if self._custom is not None:
            await self._custom(exchange)
        else:
            exchange.respond(200, [], b"ok")

    async def send(self, pieces: Iterable[bytes]) -> None:
        """Deliver `pieces` as reads, and let handlers run to where they wait."""
        for piece in pieces:
            if not self.transport.closing:
                self.connection.data_received(piece)
            await turns()
        await turns()

    @property
    def hung_up(self) -> bool:
        """The server takes no more requests on this connection."""
        return self.transport.closing or self.transport.eof_written

    def close(self) -> None:
        """End the connection and the server's timers."""
        self.connection.connection_lost(None)
        self.server.wheel.close()


async def turns(count: int = 6) -> None:
    """Let callbacks and tasks that are ready run."""
    for _ in range(count):
        await asyncio.sleep(0)
