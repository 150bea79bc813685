"""Clients that no server wishes for: dripping heads and bodies, readers that hardly read, bodies without measure.

Each says what became of it; none of them ever raises because it was turned away.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from gir.clock import Clock

RECEIVE_BYTES = 4_096
CHUNK_BYTES = 65_536
PATIENCE_S = 90.0


class Caller:
    """Where to call, and as whom."""

    def __init__(self, url: str, secret: str, clock: Clock) -> None:
        parts = urlsplit(url)
        self.address = (parts.hostname or "", parts.port or 80)
        self.secret = secret
        self.clock = clock

    def head(self, length: int | None, *extra: str) -> bytes:
        """The head of a chat request; `length` None for a chunked body."""
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        lines = ["POST /v1/chat/completions HTTP/1.1", "host: drill", "content-type: application/json", framing]
        lines += [f"authorization: Bearer {self.secret}", *extra, "", ""]
        return "\r\n".join(lines).encode()

    async def connect(self, receive_bytes: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, with a receive buffer as small as asked."""
        plain = socket.socket()
        plain.setblocking(False)
        if receive_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(plain, self.address)
        # The stream reads ahead up to twice its limit, which would make a slow reader quick.
        return await asyncio.open_connection(sock=plain, limit=receive_bytes or CHUNK_BYTES)

    async def drip(self, start: bytes, drops: bytes, gap_s: float = 1.0) -> float:
        """Send `start`, then one byte each `gap_s`, until the server has had enough; seconds that took."""
        since_s = self.clock.monotonic_s()
        reader, writer = await self.connect()
        closing = asyncio.get_running_loop().create_task(_until_closed(reader))
        try:
            writer.write(start)
            for byte in drops:
                await asyncio.wait({closing}, timeout=gap_s)
                if closing.done() or writer.is_closing():
                    break
                writer.write(bytes([byte]))
        finally:
            closing.cancel()
            writer.transport.abort()
        return self.clock.monotonic_s() - since_s

    async def sip(self, model: str, tokens: int, *, bytes_per_s: int) -> None:
        """Ask for a long stream and read so little of it (0: nothing) until the server ends it or this is cancelled."""
        body = chat(model, stream=True, max_tokens=tokens, ignore_eos=True)
        reader, writer = await self.connect(RECEIVE_BYTES)
        try:
            writer.write(self.head(len(body)) + body)
            _ = await reader.readuntil(b"\r\n\r\n")
            while True:
                await self.clock.sleep_s(1.0)
                if bytes_per_s and not await reader.read(bytes_per_s):
                    return
        except OSError:
            return
        finally:
            writer.transport.abort()

    async def post(self, head: bytes, pieces: Iterator[bytes]) -> tuple[int, int, float]:
        """Send a body piece by piece until it is over or answered: status (0 without one), bytes sent, seconds."""
        since_s = self.clock.monotonic_s()
        status, sent = 0, 0
        reader, writer = await self.connect()
        answering = asyncio.get_running_loop().create_task(reader.readline())
        try:
            writer.write(head)
            for piece in pieces:
                if answering.done() or writer.is_closing():
                    break
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
            async with asyncio.timeout(PATIENCE_S):
                line = await answering
            status = int(line.split()[1]) if line else 0
        except (OSError, TimeoutError, ValueError):
            status = 0
        finally:
            answering.cancel()
            writer.transport.abort()
        return status, sent, self.clock.monotonic_s() - since_s

    def post_together(self, head: bytes, body: bytes, count: int) -> list[int]:
        """Send `count` equal requests so that all are under way at once; their statuses, 0 for none.

        Blocking, for a thread of its own: the loop that measures must not be the one that floods.
        """
        half = len(body) // 2
        statuses = []
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_connection(self.address, PATIENCE_S)) for _ in range(count)]
            for part in (head + body[:half], body[half:]):
                for plain in sockets:
                    with contextlib.suppress(OSError):
                        plain.sendall(part)
            for plain in sockets:
                answer = b""
                with contextlib.suppress(OSError):
                    answer = plain.recv(64)
                statuses.append(int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0)
        return statuses


def chat(model: str, **fields: object) -> bytes:
    """A short chat request."""
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}).encode()


def chunks(piece: bytes, count: int) -> Iterator[bytes]:
    """A chunked body of so many equal pieces that never ends."""
    framed = b"%x\r\n%s\r\n" % (len(piece), piece)
    for _ in range(count):
        yield framed


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(CHUNK_BYTES):
            continue
    except OSError:
        return
