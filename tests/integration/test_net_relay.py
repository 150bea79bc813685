"""From the upstream to the client: what is relayed, when it is cut off, and how each side holds the other back."""

import asyncio
import gc
import json
import resource
from pathlib import Path

import pytest

from gir.clock import SystemClock
from gir.model.request import Api
from gir.net.errors import ResponseTooLarge
from gir.net.exchange import Exchange
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.server import ServerLimits
from gir.net.sse import EventFramer
from gir.net.upstream import CallDeadlines
from tests.support.net import (
    DEADLINES,
    OK,
    SSE_HEAD,
    Proxy,
    Rig,
    Upstream,
    UpstreamConnection,
    chunk,
    eventually,
    on_uvloop,
    post,
)
from tests.support.streams import captured

LAST = b"0\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
FAULT = b'data: {"error":{"message":"out of memory"}}\n\n'


def chat() -> EventFramer:
    return EventFramer(Api.CHAT)


@on_uvloop
async def test_a_json_answer_passes_unchanged() -> None:
    async def script(connection: UpstreamConnection) -> None:
        while True:
            _, body = await connection.request()
            answer = b'{"seen":' + body + b"}"
            connection.send(b"HTTP/1.1 418 x\r\nX-Y: z\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)

    async with Proxy(script) as proxy:
        client = await proxy.client()
        for _ in range(3):
            status, headers, body = await client.ask(post(b'{"a":  1}'))
            assert (status, headers[b"x-y"], body) == (418, b"z", b'{"seen":{"a":  1}}')
        assert len(proxy.upstream.connections) == 1


@pytest.mark.parametrize("name", ["chat-stream", "chat-stream-usage", "chat-stream-continuous-usage"])
@pytest.mark.parametrize("framed", [True, False])
@on_uvloop
async def test_captured_streams_pass_byte_for_byte_however_they_are_cut(name: str, framed: bool) -> None:
    body = captured(name)

    async def script(connection: UpstreamConnection) -> None:
        for step in (7, 100, 10_000):
            await connection.request()
            connection.send(SSE_HEAD)
            for start in range(0, len(body), step):
                connection.send(chunk(body[start : start + step]))
                if start % (step * 16) == 0:
                    await asyncio.sleep(0)
            connection.send(LAST)
        await connection.until_closed()

    async with Proxy(script, framer=chat if framed else lambda: None) as proxy:
        client = await proxy.client()
        for _ in range(3):
            assert (await client.ask(post()))[2] == body
        assert proxy.outcomes == ["ok"] * 3
        assert proxy.pool.idle == 1


@on_uvloop
async def test_one_upstream_read_is_one_client_write() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD + chunk(ROLE) + chunk(TOKEN))
        for _ in range(10):
            await asyncio.sleep(0.01)
            connection.send(chunk(TOKEN) + chunk(TOKEN) + chunk(TOKEN))
        await asyncio.sleep(0.01)
        connection.send(chunk(STOP + DONE) + LAST)
        await connection.until_closed()

    async with Proxy(script, framer=chat) as proxy:
        client = await proxy.client()
        client.send(post())
        await client.head()
        sizes = []
        while size := int(await client.reader.readuntil(b"\r\n"), 16):
            sizes.append(size)
            await client.reader.readexactly(size + 2)
        assert sizes == [len(ROLE + TOKEN), *[len(TOKEN) * 3] * 10, len(STOP + DONE)]


@on_uvloop
async def test_close_delimited_and_http_1_0_answers_are_relayed() -> None:
    for version in (b"1.0", b"1.1"):

        async def script(connection: UpstreamConnection, version: bytes = version) -> None:
            await connection.request()
            connection.send(b"HTTP/%b 200 OK\r\ncontent-type: text/plain\r\n\r\n" % version)
            for _ in range(3):
                connection.send(b"part ")
                await asyncio.sleep(0.002)

        async with Proxy(script) as proxy:
            client = await proxy.client()
            assert (await client.ask(post()))[2] == b"part part part "


