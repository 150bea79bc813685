"""The server on real sockets: framing of answers, pipelining, and handlers that misbehave."""

import asyncio

import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.net.exchange import Exchange
from gir.net.server import ServerLimits
from tests.support.net import Rig, eventually, on_uvloop, post


async def echo(exchange: Exchange) -> None:
    body = await exchange.read_body()
    exchange.respond(200, [(b"x-path", exchange.head.path.encode())], body)


@on_uvloop
async def test_requests_on_one_connection_are_answered_in_order() -> None:
    async with Rig(echo) as rig:
        client = await rig.client()
        for number in range(3):
            assert await client.ask(post(b"n%d" % number)) == (
                200,
                {b"x-path": b"/v1/x", b"content-length": b"2"},
                b"n%d" % number,
            )
        assert rig.server.connections_open == 1


@on_uvloop
async def test_pipelined_requests_are_answered_one_after_the_other() -> None:
    running = peak = 0

    async def slow(exchange: Exchange) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.01)
        running -= 1
        exchange.respond(200, [], await exchange.read_body())

    async with Rig(slow) as rig:
        client = await rig.client()
        client.send(b"".join(post(b"%d" % number) for number in range(5)))
        assert [(await client.answer())[2] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert peak == 1


@on_uvloop
async def test_what_a_client_sends_too_far_ahead_is_dropped_with_the_connection() -> None:
    release = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await release.wait()
        exchange.respond(200, [], b"first")

    async with Rig(wait, ServerLimits(pipeline_bytes_max=1_000)) as rig:
        client = await rig.client()
        client.send(post())
        for _ in range(200):
            client.send(b"x" * 10_000)
            await asyncio.sleep(0)
        await client.writer.drain()
        (connection,) = rig.server._connections
        assert len(connection._held) <= 1_000
        release.set()
        status, headers, body = await client.answer()
        assert (status, body, headers[b"connection"]) == (200, b"first", b"close")
        assert await client.rest() == b""


@on_uvloop
async def test_the_body_may_arrive_in_any_pieces() -> None:
    async with Rig(echo) as rig:
        client = await rig.client()
        for request in (
            post(b"abc" * 10),
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1b\r\n"
            + b"abc" * 9
            + b"\r\n0\r\n\r\n",
        ):
            for byte in request:
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.answer())[2] == b"abc" * 10


@on_uvloop
async def test_the_handler_starts_before_the_body_is_there_and_gets_it_at_once_when_it_is() -> None:
    seen = []

    async def look(exchange: Exchange) -> None:
        seen.append(exchange.body_ready)
        exchange.respond(200, [], await exchange.read_body())

    async with Rig(look) as rig:
        client = await rig.client()
        assert (await client.ask(post(b"abc")))[2] == b"abc"
        request = post(b"abcdef")
        client.send(request[:-3])
        await eventually(lambda: len(seen) == 2)
        client.send(request[-3:])
        assert (await client.answer())[2] == b"abcdef"
        assert seen == [b"abc", None]


@on_uvloop
async def test_streamed_answers_are_chunked_or_have_their_length() -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.start(200, [], length=6 if exchange.head.path == "/sized" else None)
        exchange.write(b"abc")
        await asyncio.sleep(0)
        exchange.write(b"")
        exchange.write(b"def")
        exchange.finish()

    async with Rig(stream) as rig:
        client = await rig.client()
        client.send(post())
        assert (await client.reader.readuntil(b"0\r\n\r\n")).endswith(b"\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")
        status, headers, body = await client.ask(post(path=b"/sized"))
        assert (status, headers, body) == (200, {b"content-length": b"6"}, b"abcdef")


@on_uvloop
async def test_http_1_0_clients_get_answers_that_end_with_the_connection() -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.start(200, [])
        exchange.write(b"abc")
        exchange.write(b"def")
        exchange.finish()

    async with Rig(stream) as rig:
        client = await rig.client()
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabcdef"


@on_uvloop
async def test_answers_without_body_have_none() -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.head.path == "/204":
            exchange.respond(204, [], b"")
        elif exchange.head.path == "/stream":
            exchange.start(200, [])
            exchange.write(b"abc")
            exchange.finish()
        else:
            exchange.respond(200, [], b"abc")

    async with Rig(answer) as rig:
        client = await rig.client()
        client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await client.head() == (200, {b"content-length": b"3"})
        client.send(b"HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await client.head() == (200, {b"transfer-encoding": b"chunked"})
        client.send(b"GET /204 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await client.head() == (204, {})
        assert (await client.ask(post()))[2] == b"abc"


@on_uvloop
async def test_100_continue_is_sent_when_the_handler_wants_the_body() -> None:
    wanted = asyncio.Event()

    async def patient(exchange: Exchange) -> None:
        await wanted.wait()
        exchange.respond(200, [], await exchange.read_body())

    async with Rig(patient) as rig:
        client = await rig.client()
        head, _, body = post(b"abc", b"Expect: 100-continue").partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        await eventually(lambda: rig.server.exchanges_open)
        await asyncio.sleep(0.02)
        assert not client.reader._buffer  # type: ignore[attr-defined]
        wanted.set()
        assert await client.head() == (100, {})
        client.send(body)
        assert (await client.answer())[2] == b"abc"


@on_uvloop
async def test_a_handler_that_fails_is_answered_with_500_and_reported() -> None:
    async def broken(exchange: Exchange) -> None:
        raise ZeroDivisionError

    async def silent(exchange: Exchange) -> None:
        pass

    for handler in (broken, silent):
        async with Rig(handler) as rig:
            client = await rig.client()
            assert (await client.ask(post()))[0] == 500
            assert len(rig.observer.failures) == 1
            assert (await client.ask(post()))[0] == 500, "the connection is as good as before"


@on_uvloop
async def test_a_handler_cannot_write_a_header_that_splits_the_answer() -> None:
    async def split(exchange: Exchange) -> None:
        exchange.respond(200, [(b"x", b"a\r\n\r\nHTTP/1.1 200 OK")], b"")

    async with Rig(split) as rig:
        client = await rig.client()
        assert (await client.ask(post()))[0] == 500
        assert isinstance(rig.observer.failures[0], ValueError)


@pytest.mark.parametrize("how", ["raise", "request error", "return", "short", "abort", "long"])
@on_uvloop
async def test_an_answer_that_is_not_complete_never_looks_complete(how: str) -> None:
    async def partial(exchange: Exchange) -> None:
        exchange.start(200, [], length=6 if how in {"short", "long"} else None)
        exchange.write(b"abc")
        if how == "raise":
            raise ZeroDivisionError
        if how == "request error":
            raise RequestError(ErrorKind.INTERNAL, "x")
        if how == "short":
            exchange.finish()
        if how == "abort":
            exchange.abort()
        if how == "long":
            exchange.write(b"defg")

    async with Rig(partial) as rig:
        client = await rig.client()
        client.send(post())
        received = await client.rest()
        assert not received.endswith(b"0\r\n\r\n")
        assert not received.endswith(b"abcdef")
