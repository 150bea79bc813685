"""The server on real sockets: framing of answers, bounds, refusals, and handlers that misbehave."""

import asyncio
import json
import socket
import subprocess
import sys
import textwrap

import pytest

from gir.clock import SystemClock
from gir.model.errors import ErrorKind, RequestError
from gir.net.exchange import Exchange
from gir.net.server import HttpServer, ServerLimits
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
async def test_an_answer_before_the_body_was_read_closes_the_connection_behind_it() -> None:
    async def refuse(exchange: Exchange) -> None:
        raise RequestError(ErrorKind.UNAUTHENTICATED, "who are you?")

    async with Rig(refuse) as rig:
        client = await rig.client()
        client.send(post(b"x" * 1000)[:-500])
        status, headers, _ = await client.answer()
        assert (status, headers[b"connection"]) == (401, b"close")
        client.send(b"x" * 500)
        assert await client.rest() == b""


@pytest.mark.parametrize(
    ("request_bytes", "status", "kind"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\n", 413, ErrorKind.BODY_TOO_LARGE),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000, 431, ErrorKind.HEADERS_TOO_LARGE),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431, ErrorKind.HEADERS_TOO_LARGE),
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, ErrorKind.HEADERS_TOO_LARGE),
        (b"GET / HTTP/1.1\r\n\r\n", 400, ErrorKind.BAD_FRAMING),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405, ErrorKind.METHOD_NOT_ALLOWED),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, ErrorKind.BAD_FRAMING),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400, ErrorKind.BAD_FRAMING),
    ],
    ids=["10 GB body", "huge head", "many headers", "long target", "no host", "connect", "TLS hello", "bare LF"],
)
@on_uvloop
async def test_refusals_that_need_no_handler(request_bytes: bytes, status: int, kind: ErrorKind) -> None:
    async with Rig(echo) as rig:
        client = await rig.client()
        answered, headers, body = await client.ask(request_bytes)
        assert (answered, headers[b"connection"]) == (status, b"close")
        assert json.loads(body)["error"]["message"].startswith("gir: ")
        assert await client.rest() == b""
        assert rig.observer.kinds == [kind]


@on_uvloop
async def test_a_refused_client_that_goes_on_sending_still_sees_the_answer() -> None:
    """Closing on unread input would make the kernel send a reset, which takes the answer with it."""
    async with Rig(echo, ServerLimits(body_bytes_max=1_000)) as rig:
        client = await rig.client()
        client.send(post(b"x" * 3_000_000))
        await asyncio.sleep(0.05)
        assert (await client.answer())[0] == 413


@on_uvloop
async def test_a_chunked_body_without_end_is_refused_at_the_bound() -> None:
    async with Rig(echo, ServerLimits(body_bytes_max=100_000)) as rig:
        client = await rig.client()
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(25):
            client.send(b"fa0\r\n" + b"x" * 4_000 + b"\r\n")
        await asyncio.sleep(0.05)
        (connection,) = rig.server._connections
        assert connection._reader is not None
        assert connection._reader.received == 100_000
        client.send(b"1\r\nx")
        status, headers, _ = await client.answer()
        assert (status, headers[b"connection"]) == (413, b"close")


@on_uvloop
async def test_a_compressed_body_is_refused() -> None:
    async with Rig(echo) as rig:
        client = await rig.client()
        assert (await client.ask(post(b"abc", b"Content-Encoding: gzip")))[0] == 415
        assert (await client.ask(post(b"abc", b"Content-Encoding: identity")))[0] == 200


