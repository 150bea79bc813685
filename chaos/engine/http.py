"""The smallest HTTP/1.1 server that can also misbehave to order.

Engines here must be able to reset, truncate, stall and lie at any byte, which a polite framework forbids, and must not
share code with the relay they test. One handler task runs per request; it is cancelled the moment the client leaves.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import httptools

from gir.tasks import TaskSet

Headers = list[tuple[str, str]]
BODY_BYTES_MAX = 64 * 1024 * 1024
PIPELINED_MAX = 16
KEEP_ALIVE_S = 5.0
"""uvicorn's: an idle connection is closed after it, and clients must live with that."""


class Request:
    """One request, body and all. Header names are lower-case, values as they came."""

    __slots__ = ("body", "headers", "method", "path", "query", "target")

    def __init__(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.method = method
        self.target = target
        path, _, query = target.partition(b"?")
        self.path = path.decode("latin-1")
        self.query = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
        self.headers = headers
        self.body = body

    def header(self, name: bytes) -> str | None:
        """First value of a header (lower-case name)."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)


Handler = Callable[[Request, "Connection"], Coroutine[Any, Any, None]]


class Connection(asyncio.Protocol):
    """One client. Answers go out through `reply`, or `start`, `send` and `end`."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._queue: deque[Request] = deque()
        self._idle: asyncio.TimerHandle | None = None
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()
        self._keep_alive = True
        self._chunked = False
        self.gone = False
        self.ended_here = False
        """This side has closed or reset it, so nobody left."""

    # What asyncio and the parser call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._server.connections.add(self)
        self._wait_idle()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio names it)
        self.gone = True
        self._server.connections.discard(self)
        self._stop_idle()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError):
            self.close()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > BODY_BYTES_MAX:
            raise ValueError("body too large")

    def on_message_complete(self) -> None:
        if len(self._queue) >= PIPELINED_MAX:
            raise ValueError("too many pipelined requests")
        method = self._parser.get_method().decode("latin-1")
        self._keep_alive = self._parser.should_keep_alive()
        self._queue.append(Request(method, self._target, self._headers, bytes(self._body)))
        self._target, self._headers, self._body = b"", [], bytearray()
        self._next()

    def _next(self) -> None:
        if self._task is None and self._queue and not self.gone:
            self._task = self._server.tasks.spawn(self._serve(self._queue.popleft()), name="engine request")
        elif self._task is None:
            self._wait_idle()

    async def _serve(self, request: Request) -> None:
        try:
            await self._server.handler(request, self)
        finally:
            self._task = None
        if not self._keep_alive:
            self.close()
        self._next()

    def _wait_idle(self) -> None:
        self._idle = asyncio.get_running_loop().call_later(self._server.keep_alive_s, self.close)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    # Answers.

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer at once."""
        self.send_raw(head(status, [("content-length", str(len(body))), *headers]) + body)

    def start(self, status: int, headers: Headers) -> None:
        """Head of a chunked answer."""
        self._chunked = True
        self.send_raw(head(status, [*headers, ("transfer-encoding", "chunked")]))

    def start_unframed(self, status: int, headers: Headers) -> None:
        """Head of an answer that ends when the connection does."""
        self._chunked = self._keep_alive = False
        self.send_raw(head(status, [*headers, ("connection", "close")]))

    def send(self, data: bytes) -> None:
        """Part of an answer that was started."""
        self.send_raw(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        """End of an answer that was started."""
        if self._chunked:
            self.send_raw(b"0\r\n\r\n")
            self._chunked = False

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are; dropped when the client has left."""
        if self._transport is not None and not self.gone:
            self._transport.write(data)

    def close(self) -> None:
        """Send what is buffered, then FIN."""
        self.ended_here = True
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """RST at once; buffered bytes are lost."""
        self.ended_here = True
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None and not self._transport.is_closing():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()


class Server:
    """Listens on one loopback port and runs `handler` for each request."""

    def __init__(self, handler: Handler, tasks: TaskSet, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self.handler = handler
        self.tasks = tasks
        self.keep_alive_s = keep_alive_s
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._address = ("127.0.0.1", 0)

    @property
    def port(self) -> int:
        """Port in use; 0 before the first start."""
        return self._address[1]

    @property
    def listening(self) -> bool:
        """New connections are accepted."""
        return self._server is not None

    async def start(self, host: str, port: int) -> None:
        """Listen. OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        self._address = (host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and reset every connection, as a killed process does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.reset()
        await asyncio.sleep(0)

    async def restart(self) -> None:
        """Listen again on the same port."""
        await self.start(*self._address)


def head(status: int, headers: Headers) -> bytes:
    """Status line and headers, in uvicorn's manner."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"date: {formatdate(usegmt=True)}",
        "server: uvicorn",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
