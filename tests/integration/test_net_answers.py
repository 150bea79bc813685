"""Answers of upstreams: every way they can be framed, and every way they can break."""

import asyncio
import contextlib
import socket

import pytest

from gir.net.errors import BadResponse, ConnectionLost, ResponseTooLarge
from tests.support.bench import Bench, answering
from tests.support.net import OK, UpstreamConnection, eventually, on_uvloop

CHUNKED_OK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
COMPLETE = {
    "content-length": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc", True),
    "chunked": (CHUNKED_OK + b"3\r\nabc\r\n0\r\n\r\n", 200, b"abc", True),
    "chunked with extension and trailer": (CHUNKED_OK + b"3;x=y\r\nabc\r\n0\r\nx: y\r\n\r\n", 200, b"abc", True),
    "chunked, empty": (CHUNKED_OK + b"0\r\n\r\n", 200, b"", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304, b"", True),
    "interim answers first": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,
        200,
        b"ok",
        True,
    ),
    "connection: close": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 200, b"ok", False),
    "until close": (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end", False),
    "HTTP/1.0 until close": (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end", False),
    "HTTP/1.0 with length": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, b"ok", False),
    "error passes": (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno", 404, b"no", True),
    "redirect is not followed": (b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", 302, b"", True),
}


@pytest.mark.parametrize(("answer", "status", "body", "reusable"), COMPLETE.values(), ids=COMPLETE.keys())
@on_uvloop
async def test_answers_are_read_to_the_end_their_framing_gives(
    answer: bytes, status: int, body: bytes, reusable: bool
) -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        for byte in answer:
            connection.send(bytes([byte]))
            await asyncio.sleep(0)
        if reusable:
            await connection.until_closed()

    async with Bench(script) as bench:
        assert await bench.ask() == (status, body)
        assert bench.pool.idle == reusable
        assert bench.pool.active == 0


@on_uvloop
async def test_head_answers_have_no_body_whatever_they_declare() -> None:
    async with Bench(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")) as bench:
        assert await bench.ask(b"", method="HEAD") == (200, b"")
        assert bench.pool.idle == 0


TRUNCATED = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "short content-length": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
    "no body at all": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n",
    "cut in a chunk": CHUNKED_OK + b"a\r\nabc",
    "cut in a size line": CHUNKED_OK + b"3\r\nabc\r\n1",
    "no last chunk": CHUNKED_OK + b"3\r\nabc\r\n",
    "half a last chunk": CHUNKED_OK + b"3\r\nabc\r\n0\r\n",
    "until close, but reset": b"HTTP/1.1 200 OK\r\n\r\nabc",
}


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("answer", TRUNCATED.values(), ids=TRUNCATED.keys())
@on_uvloop
async def test_a_truncated_answer_is_never_a_success(answer: bytes, how: str) -> None:
    if how == "fin" and answer == TRUNCATED["until close, but reset"]:
        pytest.skip("that one is complete")

    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        if answer:
            connection.send(answer)
            await asyncio.sleep(0.01)
        if how == "rst":
            linger = b"\1\0\0\0\0\0\0\0"  # on, zero seconds: close sends a reset
            connection.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.reset()

    async with Bench(script) as bench:
        with pytest.raises(ConnectionLost):
            await bench.ask()
        assert (bench.pool.active, bench.pool.idle) == (0, 0)


MALFORMED = {
    "not HTTP": b"<html>hello</html>\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "bare LF": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
    "length and chunked": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size": CHUNKED_OK + b"xyz\r\n",
    "chunk longer than its size": CHUNKED_OK + b"1\r\nabc\r\n0\r\n\r\n",
    "NUL in a header": b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 2\r\n\r\nok",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nxxx",
    "coding nobody asked for": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000,
    "huge head, all at once": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\ncontent-length: 2\r\n\r\nok",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n",
}


@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED.keys())
@on_uvloop
async def test_a_malformed_answer_is_a_bad_response_and_ends_the_connection(answer: bytes) -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(answer)
        await connection.until_closed()

    async with Bench(script) as bench:
        with pytest.raises(BadResponse):
            await bench.ask()
        assert (bench.pool.active, bench.pool.idle) == (0, 0)
        await eventually(bench.upstream.connections[0].closed.is_set)


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", b"x"])
@on_uvloop
async def test_bytes_behind_an_answer_never_become_the_next_one(extra: bytes) -> None:
    async with Bench(answering(OK + extra, OK)) as bench:
        with contextlib.suppress(BadResponse):
            assert await bench.ask() == (200, b"ok")
        assert bench.pool.idle == 0


@on_uvloop
async def test_bytes_nobody_asked_for_close_an_idle_connection() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(OK)
        await asyncio.sleep(0.02)
        connection.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await connection.until_closed()

    async with Bench(script) as bench:
        await bench.ask()
        assert bench.pool.idle == 1
        await eventually(lambda: bench.pool.idle == 0)
        assert await bench.ask() == (200, b"ok")


@on_uvloop
async def test_a_large_answer_is_bounded() -> None:
    async with Bench(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b"x" * 1000)) as bench:
        call = await bench.call()
        with pytest.raises(ResponseTooLarge, match="999 bytes"):
            await call.read_all(999)
        call = await bench.call()
        assert len(await call.read_all(1000)) == 1000


@on_uvloop
async def test_repeated_response_headers_are_kept() -> None:
    answer = b"HTTP/1.1 200 OK\r\nVary: a\r\nX: 1\r\nVary: b\r\ncontent-length: 0\r\n\r\n"
    async with Bench(answering(answer)) as bench:
        head = await (await bench.call()).head()
        assert head.headers == [(b"vary", b"a"), (b"x", b"1"), (b"vary", b"b"), (b"content-length", b"0")]


@on_uvloop
async def test_response_headers_named_by_connection_are_dropped() -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Foo, Content-Length\r\nX-Foo: 1\r\nX-Bar: 2\r\ncontent-length: 2\r\n\r\nok"
    )
    async with Bench(answering(answer)) as bench:
        call = await bench.call()
        names = [name for name, _ in (await call.head()).headers]
        assert names == [b"connection", b"x-bar", b"content-length"]
        assert await call.read_all(10) == b"ok"
