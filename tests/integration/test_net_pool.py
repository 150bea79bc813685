"""Upstream connections: reuse, the keep-alive race, every way an answer can be framed, and every way it can break."""

import asyncio
import contextlib
import socket
from typing import Self

import pytest

from gir.clock import SystemClock
from gir.model.outcome import Phase
from gir.net.errors import BadResponse, ConnectFailed, ConnectionLost, ResponseTooLarge, UpstreamError
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.upstream import CallDeadlines, UpstreamCall
from tests.support.net import DEADLINES, OK, Script, Upstream, UpstreamConnection, eventually, on_uvloop

HOST = b"engine"


class Bench:
    """A pool in front of a scripted upstream."""

    def __init__(self, script: Script, limits: PoolLimits | None = None) -> None:
        self.upstream = Upstream(script)
        self._limits = limits or PoolLimits(connect_s=1.0)
        self.pool: UpstreamPool

    async def __aenter__(self) -> Self:
        await self.upstream.start()
        endpoint = Endpoint.parse(f"http://127.0.0.1:{self.upstream.port}")
        self.pool = UpstreamPool(endpoint, self._limits, clock=SystemClock())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()
        await self.upstream.close()

    async def call(
        self, body: bytes = b"{}", *, method: str = "POST", resend: bool = True, deadlines: CallDeadlines = DEADLINES
    ) -> UpstreamCall:
        head = request_head(method, b"/v1/x", HOST, [], len(body))
        return await self.pool.send(head, body, deadlines=deadlines, idempotent_resend=resend)

    async def ask(self, body: bytes = b"{}", *, method: str = "POST", resend: bool = True) -> tuple[int, bytes]:
        """Status and whole body of the answer."""
        call = await self.call(body, method=method, resend=resend)
        head = await call.head()
        return head.status, await call.read_all(10_000_000)


def answering(*answers: bytes) -> Script:
    """Give one answer for each request, then close."""

    async def script(connection: UpstreamConnection) -> None:
        for answer in answers:
            await connection.request()
            connection.send(answer)

    return script


async def echo(connection: UpstreamConnection) -> None:
    while True:
        _, body = await connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@on_uvloop
async def test_a_connection_is_used_again_and_again() -> None:
    async with Bench(echo) as bench:
        assert repr(bench.pool).endswith("0 active, 0 idle>")
        call = await bench.call(b"first")
        assert (call.reused, call.dispatched, bench.pool.active) == (False, True, 1)
        assert await call.read_all(100) == b"first"
        for number in range(5):
            call = await bench.call(b"%d" % number)
            assert call.reused
            assert await call.read_all(100) == b"%d" % number
        assert len(bench.upstream.connections) == 1
        assert repr(bench.pool).endswith("0 active, 1 idle>")


@on_uvloop
async def test_sending_on_an_idle_connection_does_not_suspend() -> None:
    async with Bench(echo) as bench:
        await bench.ask()
        sending = bench.pool.send(request_head("POST", b"/", HOST, [], 2), b"{}", deadlines=DEADLINES)
        with pytest.raises(StopIteration) as stopped:
            sending.send(None)
        call: UpstreamCall = stopped.value.value
        assert await call.read_all(100) == b"{}"


@on_uvloop
async def test_large_bodies_arrive_whole_in_both_directions() -> None:
    async with Bench(echo) as bench:
        body = bytes(range(256)) * 20_000
        assert await bench.ask(body) == (200, body)
        assert bench.pool.idle == 1


@on_uvloop
async def test_parallel_calls_take_a_connection_each_up_to_the_bound() -> None:
    release = asyncio.Event()

    async def patient(connection: UpstreamConnection) -> None:
        await connection.request()
        await release.wait()
        connection.send(OK)
        await connection.until_closed()

    async with Bench(patient, PoolLimits(connections_max=3, connect_s=1.0)) as bench:
        calls = [await bench.call() for _ in range(3)]
        with pytest.raises(ConnectFailed, match="all 3 connections are in use"):
            await bench.call()
        release.set()
        assert [await call.read_all(10) for call in calls] == [b"ok"] * 3
        assert bench.pool.idle == 3
        assert bench.pool.purge_idle() == 3
        assert bench.pool.idle == 0
        await eventually(lambda: all(connection.closed.is_set() for connection in bench.upstream.connections))


@pytest.mark.slow
@on_uvloop
async def test_idle_connections_are_closed_before_the_engine_would() -> None:
    assert PoolLimits().idle_s < 5.0, "uvicorn closes after five seconds"
    async with Bench(echo, PoolLimits(idle_s=0.3, connect_s=1.0)) as bench:
        await bench.ask()
        await asyncio.sleep(0.35)
        call = await bench.call()
        assert not call.reused, "too old, even if nobody has closed it yet"
        await call.read_all(10)
        await eventually(lambda: bench.pool.idle == 0, within_s=3.0)
        await eventually(lambda: all(connection.closed.is_set() for connection in bench.upstream.connections))


