"""Upstream connections: reuse, the keep-alive race, failures to connect, and calls that are given up."""

import asyncio
import socket

import pytest

from gir.clock import SystemClock
from gir.model.outcome import Phase
from gir.net.errors import BadResponse, ConnectFailed, ConnectionLost, ResponseTooLarge, UpstreamError
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.upstream import UpstreamCall
from tests.support.bench import HOST, Bench, answering, echo
from tests.support.net import DEADLINES, OK, UpstreamConnection, eventually, on_uvloop


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
