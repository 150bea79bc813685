"""Load at protocol level: cheap enough that one core drives a router on another core to its limit.

Two ways of asking: `closed` (each connection asks again as soon as it has its answer: finds the limit) and `paced`
(Poisson arrivals at a rate, latency counted from the moment of arrival: the wait of an honest client). Both work on
keep-alive connections; streams count their chunks and the gaps between them.

Times are seconds of `time.perf_counter`.
"""

import asyncio
import ctypes
import dataclasses
import os
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

import httptools

from tests.perf.peers import API_KEY

LATE_CHUNK_S = 0.020
"""Engines of the bench send a chunk every 10 ms; one that comes after twice that was held up."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Where to send what. `requests` are whole HTTP requests, drawn in turn."""

    host: str
    port: int
    requests: Sequence[bytes]


@dataclasses.dataclass
class Window:
    """What one measuring window saw; latencies in seconds, unsorted."""

    duration_s: float = 0.0
    requests: int = 0
    errors: int = 0
    chunks: int = 0
    chunks_late: int = 0
    first_chunk_s: list[float] = dataclasses.field(default_factory=list)
    latency_s: list[float] = dataclasses.field(default_factory=list)
    cpu_s: float = 0.0
    """CPU time the probe gave between the edges of the window."""

    def quantile_s(self, share: float) -> float:
        """The latency below which `share` of the requests stayed; 0 when there were none."""
        ordered = sorted(self.latency_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def chat_request(port: int, *, prompt_bytes: int, stream: bool, tokens_max: int, variant: int, system: str) -> bytes:
    """One chat completion as an OpenAI client would send it.

    The first half of the prompt (`system`, repeated) is the same in every `variant`, the rest is its own.
    """
    shared = (f"{system} " * (prompt_bytes // len(system) + 1))[: prompt_bytes // 2]
    own = (f"Question {variant}: what is {variant} plus {variant * 7}? " * (prompt_bytes // 30 + 1))[
        : prompt_bytes - len(shared)
    ]
    body = (
        f'{{"model":"bench","messages":[{{"role":"system","content":"{shared}"}},{{"role":"user","content":"{own}"}}],'
        f'"max_tokens":{tokens_max},"temperature":0.7,"stream":{"true" if stream else "false"}}}'
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nUser-Agent: OpenAI/Python 2.0.0\r\nAuthorization: Bearer {API_KEY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def chat_target(
    port: int,
    *,
    prompt_bytes: int = 400,
    stream: bool = False,
    tokens_max: int = 100,
    variants: int = 64,
    system: str = "You are a helpful assistant. Answer briefly and to the point.",
) -> Target:
    """`variants` different chat requests for the router on `port`."""
    build = [
        chat_request(
            port, prompt_bytes=prompt_bytes, stream=stream, tokens_max=tokens_max, variant=variant, system=system
        )
        for variant in range(variants)
    ]
    return Target("127.0.0.1", port, build)


class Connection(asyncio.Protocol):
    """One keep-alive connection of the load; opened again when the router closes it."""

    __slots__ = ("_load", "_parser", "_stale_s", "_tail", "_transport", "asked_s", "busy", "opened")

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self.opened = asyncio.get_running_loop().create_future()
        self.busy = False
        self.asked_s = 0.0
        self._stale_s = 0.0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._parser = httptools.HttpResponseParser(self)
        if not self.opened.done():
            self.opened.set_result(None)

    def ask(self, request: bytes, arrived_s: float) -> None:
        """Send `request`; its latency counts from `arrived_s`."""
        assert self._transport is not None
        self.busy = True
        self.asked_s = arrived_s
        self._stale_s = 0.0
        self._tail = b""
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        load = self._load
        if load.streams:
            self._count_chunks(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def _count_chunks(self, data: bytes) -> None:
        window, now_s = self._load.window, time.perf_counter()
        chunks = data.count(b"data: {")
        if chunks:
            window.chunks += chunks
            if not self._stale_s:
                window.first_chunk_s.append(now_s - self.asked_s)
            elif now_s - self._stale_s > LATE_CHUNK_S:
                window.chunks_late += 1
            self._stale_s = now_s
        self._tail = (self._tail + data)[-32:] if len(data) < 32 else data[-32:]

    def on_message_complete(self) -> None:
        self.busy = False
        good = self._parser.get_status_code() == 200 and (not self._load.streams or b"[DONE]" in self._tail)
        keep = self._parser.should_keep_alive()
        # A fresh parser is cheaper than a pipelining surprise, and some peers end a message with a bare EOF.
        self._load.answered(self, good=good)
        if not keep:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._load.lost(self)


class Load:
    """A set of connections to one target. Use as an async context manager."""

    def __init__(self, target: Target, *, connections: int, streams: bool = False) -> None:
        self.window = Window()
        self.streams = streams
        self._target = target
        self._wanted = connections
        self._connections: list[Connection] = []
        self._asked = 0
        self._closed_loop = False
        self._idle: deque[Connection] = deque()
        self._late: deque[float] = deque()
        self._ended = False

    async def __aenter__(self) -> Self:
        for _ in range(self._wanted):
            await self._open()
        return self

    async def _open(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self), self._target.host, self._target.port
        )
        self._connections.append(connection)
        return connection

    async def __aexit__(self, *_: object) -> None:
        self._ended = True
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0.05)

    def _next_request(self) -> bytes:
        self._asked += 1
        return self._target.requests[self._asked % len(self._target.requests)]

    def answered(self, connection: Connection, *, good: bool) -> None:
        """Called by `connection` at the end of each answer."""
        now_s = time.perf_counter()
        self.window.requests += 1
        self.window.errors += not good
        self.window.latency_s.append(now_s - connection.asked_s)
        self._continue(connection, now_s)

    def _continue(self, connection: Connection, now_s: float) -> None:
        if self._ended:
            return
        if self._closed_loop:
            # Not from inside the parser's callback: the answer may still have bytes behind it.
            asyncio.get_running_loop().call_soon(self._ask_again, connection)
        elif self._late:
            connection.ask(self._next_request(), self._late.popleft())
        else:
            self._idle.append(connection)

    def _ask_again(self, connection: Connection) -> None:
        if connection._transport is not None and not connection.busy:
            connection.ask(self._next_request(), time.perf_counter())

    def lost(self, connection: Connection) -> None:
        """Called when the router closed `connection`: count a cut answer as an error and open another."""
        if connection.busy:
            self.window.errors += 1
        if self._ended:
            return
        self._connections.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        connection = await self._open()
        self._continue(connection, time.perf_counter())

    async def closed(self, *, warm_s: float, window_s: float, cpu: Callable[[], float]) -> Window:
        """Every connection always has a request under way."""
        self._closed_loop = True
        for connection in self._connections:
            connection.ask(self._next_request(), time.perf_counter())
            # Spread the start, so that streams do not beat in step.
            await asyncio.sleep(0.002)
        return await self._measure(warm_s, window_s, cpu)

    async def paced(self, rate_per_s: float, *, warm_s: float, window_s: float, cpu: Callable[[], float]) -> Window:
        """Poisson arrivals at `rate_per_s`; one that finds every connection busy waits and its wait counts."""
        self._idle.extend(self._connections)
        draw = random.Random(7)

        def arrive(now_s: float) -> None:
            if self._idle:
                self._idle.popleft().ask(self._next_request(), now_s)
            else:
                self._late.append(now_s)

        with _Arrivals(lambda: draw.expovariate(rate_per_s), arrive):
            return await self._measure(warm_s, window_s, cpu)

    async def _measure(self, warm_s: float, window_s: float, cpu: Callable[[], float]) -> Window:
        await asyncio.sleep(warm_s)
        self.window = window = Window()
        started_s, cpu_started_s = time.perf_counter(), cpu()
        await asyncio.sleep(window_s)
        window.duration_s, window.cpu_s = time.perf_counter() - started_s, cpu() - cpu_started_s
        self.window = Window()
        return window


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class _Arrivals:
    """Calls `arrive(due_s)` at the times `gap_s` gives, to some ten microseconds.

    The loop's own timers tick in milliseconds, which would turn Poisson arrivals into bursts and add a queue that no
    client made; so the kernel's timer wakes the loop through a descriptor.
    """

    def __init__(self, gap_s: Callable[[], float], arrive: Callable[[float], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._gap_s = gap_s
        self._arrive = arrive
        self._descriptor = -1
        self._due_s = 0.0

    def __enter__(self) -> Self:
        clock_monotonic, nonblocking = 1, os.O_NONBLOCK
        self._descriptor = self._libc.timerfd_create(clock_monotonic, nonblocking)
        assert self._descriptor >= 0, "the kernel offers no timerfd"
        asyncio.get_running_loop().add_reader(self._descriptor, self._fire)
        self._due_s = time.perf_counter()
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _fire(self) -> None:
        os.read(self._descriptor, 8)
        while self._due_s <= time.perf_counter():
            self._arrive(self._due_s)
            self._due_s += self._gap_s()
        self._arm()

    def _arm(self) -> None:
        left_ns = max(1, int((self._due_s - time.perf_counter()) * 1e9))
        spec = _Itimerspec(0, 0, left_ns // 10**9, left_ns % 10**9)
        self._libc.timerfd_settime(self._descriptor, 0, ctypes.byref(spec), None)
