"""Scripted clusters on real sockets: each answers what the test tells it to, and remembers what it was sent."""

import asyncio
from collections.abc import Awaitable, Callable

from gir.clock import SystemClock
from gir.net.exchange import Exchange
from gir.net.limits import ServerLimits
from gir.net.server import HttpServer

Script = Callable[[Exchange], Awaitable[None]]
EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]


def chunk_event(text: str, *, role: bool = False, finish: str | None = None) -> bytes:
    """One chat chunk event in vLLM's shape."""
    delta = '{"role":"assistant","content":""}' if role else f'{{"content":"{text}"}}'
    reason = f'"{finish}"' if finish else "null"
    return (
        f'data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"llama",'
        f'"choices":[{{"index":0,"delta":{delta},"finish_reason":{reason}}}]}}\n\n'
    ).encode()


async def stream_tokens(exchange: Exchange, count: int, *, gap_s: float = 0.0, done: bool = True) -> None:
    """Answer with `count` numbered tokens, `[DONE]` at the end if `done`."""
    exchange.start(200, EVENT_STREAM)
    exchange.write(chunk_event("", role=True))
    for number in range(count):
        if gap_s:
            await asyncio.sleep(gap_s)
        exchange.write(chunk_event(f"tok-{number:04d} "))
    if done:
        exchange.write(chunk_event("", finish="stop") + b"data: [DONE]\n\n")
    exchange.finish()


class FakeCluster:
    """A cluster's data port. `script` may be swapped at any time; `seen` holds (head, body) of each request."""

    def __init__(self, name: str, script: Script) -> None:
        self.name = name
        self.script = script
        self.seen: list[tuple[dict[bytes, bytes], bytes]] = []
        self.moved_to: str | None = None
        """Another URL to report than its own."""
        self.gone = 0
        """Requests whose client (the router) left before the answer was complete."""
        self._server = HttpServer(self._handle, limits=ServerLimits(), clock=SystemClock(), origin="agent")

    @property
    def url(self) -> str:
        """Base URL, as its agent would report it."""
        return self.moved_to or f"http://127.0.0.1:{self._server.port}"

    async def start(self) -> "FakeCluster":
        """Listen on a free port."""
        await self._server.start("127.0.0.1", 0)
        return self

    async def close(self) -> None:
        """Stop at once."""
        await self._server.close()

    async def _handle(self, exchange: Exchange) -> None:
        try:
            body = await exchange.read_body()
            self.seen.append((dict(exchange.head.headers), body))
            await self.script(exchange)
        except asyncio.CancelledError:
            self.gone += 1
            raise