@on_uvloop
async def test_too_many_requests_in_flight_are_turned_away_before_their_body_and_keep_their_connection() -> None:
    release = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await release.wait()
        exchange.respond(200, [], await exchange.read_body())

    async with Rig(wait, ServerLimits(in_flight_max=2)) as rig:
        busy = [await rig.client() for _ in range(2)]
        for client in busy:
            client.send(post())
        await eventually(lambda: rig.server.exchanges_open == 2)
        other = await rig.client()
        status, headers, body = await other.ask(post(b"whole"))
        assert (status, json.loads(body)["error"]["code"], b"connection" in headers) == (503, "no_capacity", False)
        assert int(headers[b"retry-after"]) >= 1
        half = await rig.client()
        status, headers, _ = await half.ask(post(b"x" * 100)[:-50])
        assert (status, headers[b"connection"]) == (503, b"close")
        release.set()
        await eventually(lambda: rig.server.exchanges_open == 0)
        assert (await other.ask(post(b"again")))[2] == b"again"
        assert rig.observer.kinds == [ErrorKind.NO_CAPACITY] * 2


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


@on_uvloop
async def test_one_address_cannot_take_all_connections() -> None:
    async with Rig(echo, ServerLimits(connections_per_peer_max=3)) as rig:
        clients = [await rig.client() for _ in range(3)]
        await eventually(lambda: rig.server.connections_open == 3)
        extra = await rig.client()
        assert await extra.rest() == b""
        clients[0].close()
        await eventually(lambda: rig.server.connections_open == 2)
        again = await rig.client()
        assert (await again.ask(post(b"x")))[0] == 200


@on_uvloop
async def test_at_the_bound_of_connections_others_wait_in_the_backlog() -> None:
    async with Rig(echo, ServerLimits(connections_max=2)) as rig:
        clients = [await rig.client() for _ in range(2)]
        await eventually(lambda: rig.server.connections_open == 2)
        waiting = await rig.client()
        waiting.send(post(b"patience"))
        await asyncio.sleep(0.05)
        assert rig.server.connections_open == 2
        clients[0].close()
        assert (await waiting.answer())[2] == b"patience"


@on_uvloop
async def test_a_taken_port_is_named() -> None:
    async with Rig(echo) as rig:
        other = HttpServer(echo, limits=ServerLimits(), clock=SystemClock(), origin="gir")
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{rig.port}"):
            await other.start("127.0.0.1", rig.port)


@on_uvloop
async def test_two_servers_can_share_a_port() -> None:
    async with Rig(echo, reuse_port=True) as rig, Rig(echo, reuse_port=True, port=rig.port) as other:
        for client in [await rig.client() for _ in range(20)]:
            assert (await client.ask(post(b"x")))[2] == b"x"
        assert rig.server.connections_open + other.server.connections_open == 20


@on_uvloop
async def test_every_address_of_a_name_is_served_on_the_same_port() -> None:
    server = HttpServer(echo, limits=ServerLimits(), clock=SystemClock(), origin="gir")
    await server.start("localhost", 0)
    families = {listener.socket.family for listener in server._listeners}
    assert socket.AF_INET in families
    assert len({listener.socket.getsockname()[1] for listener in server._listeners}) == 1
    await server.close()


@pytest.mark.slow
def test_without_descriptors_accepting_pauses_and_nothing_breaks() -> None:
    """Its own process, for the limit is the process's."""
    program = textwrap.dedent("""
        import asyncio, resource, uvloop
        from gir.net.server import ServerLimits
        from tests.support.net import Rig, post
        from tests.integration.test_net_server import echo

        async def main():
            async with Rig(echo) as rig:
                first = await rig.client()
                assert (await first.ask(post(b"x")))[0] == 200
                used = first.writer.get_extra_info("socket").fileno()
                resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, used + 400))
                clients, errors = [], 0
                for _ in range(40):
                    try:
                        clients.append(await rig.client())
                    except OSError:
                        errors += 1
                assert errors, "the limit was meant to be reached"
                assert (await first.ask(post(b"still here")))[2] == b"still here"
                for client in clients:
                    client.send(post(b"y"))
                await asyncio.sleep(0.3)
                resource.setrlimit(resource.RLIMIT_NOFILE, (used + 400, used + 400))
                for client in clients:
                    assert (await asyncio.wait_for(client.answer(), 5))[2] == b"y"
            print("survived")

        uvloop.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.strip() == "survived", done.stderr
