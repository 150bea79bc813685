"""An engine that costs next to nothing: the far end of the overhead bench.

It answers at once, so that what a router adds stands alone, and it works at protocol level (uvloop, httptools, answers
rendered beforehand) because it shares core 1 with the load client. Streams carry one chunk every 10 ms. Their timers
are batched in ten wheels of 1 ms phase: two hundred streams cost ten timers, and their chunks still arrive spread out
as they would from real engines. A request that holds the word `SLOW_WORD` gets a chunk a second instead: for weighing
what an open stream costs, not what a chunk costs.

Run by hand: `python -m tests.perf.mock_engine --port 8001 --port 8002` (ends with its standard input).
"""

import argparse
import asyncio
import re
import sys
from collections.abc import Iterable, Sequence

import httptools
import uvloop

from tests.perf import machine

CHUNK_INTERVAL_S = 0.010
SLOW_INTERVAL_S = 1.0
SLOW_WORD = b"slow-stream-please"
PHASES = 10
CHUNKS_DEFAULT = 100
MODEL = "bench"

_TOKENS_MAX = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')
"""Some routers rename the field on the way, so both spellings count."""
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_INCLUDE_USAGE = re.compile(rb'"include_usage"\s*:\s*true')

_USAGE = b'"usage":{"prompt_tokens":100,"completion_tokens":%d,"total_tokens":%d}'
_MODEL_CARD = b'{"object":"list","data":[{"id":"bench","object":"model","created":1700000000,"owned_by":"bench"}]}'
_SERVER_INFO = b'{"model_path":"bench","served_model_name":"bench","tp_size":1,"dp_size":1,"version":"0.0.0"}'
_METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="bench"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="bench"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="bench"} 0.0
"""

_HEAD_OF_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _answer(body: bytes, content_type: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (status, content_type, len(body), body)


def _event(delta: bytes, tail: bytes = b"") -> bytes:
    """One SSE event in one HTTP chunk; about 190 bytes with the delta of `_STEP`."""
    data = (
        b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
        b'"model":"bench","choices":[{"index":0,"delta":%s,"finish_reason":null}]%s}\n\n' % (delta, tail)
    )
    return b"%x\r\n%s\r\n" % (len(data), data)


COMPLETION = _answer(
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],'
    + _USAGE % (1, 101)
    + b"}"
)
_STEP = _event(b'{"content":" token"}')
_LAST = _event(b'{"content":" end"}').replace(b'"finish_reason":null', b'"finish_reason":"stop"')
_LAST = b"%x\r\n%s" % (len(_LAST.split(b"\r\n", 1)[1]) - 2, _LAST.split(b"\r\n", 1)[1])
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

_GET = {
    b"/v1/models": _answer(_MODEL_CARD),
    b"/metrics": _answer(_METRICS, b"text/plain; version=0.0.4"),
    b"/get_model_info": _answer(_SERVER_INFO),
    b"/model_info": _answer(_SERVER_INFO),
    b"/server_info": _answer(_SERVER_INFO),
    b"/get_server_info": _answer(_SERVER_INFO),
    b"/health": _answer(b"", b"text/plain"),
    b"/health_generate": _answer(b"", b"text/plain"),
    b"/healthz": _answer(b"", b"text/plain"),
}
_NOT_FOUND = _answer(b'{"detail":"Not Found"}', status=b"404 Not Found")


class Wheel:
    """All streams of one phase: one timer, one pass."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._streams: set[EngineConnection] = set()
        self._due_s = 0.0

    def add(self, stream: "EngineConnection") -> None:
        """Send the next chunk of `stream` within one interval, and then one every interval."""
        self._streams.add(stream)
        if len(self._streams) == 1:
            self._due_s = self._loop.time() + self._interval_s
            self._loop.call_at(self._due_s, self._turn)

    def remove(self, stream: "EngineConnection") -> None:
        self._streams.discard(stream)

    def _turn(self) -> None:
        for stream in list(self._streams):
            stream.step()
        if self._streams:
            # From the due time, not from now: a late turn must not slow the streams down.
            self._due_s += self._interval_s
            self._loop.call_at(self._due_s, self._turn)


class EngineConnection(asyncio.Protocol):
    """One client connection; requests are answered one after the other."""

    def __init__(self, wheels: Sequence[Wheel], slow: Wheel) -> None:
        self._wheels = wheels
        self._slow = slow
        self._wheel = slow
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._left = 0
        self._include_usage = False
        self._chunks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._wheel.remove(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        url, body = self._url, b"".join(self._body)
        self._url = b""
        self._body.clear()
        if not body:
            self._transport.write(_GET.get(url.partition(b"?")[0], _NOT_FOUND))
        elif _STREAM.search(body):
            self._start_stream(body)
        else:
            self._transport.write(COMPLETION)

    def _start_stream(self, body: bytes) -> None:
        asked = _TOKENS_MAX.search(body)
        self._chunks = max(1, int(asked[1])) if asked else CHUNKS_DEFAULT
        self._left = self._chunks
        self._include_usage = _INCLUDE_USAGE.search(body) is not None
        # The head goes with the first token, as engines send it.
        if self._left == 1:
            self._transport.write(_HEAD_OF_STREAM + self._end())
            return
        self._left -= 1
        self._transport.write(_HEAD_OF_STREAM + _STEP)
        phase = int(asyncio.get_running_loop().time() * 1_000) % PHASES
        self._wheel = self._slow if SLOW_WORD in body else self._wheels[phase]
        self._wheel.add(self)

    def step(self) -> None:
        """Send the next chunk; the last one carries the finish, the usage if asked for, and `[DONE]`."""
        self._left -= 1
        if self._left > 0:
            self._transport.write(_STEP)
            return
        self._wheel.remove(self)
        self._transport.write(self._end())

    def _end(self) -> bytes:
        usage = _event(b"{}", b"," + _USAGE % (self._chunks, 100 + self._chunks)) if self._include_usage else b""
        return _LAST + usage + _DONE


async def start(ports: Iterable[int], host: str = "127.0.0.1") -> list[asyncio.Server]:
    """Listen on each of `ports` (0 = any) in the running loop."""
    loop = asyncio.get_running_loop()
    wheels = [Wheel(loop, CHUNK_INTERVAL_S) for _ in range(PHASES)]
    slow = Wheel(loop, SLOW_INTERVAL_S)
    return [
        await loop.create_server(lambda: EngineConnection(wheels, slow), host, port, backlog=16_384) for port in ports
    ]


async def _serve(ports: list[int]) -> None:
    servers = await start(ports)
    print(" ".join(str(server.sockets[0].getsockname()[1]) for server in servers), flush=True)
    # Whoever started the engine holds the other end of stdin: when that process dies, so does this one.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, action="append", required=True, help="port to listen on; may be repeated")
    machine.raise_descriptor_limit()
    uvloop.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
