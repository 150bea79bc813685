"""Both ends of the relay engine on real sockets: a raw client, a scripted upstream, and a small proxy between them."""

import asyncio
import functools
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

import uvloop

from gir.clock import SystemClock
from gir.model.errors import ErrorKind
from gir.model.request import Api
from gir.net.errors import UpstreamError
from gir.net.exchange import Exchange
from gir.net.message import RequestHead
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.server import Handler, HttpServer, ServerLimits
from gir.net.sse import EventFramer
from gir.net.tls import ClientTls, ServerTls
from gir.net.upstream import CallDeadlines, UpstreamCall
from gir.wire.headers import NOT_RETURNED

DEADLINES = CallDeadlines(head_s=5.0, first_token_s=5.0, idle_s=5.0)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LAST = b"0\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
FAULT = b'data: {"error":{"message":"out of memory"}}\n\n'
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chat() -> EventFramer:
    """A framer of chat streams."""
    return EventFramer(Api.CHAT)


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the loop that production uses."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


async def eventually(condition: Callable[[], object], within_s: float = 2.0) -> float:
    """Wait until `condition` holds; how long that took. Fails after `within_s`."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    while not condition():
        assert loop.time() - start_s < within_s, "not within the time allowed"
        await asyncio.sleep(0.002)
    return loop.time() - start_s


def chunk(data: bytes) -> bytes:
    """`data` as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def post(body: bytes = b"{}", *lines: bytes, path: bytes = b"/v1/x") -> bytes:
    """A POST with its length."""
    return b"\r\n".join(
        [b"POST %b HTTP/1.1" % path, b"Host: gir", *lines, b"Content-Length: %d" % len(body), b"", body]
    )


class Client:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, *, receive_bytes: int | None = None, **options: Any) -> Self:
        """`receive_bytes` bounds the kernel's buffer, for clients that are to look slow soon."""
        sock = socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        return cls(*await asyncio.open_connection(sock=sock, limit=2**22, **options))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[bytes, bytes]]:
        """Status and headers of the next answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
        headers = dict(line.split(b": ", 1) for line in lines[1:])
        return int(lines[0].split(b" ")[1]), headers

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body of the next answer; IncompleteReadError when it is cut."""
        status, headers = await self.head()
        if headers.get(b"transfer-encoding") == b"chunked":
            return status, headers, await self.chunked()
        if b"content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers[b"content-length"]))
        return status, headers, await self.reader.read()

    async def chunked(self) -> bytes:
        """A chunked body to its end."""
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"
        return body

    async def ask(self, data: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        """Send and read one answer."""
        self.send(data)
        return await self.answer()

    async def rest(self) -> bytes:
        """Everything until the server closes, or resets."""
        data = b""
        with suppress(ConnectionError):
            while part := await self.reader.read(65_536):
                data += part
        return data

    def half_close(self) -> None:
        """Send the end of input and keep reading."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Vanish, as a killed process does."""
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class UpstreamConnection:
    """One connection a scripted upstream has accepted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.requests: list[tuple[bytes, bytes]] = []
        self.closed = asyncio.Event()

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request; raises IncompleteReadError when the proxy closes instead."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        self.requests.append((head, body))
        return head, body

    def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():
            raise ConnectionResetError("the proxy has closed")
        self.writer.write(data)

    def reset(self) -> None:
        self.writer.transport.abort()

    async def until_closed(self) -> None:
        """Wait until the proxy closes."""
        while await self.reader.read(65_536):
            pass


Script = Callable[[UpstreamConnection], Awaitable[None]]


class Upstream:
    """A server that runs `script` for each connection, then closes it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connections: list[UpstreamConnection] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, **options: Any) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20, **options)
        return self

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = UpstreamConnection(reader, writer)
        self.connections.append(connection)
        try:
            await self.script(connection)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            connection.closed.set()
            writer.close()
            self._tasks.discard(task)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0.01)