TRUNCATIONS = {
    "reset": (SSE_HEAD + chunk(ROLE + TOKEN), True, "ConnectionLost in streaming"),
    "clean end between chunks": (SSE_HEAD + chunk(ROLE + TOKEN), False, "ConnectionLost in streaming"),
    "in the middle of an event": (SSE_HEAD + chunk(ROLE + TOKEN + TOKEN[:20]), False, "ConnectionLost in streaming"),
    "in the middle of a chunk": (SSE_HEAD + chunk(ROLE + TOKEN + TOKEN)[:-10], False, "ConnectionLost in streaming"),
    "before the first token": (SSE_HEAD + chunk(ROLE), False, "ConnectionLost in head"),
    "after the head": (SSE_HEAD, True, "ConnectionLost in head"),
    "before the head": (b"", False, "ConnectionLost in dispatched"),
}


@pytest.mark.parametrize(("answer", "reset", "outcome"), TRUNCATIONS.values(), ids=TRUNCATIONS.keys())
@on_uvloop
async def test_a_cut_stream_is_an_error_and_only_whole_events_have_passed(
    answer: bytes, reset: bool, outcome: str
) -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        if answer:
            connection.send(answer)
        await asyncio.sleep(0.02)
        if reset:
            connection.reset()

    async with Proxy(script, framer=chat) as proxy:
        client = await proxy.client()
        client.send(post())
        received = await client.rest()
        assert proxy.outcomes == [outcome]
        assert b"0\r\n\r\n" not in received
        if "streaming" in outcome:
            assert received.endswith(TOKEN + b"\r\n"), "half an event leaked"
        else:
            assert received == b""


@on_uvloop
async def test_a_clean_end_without_proof_is_left_to_the_caller_to_judge() -> None:
    """EOF is no proof: the framer says so, the relay just reports the end of the HTTP body."""
    framers: list[EventFramer] = []

    def framer() -> EventFramer:
        framers.append(EventFramer(Api.CHAT))
        return framers[-1]

    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD + chunk(ROLE + TOKEN) + LAST)
        await connection.until_closed()

    async with Proxy(script, framer=framer) as proxy:
        client = await proxy.client()
        assert (await client.ask(post()))[2] == ROLE + TOKEN
        assert not framers[0].terminal_seen


@on_uvloop
async def test_an_error_event_inside_a_200_is_seen_before_anything_reaches_the_client() -> None:
    held: list[tuple[bytes | None, bool]] = []

    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD + chunk(b": ping\n\n"))
        await asyncio.sleep(0.01)
        connection.send(chunk(ROLE))
        await asyncio.sleep(0.01)
        connection.send(chunk(FAULT + DONE) + LAST)
        await connection.until_closed()

    upstream = await Upstream(script).start()
    pool = UpstreamPool(
        Endpoint.parse(f"http://127.0.0.1:{upstream.port}"), PoolLimits(connect_s=1.0), clock=SystemClock()
    )

    async def handler(exchange: Exchange) -> None:
        call = await pool.send(request_head("POST", b"/", b"x", [], 0), b"", deadlines=DEADLINES)
        assert (await call.head()).status == 200
        framer = chat()
        await call.hold(framer)
        held.append((framer.error_event, framer.content_seen))
        assert not exchange.response_started
        exchange.respond(502, [], b"")

    async with Rig(handler) as rig:
        client = await rig.client()
        assert (await client.ask(post()))[0] == 502
        assert held == [(json.dumps({"error": {"message": "out of memory"}}, separators=(",", ":")).encode(), False)]
    await pool.close()
    await upstream.close()


def deadlines(**chosen: float) -> CallDeadlines:
    values = {"head_s": 5.0, "first_token_s": 5.0, "idle_s": 5.0}
    return CallDeadlines(**(values | chosen))


async def send_then_hang(connection: UpstreamConnection, *parts: bytes) -> None:
    await connection.request()
    for part in parts:
        connection.send(part)
        await asyncio.sleep(0.05)
    await connection.until_closed()


