"""A client that shows what really came over the wire, and how the connection ended."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True):
    """One answer, read until the connection ended. `ended` is `fin` or `rst`; `complete` says the framing was."""

    raw: bytes
    ended: str

    @property
    def status(self) -> int:
        """Status of the answer; 0 when not even a status line came."""
        return int(self.raw.split(b" ", 2)[1]) if self.raw.startswith(b"HTTP/1.1 ") else 0

    @property
    def head(self) -> bytes:
        """Status line and headers."""
        return self.raw.partition(b"\r\n\r\n")[0]

    @property
    def chunked(self) -> bool:
        return b"transfer-encoding: chunked" in self.head.lower()

    @property
    def complete(self) -> bool:
        """The body's own framing says it is whole."""
        if self.chunked:
            return self.raw.endswith(b"\r\n0\r\n\r\n")
        for line in self.head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return len(self.raw.partition(b"\r\n\r\n")[2]) == int(line.split(b":")[1])
        return False

    @property
    def body(self) -> bytes:
        """Body without chunk framing, as far as it came."""
        rest = self.raw.partition(b"\r\n\r\n")[2]
        if not self.chunked:
            return rest
        body = b""
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            if not length:
                break
            body, rest = body + rest[:length], rest[length + 2 :]
        return body


def json_request(path: str, body: Any, **headers: str) -> bytes:
    """A POST that asks for the connection to be closed after it. `body` is JSON text or a value."""
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + data


def get_request(path: str) -> bytes:
    """A GET that asks for the connection to be closed after it."""
    return f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()


async def ask(port: int, request: bytes, *, within_s: float = 5.0) -> Answer:
    """Send bytes and read until the connection ends; TimeoutError when it does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = bytearray()
    ended = "fin"
    try:
        async with asyncio.timeout(within_s):
            writer.write(request)
            while data := await reader.read(65_536):
                raw += data
    except ConnectionResetError:
        ended = "rst"
    finally:
        writer.close()
    return Answer(bytes(raw), ended)


async def until(condition: Callable[[], object], *, within_s: float = 2.0) -> None:
    """Wait for a condition; AssertionError when it does not come true in time."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + within_s
    while not condition():
        assert loop.time() < give_up_s, f"not true within {within_s} s"
        await asyncio.sleep(0.002)
