"""What the server refuses on real sockets, and how the connection ends."""

import asyncio
import json

import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.net.exchange import Exchange
from gir.net.server import ServerLimits
from tests.support.net import Rig, eventually, on_uvloop, post


async def echo(exchange: Exchange) -> None:
    body = await exchange.read_body()
    exchange.respond(200, [(b"x-path", exchange.head.path.encode())], body)


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
async def test_bodies_share_a_bound_whether_their_length_is_known_or_not() -> None:
    release = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        body = await exchange.read_body()
        await release.wait()
        exchange.respond(200, [], body)

    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with Rig(wait, ServerLimits(bodies_bytes_max=10_000)) as rig:
        first, second, third = [await rig.client() for _ in range(3)]
        first.send(post(b"x" * 4_000))
        second.send(chunked + b"fa0\r\n" + b"x" * 4_000 + b"\r\n")
        await eventually(lambda: rig.server._bodies_bytes == 8_000)
        status, _, body = await third.ask(post(b"x" * 2_001))
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_capacity")
        second.send(b"fa0\r\n" + b"x" * 4_000 + b"\r\n")
        assert (await second.answer())[0] == 503
        await eventually(lambda: rig.server._bodies_bytes == 4_000)
        third.send(post(b"x" * 6_000))
        release.set()
        assert (await first.answer())[0] == (await third.answer())[0] == 200
        await eventually(lambda: rig.server._bodies_bytes == 0)


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