LATE = {
    "head": (deadlines(head_s=0.3), (), "HeadTimeout in dispatched"),
    "head, interim answers do not help": (
        deadlines(head_s=0.3),
        (b"HTTP/1.1 100 Continue\r\n\r\n",) * 3,
        "HeadTimeout in dispatched",
    ),
    "first token": (deadlines(first_token_s=0.3), (SSE_HEAD, chunk(ROLE)), "FirstTokenTimeout in head"),
    "first token, comments do not help": (
        deadlines(first_token_s=0.3),
        (SSE_HEAD, *[chunk(b": ping\n\n")] * 10),
        "FirstTokenTimeout in head",
    ),
    "idle": (deadlines(idle_s=0.3), (SSE_HEAD, chunk(ROLE + TOKEN), chunk(TOKEN)), "IdleTimeout in streaming"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("limits", "parts", "outcome"), LATE.values(), ids=LATE.keys())
@on_uvloop
async def test_each_deadline_ends_the_call_and_the_upstream_connection(
    limits: CallDeadlines, parts: tuple[bytes, ...], outcome: str
) -> None:
    async with Proxy(lambda connection: send_then_hang(connection, *parts), framer=chat, deadlines=limits) as proxy:
        client = await proxy.client()
        client.send(post())
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await client.rest()
        assert proxy.outcomes == [outcome]
        assert 0.28 <= loop.time() - start_s <= 0.3 + 0.05 * len(parts) + 0.3
        await eventually(proxy.upstream.connections[0].closed.is_set)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "phase"),
    [((), "dispatched"), ((SSE_HEAD, chunk(ROLE)), "head"), ((SSE_HEAD, *[chunk(ROLE + TOKEN)] * 20), "streaming")],
)
@on_uvloop
async def test_the_total_deadline_holds_in_every_phase(parts: tuple[bytes, ...], phase: str) -> None:
    total = deadlines(total_at_s=SystemClock().monotonic_s() + 0.4)
    async with Proxy(lambda connection: send_then_hang(connection, *parts), framer=chat, deadlines=total) as proxy:
        client = await proxy.client()
        client.send(post())
        await client.rest()
        assert proxy.outcomes == [f"TotalTimeout in {phase}"]
        assert SystemClock().monotonic_s() - total.total_at_s < 0.15


@pytest.mark.slow
@on_uvloop
async def test_a_steady_stream_outlives_every_gap_deadline() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD + chunk(ROLE))
        for _ in range(15):
            await asyncio.sleep(0.1)
            connection.send(chunk(TOKEN))
        connection.send(chunk(STOP + DONE) + LAST)
        await connection.until_closed()

    limits = deadlines(head_s=0.3, first_token_s=0.3, idle_s=0.3)
    async with Proxy(script, framer=chat, deadlines=limits) as proxy:
        client = await proxy.client()
        assert (await client.ask(post()))[2] == ROLE + TOKEN * 15 + STOP + DONE
        assert proxy.outcomes == ["ok"]


async def flood(connection: UpstreamConnection) -> None:
    """As much as the connection takes, for ever."""
    await connection.request()
    connection.send(SSE_HEAD + chunk(ROLE + TOKEN))
    while True:
        connection.send(chunk(TOKEN * 100))
        await connection.writer.drain()
        await asyncio.sleep(0)


@pytest.mark.slow
@on_uvloop
async def test_a_slow_reader_pauses_the_upstream_and_costs_little_memory() -> None:
    readers = 40
    async with Proxy(flood, framer=chat, limits=ServerLimits(write_high_bytes=32_768)) as proxy:
        clients = []
        for _ in range(readers):
            client = await proxy.client(receive_bytes=4_096)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(post())
            clients.append(client)
        await eventually(
            lambda: (
                len(proxy.server._connections) == readers
                and all(not connection.writable for connection in proxy.server._connections)
            ),
            within_s=10,
        )
        sent = sum(call.body_bytes for call in proxy.calls)
        await asyncio.sleep(0.3)
        assert sum(call.body_bytes for call in proxy.calls) == sent, "the upstream was not paused"
        for connection in proxy.server._connections:
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() <= 32_768 + 256_000 + 1_000
        others = await proxy.client()
        others.send(post())
        assert (await others.head())[0] == 200
        clients[0].writer.transport.resume_reading()  # type: ignore[attr-defined]
        await eventually(lambda: sum(call.body_bytes for call in proxy.calls) > sent)
        for client in [*clients, others]:
            client.reset()
        await eventually(lambda: proxy.pool.active == 0, within_s=5)


