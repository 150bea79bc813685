"""From the upstream to the client: what is relayed, byte for byte, and what a cut stream looks like."""

import asyncio
import json

import pytest

from gir.clock import SystemClock
from gir.model.request import Api
from gir.net.exchange import Exchange
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.sse import EventFramer
from tests.support.net import (
    DEADLINES,
    DONE,
    FAULT,
    LAST,
    OK,
    ROLE,
    SSE_HEAD,
    STOP,
    TOKEN,
    Proxy,
    Rig,
    Upstream,
    UpstreamConnection,
    chat,
    chunk,
    on_uvloop,
    post,
)
from tests.support.streams import captured


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