@pytest.mark.parametrize("how", ["fin", "rst"])
@on_uvloop
async def test_the_keep_alive_race_is_hidden_by_one_resend(how: str) -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        connection.send(OK)
        if len(bench.upstream.connections) == 1:
            await connection.reader.read(1)  # the next request is on its way when the connection dies
            if how == "rst":
                connection.reset()
            return
        await connection.request()

    async with Bench(script) as bench:
        assert await bench.ask(b"one") == (200, b"ok")
        call = await bench.call(b"two")
        assert call.reused
        assert (await call.head()).status == 200
        assert not call.reused
        assert await call.read_all(10) == b"ok"
        assert bench.upstream.connections[1].requests[0][1] == b"two"


@on_uvloop
async def test_a_connection_that_died_while_idle_is_not_used() -> None:
    async with Bench(answering(OK)) as bench:
        await bench.ask()
        await eventually(lambda: bench.pool.idle == 0)
        call = await bench.call()
        assert not call.reused
        await call.read_all(10)


async def closes_after_one(connection: UpstreamConnection) -> None:
    await connection.request()
    connection.send(OK)
    await connection.reader.read(1)


@on_uvloop
async def test_no_resend_when_the_caller_forbids_it() -> None:
    async with Bench(closes_after_one) as bench:
        await bench.ask()
        with pytest.raises(ConnectionLost) as caught:
            await bench.ask(resend=False)
        assert caught.value.phase is Phase.DISPATCHED
        assert len(bench.upstream.connections) == 1


@on_uvloop
async def test_no_resend_on_a_fresh_connection() -> None:
    async def slam(connection: UpstreamConnection) -> None:
        await connection.request()

    async with Bench(slam) as bench:
        with pytest.raises(ConnectionLost):
            await bench.ask()
        assert len(bench.upstream.connections) == 1


@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\ncontent-", b"HTTP/1.1 100 Continue\r\n\r\n"])
@on_uvloop
async def test_no_resend_after_any_byte_of_an_answer(part: bytes) -> None:
    async with Bench(answering(OK, part)) as bench:
        await bench.ask()
        with pytest.raises(ConnectionLost):
            await bench.ask()
        assert len(bench.upstream.connections) == 1


@on_uvloop
async def test_the_resend_happens_once() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.request()
        if len(bench.upstream.connections) == 1:
            connection.send(OK)
            await connection.reader.read(1)

    async with Bench(script) as bench:
        await bench.ask()
        with pytest.raises(ConnectionLost):
            await bench.ask()
        assert len(bench.upstream.connections) == 2


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
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000,
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
async def test_nobody_listening_is_a_failed_connection() -> None:
    async with Bench(echo) as bench:
        port = bench.upstream.port
        await bench.upstream.close()
        with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port}") as caught:
            await bench.ask()
        assert caught.value.phase is Phase.CONNECTING
        assert bench.pool.active == 0
        await bench.upstream.start()


@pytest.mark.slow
@on_uvloop
async def test_a_connection_that_is_not_answered_fails_in_time() -> None:
    """A full backlog makes the kernel ignore further attempts, as a black hole would."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())
            fillers.append(filler)
        await asyncio.sleep(0.05)
        pool = UpstreamPool(
            Endpoint.parse(f"http://127.0.0.1:{hole.getsockname()[1]}"), PoolLimits(connect_s=0.3), clock=SystemClock()
        )
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        with pytest.raises(ConnectFailed, match=r"no connection within 0\.3 s"):
            await pool.send(b"POST / HTTP/1.1\r\n\r\n", b"", deadlines=DEADLINES)
        assert 0.28 <= loop.time() - start_s <= 0.6
        assert pool.active == 0
        await pool.close()
        for filler in fillers:
            filler.close()


@on_uvloop
async def test_the_next_address_is_tried_when_one_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench(echo) as bench:

        async def addresses() -> tuple[str, ...]:
            return ("127.0.0.2", "127.0.0.1")

        monkeypatch.setattr(bench.pool._resolver, "addresses", addresses)
        assert await bench.ask(b"x") == (200, b"x")


@on_uvloop
async def test_closing_the_pool_fails_what_is_in_progress() -> None:
    async def hang(connection: UpstreamConnection) -> None:
        await connection.request()
        await connection.until_closed()

    async with Bench(hang) as bench:
        call = await bench.call()
        waiting = asyncio.get_running_loop().create_task(call.head())
        await asyncio.sleep(0.01)
        await bench.pool.close()
        with pytest.raises(ConnectionLost):
            await waiting


@on_uvloop
async def test_aborting_a_call_closes_its_connection_and_may_be_repeated() -> None:
    async def hang(connection: UpstreamConnection) -> None:
        await connection.request()
        await connection.until_closed()

    async with Bench(hang) as bench:
        call = await bench.call()
        await eventually(lambda: bench.upstream.connections and bench.upstream.connections[0].requests)
        call.abort()
        call.abort()
        assert await eventually(bench.upstream.connections[0].closed.is_set) < 0.1
        assert bench.pool.active == 0


@on_uvloop
async def test_aborting_a_finished_call_leaves_the_connection_to_its_next_user() -> None:
    async with Bench(echo) as bench:
        first = await bench.call(b"1")
        await first.read_all(10)
        second = await bench.call(b"2")
        first.abort()
        assert await second.read_all(10) == b"2"


@on_uvloop
async def test_errors_are_all_of_one_family() -> None:
    for kind in (ConnectFailed, ConnectionLost, BadResponse, ResponseTooLarge):
        assert issubclass(kind, UpstreamError)