@on_uvloop
async def test_a_body_nobody_asks_for_yet_is_bounded_by_pausing_the_upstream() -> None:
    upstream = await Upstream(flood).start()
    pool = UpstreamPool(
        Endpoint.parse(f"http://127.0.0.1:{upstream.port}"), PoolLimits(connect_s=1.0), clock=SystemClock()
    )
    call = await pool.send(request_head("POST", b"/", b"x", [], 0), b"", deadlines=DEADLINES)
    await call.head()
    await eventually(lambda: call._paused)
    held = call.body_bytes
    await asyncio.sleep(0.05)
    assert call.body_bytes == held <= 65_536 + 256_000
    call.abort()
    await pool.close()
    await upstream.close()


@on_uvloop
async def test_comments_without_content_are_not_held_for_ever() -> None:
    async def chatter(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD)
        while True:
            connection.send(chunk(b": ping\n\n" * 1_000))
            await connection.writer.drain()

    upstream = await Upstream(chatter).start()
    pool = UpstreamPool(
        Endpoint.parse(f"http://127.0.0.1:{upstream.port}"), PoolLimits(connect_s=1.0), clock=SystemClock()
    )
    call = await pool.send(request_head("POST", b"/", b"x", [], 0), b"", deadlines=DEADLINES)
    with pytest.raises(ResponseTooLarge, match="no content"):
        await call.hold(chat())
    await pool.close()
    await upstream.close()


@on_uvloop
async def test_giving_up_from_outside_reaches_whoever_waits() -> None:
    async def hang(connection: UpstreamConnection) -> None:
        await send_then_hang(connection)

    async with Proxy(hang) as proxy:
        client = await proxy.client()
        client.send(post())
        await eventually(lambda: proxy.calls)
        proxy.calls[0].give_up(ResponseTooLarge(proxy.calls[0].phase, "enough"))
        await client.rest()
        assert proxy.outcomes == ["ResponseTooLarge in dispatched"]
        await eventually(proxy.upstream.connections[0].closed.is_set)


@on_uvloop
async def test_a_large_download_arrives_whole_through_back_pressure() -> None:
    body = bytes(range(256)) * 40_000

    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 100_000):
            connection.send(chunk(body[start : start + 100_000]))
        connection.send(LAST)
        await connection.until_closed()

    async with Proxy(script) as proxy:
        client = await proxy.client(receive_bytes=16_384)
        assert (await client.ask(post()))[2] == body


@pytest.mark.slow
@on_uvloop
async def test_an_open_stream_costs_little_memory() -> None:
    """Both ends of 500 streams live in this process, so the bound is generous: it catches buffers, not bytes."""
    streams = 500

    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(SSE_HEAD + chunk(ROLE + TOKEN))
        await connection.until_closed()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4_096)), hard))
    async with Proxy(
        script, framer=chat, pool=PoolLimits(connect_s=5.0), upstream_options={"backlog": streams}
    ) as proxy:
        gc.collect()
        before = _rss_bytes()
        clients = [await proxy.client() for _ in range(streams)]
        for client in clients:
            client.send(post(b"x" * 2_000))
        for client in clients:
            await client.head()
        assert proxy.pool.active == streams
        assert (_rss_bytes() - before) / streams < 96 * 1024
        for client in clients:
            client.reset()
        await eventually(lambda: proxy.pool.active == 0, within_s=5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@on_uvloop
async def test_requests_after_each_other_through_one_upstream_connection_do_not_mix() -> None:
    async def script(connection: UpstreamConnection) -> None:
        for number in range(20):
            _, body = await connection.request()
            if number % 2:
                connection.send(SSE_HEAD + chunk(body) + LAST)
            else:
                connection.send(OK)
        await connection.until_closed()

    async with Proxy(script) as proxy:
        client = await proxy.client()
        for number in range(20):
            body = b"n%d" % number
            assert (await client.ask(post(body)))[2] == (body if number % 2 else b"ok")
        assert len(proxy.upstream.connections) == 1
