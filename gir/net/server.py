"""The HTTP server: accepts connections, runs a handler task per request, drains.

Knows no routing. Refuses on its own what needs no handler: malformed heads, bodies over the bound, too many requests
in flight.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gir.clock import Clock
from gir.model.errors import ErrorKind, RequestError
from gir.net.connection import ServerConnection
from gir.net.exchange import Exchange
from gir.net.limits import ServerLimits
from gir.net.listen import Listener, open_sockets
from gir.net.message import RequestHead
from gir.net.tls import ServerTls
from gir.net.turns import Turns
from gir.net.wheel import Wheel

__all__ = ["Handler", "HttpServer", "ServerLimits", "ServerObserver"]

Handler = Callable[[Exchange], Coroutine[Any, Any, None]]

_HANDSHAKE_S = 10.0
_DRAIN_LOOK_S = 0.05
_FRESH_GRACE_S = 1.0


class ServerObserver(Protocol):
    """Who wants to know what happens outside of handlers."""

    def refused(self, kind: ErrorKind) -> None:
        """A request was turned away before a handler saw it."""

    def handler_failed(self, head: RequestHead, error: BaseException) -> None:
        """A handler raised something other than RequestError: a bug, answered with 500 if that was still possible."""


class HttpServer:
    """Serves `handler` on one or more listening sockets.

    `origin` (`gir` or `agent`) begins the messages of errors made here. A handler that raises RequestError before it
    answered is answered from the error table; one that returns without finishing its answer is a bug (500, or a cut
    connection when the answer had begun). When the client leaves, the handler's task is cancelled.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        limits: ServerLimits,
        clock: Clock,
        origin: str,
        tls: ServerTls | None = None,
        observer: ServerObserver | None = None,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.origin = origin
        self.draining = False
        self.wheel = Wheel(clock)
        self.turns = Turns()
        self._handler = handler
        self._tls = tls
        self._observer = observer
        self._listeners: list[Listener] = []
        self._connections: set[ServerConnection] = set()
        self._per_peer: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._exchanges = 0
        self._bodies_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        state = "draining" if self.draining else "listening" if self._listeners else "stopped"
        return f"<HttpServer {state}, {self.connections_open} connections, {self._exchanges} exchanges>"

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> None:
        """Listen on every address of `host`; may be called again for more. OSError when the port is taken."""
        for sock in await open_sockets(host, port, reuse_port=reuse_port, backlog=self.limits.backlog):
            self._listeners.append(Listener(sock, self._accepted, self._room_for_connection))

    @property
    def port(self) -> int:
        """Port of the first listening socket."""
        if not self._listeners:
            raise RuntimeError("the server is not listening: await start() first")
        return int(self._listeners[0].socket.getsockname()[1])

    @property
    def connections_open(self) -> int:
        """Client connections, handshaking ones included."""
        return len(self._connections)

    @property
    def exchanges_open(self) -> int:
        """Requests whose handler has not ended."""
        return self._exchanges

    # Stopping

    def stop_listening(self) -> None:
        """Close the listening sockets; open connections live on and answers now carry `Connection: close`."""
        self.draining = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()

    async def drain(self, timeout_s: float) -> bool:
        """Stop listening and wait until every answer is delivered; whether all were within `timeout_s`.

        Call `close` afterwards to end those that were not.
        """
        self.stop_listening()
        began_s = self.clock.monotonic_s()
        while self._exchanges or self._connections:
            elapsed_s = self.clock.monotonic_s() - began_s
            for connection in list(self._connections):
                # Whoever was accepted last of all is about to send its first request.
                connection.close_if_idle(fresh_too=elapsed_s >= _FRESH_GRACE_S)
            if elapsed_s >= timeout_s:
                return False
            await self.clock.sleep_s(_DRAIN_LOOK_S)
        return True

    async def close(self) -> None:
        """End everything now: listeners, handlers, connections."""
        self.stop_listening()
        tasks = [*self._opening, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.drop()
        self.wheel.close()
        await asyncio.sleep(0)  # transports report their end in the next turn

    # Connections

    def _room_for_connection(self) -> bool:
        return len(self._connections) < self.limits.connections_max

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        count = self._per_peer.get(peer, 0)
        if count >= self.limits.connections_per_peer_max:
            sock.close()
            return
        self._per_peer[peer] = count + 1
        connection = ServerConnection(self, peer)
        self._connections.add(connection)
        task = asyncio.get_running_loop().create_task(self._open(connection, sock))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: ServerConnection, sock: socket.socket) -> None:
        tls = self._tls.context() if self._tls is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_S if tls is not None else None
            )
        except (OSError, asyncio.CancelledError):
            # A handshake that failed or never ended, or a caller who has already gone.
            sock.close()
            self.lost(connection)

    def lost(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        count = self._per_peer[connection.peer] - 1
        if count:
            self._per_peer[connection.peer] = count
        else:
            del self._per_peer[connection.peer]
        for listener in self._listeners:
            listener.resume()

    # Requests

    def room(self, body_bytes: int) -> bool:
        """Whether one more request, with a body of so many bytes, may be in flight."""
        limits = self.limits
        return self._exchanges < limits.in_flight_max and self._bodies_bytes + body_bytes <= limits.bodies_bytes_max

    def grown(self, exchange: Exchange, body_bytes: int) -> bool:
        """The body of `exchange`, of unknown length, has come to so many bytes; whether there is room for them."""
        self._bodies_bytes += body_bytes - exchange.body_bytes
        exchange.body_bytes = body_bytes
        return self._bodies_bytes <= self.limits.bodies_bytes_max

    def refused(self, kind: ErrorKind) -> None:
        """A request was turned away before a handler saw it."""
        if self._observer is not None:
            self._observer.refused(kind)

    def serve(self, exchange: Exchange) -> None:
        """Run the handler in a task of its own."""
        self._exchanges += 1
        if exchange.head.body_length > 0:
            self._bodies_bytes += exchange.body_bytes
        loop = self._loop
        if loop is None:
            # Kept, for asking asyncio costs a system call each time.
            loop = self._loop = asyncio.get_running_loop()
        task = loop.create_task(self._handle(exchange))
        exchange.task = task
        self._tasks.add(task)

    def never_begun(self, exchange: Exchange) -> None:
        """The client left before the handler's first step: a task cancelled so early runs no line of `_handle`."""
        exchange.begun = True
        self._forget(exchange)

    async def _handle(self, exchange: Exchange) -> None:
        exchange.begun = True
        try:
            await self._handler(exchange)
            if not exchange.finished and not exchange.client_gone:
                raise RuntimeError(f"the handler returned without finishing {exchange!r}")
        except RequestError as error:
            if exchange.response_started:
                exchange.abort()
            else:
                exchange.respond_error(error)
            error.let_go()
        except asyncio.CancelledError:
            # The client left, or the server is closing; either way nobody waits for this task's result.
            exchange.abort()
        except Exception as error:  # noqa: BLE001 - the boundary: whatever a handler does, the server lives on
            self._failed(exchange, error)
        finally:
            self._forget(exchange)

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        if self._observer is not None:
            self._observer.handler_failed(exchange.head, error)
        if exchange.response_started:
            exchange.abort()
        else:
            exchange.respond_error(RequestError(ErrorKind.INTERNAL, "internal error: see the log"))

    def _forget(self, exchange: Exchange) -> None:
        self._exchanges -= 1
        self._bodies_bytes -= exchange.body_bytes
        if exchange.task is not None:
            self._tasks.discard(exchange.task)
            exchange.task = None  # breaks the cycle of exchange and task, which would wait for the collector