class Observer:
    """What happened outside of handlers."""

    def __init__(self) -> None:
        self.kinds: list[ErrorKind] = []
        self.failures: list[BaseException] = []

    def refused(self, kind: ErrorKind) -> None:
        self.kinds.append(kind)

    def handler_failed(self, head: RequestHead, error: BaseException) -> None:
        self.failures.append(error)


class Rig:
    """A server under test, and what it needs. Use as an async context manager."""

    def __init__(
        self,
        handler: Handler,
        limits: ServerLimits | None = None,
        *,
        tls: ServerTls | None = None,
        port: int = 0,
        reuse_port: bool = False,
    ) -> None:
        self.observer = Observer()
        self.clock = SystemClock(seed=1)
        self.server = HttpServer(
            handler, limits=limits or ServerLimits(), clock=self.clock, origin="gir", tls=tls, observer=self.observer
        )
        self._port = port
        self._reuse_port = reuse_port
        self._clients: list[Client] = []

    async def __aenter__(self) -> Self:
        await self.server.start("127.0.0.1", self._port, reuse_port=self._reuse_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            client.reset()
        await self.server.close()
        await asyncio.sleep(0.01)
        assert (self.server.connections_open, self.server.exchanges_open) == (0, 0)

    @property
    def port(self) -> int:
        return self.server.port

    async def client(self, **options: Any) -> Client:
        client = await Client.connect(self.port, **options)
        self._clients.append(client)
        return client


class Proxy(Rig):
    """Server, pool and a handler that forwards: a router without its head. `outcomes` holds how each call ended."""

    def __init__(
        self,
        script: Script,
        *,
        limits: ServerLimits | None = None,
        pool: PoolLimits | None = None,
        deadlines: CallDeadlines = DEADLINES,
        framer: Callable[[], EventFramer | None] = lambda: None,
        client_tls: ClientTls | None = None,
        upstream_options: dict[str, Any] | None = None,
        resend: bool = True,
    ) -> None:
        super().__init__(self._forward, limits)
        self.upstream = Upstream(script)
        self.pool: UpstreamPool
        self.outcomes: list[str] = []
        self.calls: list[UpstreamCall] = []
        self._pool_limits = pool or PoolLimits(connect_s=1.0)
        self._deadlines = deadlines
        self._framer = framer
        self._client_tls = client_tls
        self._upstream_options = upstream_options or {}
        self._resend = resend

    async def __aenter__(self) -> Self:
        await self.upstream.start(**self._upstream_options)
        scheme = "https" if self._client_tls else "http"
        endpoint = Endpoint.parse(f"{scheme}://127.0.0.1:{self.upstream.port}")
        self.pool = UpstreamPool(endpoint, self._pool_limits, clock=self.clock, tls=self._client_tls)
        return await super().__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        await self.pool.close()
        await self.upstream.close()
        assert (self.pool.active, self.pool.idle) == (0, 0)

    async def _forward(self, exchange: Exchange) -> None:
        try:
            await self._relay(exchange)
            self.outcomes.append("ok")
        except UpstreamError as error:
            self.outcomes.append(f"{type(error).__name__} in {error.phase.value}")
            exchange.abort()
        except asyncio.CancelledError:
            self.outcomes.append("client gone" if exchange.client_gone else "cancelled")
            raise

    async def _relay(self, exchange: Exchange) -> None:
        body = await exchange.read_body()
        head = request_head(exchange.head.method, exchange.head.target, self.pool.endpoint.authority, [], len(body))
        call = await self.pool.send(head, body, deadlines=self._deadlines, idempotent_resend=self._resend)
        self.calls.append(call)
        answer = await call.head()
        headers = [header for header in answer.headers if header[0] not in NOT_RETURNED]
        framer = self._framer()
        if framer is None and answer.get(b"content-length") is not None:
            exchange.respond(answer.status, headers, await call.read_all(2**26))
            return
        first = await call.hold(framer) if framer is not None else b""
        exchange.start(answer.status, headers)
        exchange.write(first)
        await call.relay(exchange, framer)
        exchange.finish()
