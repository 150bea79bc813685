"""Stopping without losing an answer."""

import asyncio

import pytest

from gir.net.exchange import Exchange
from gir.net.server import ServerLimits
from tests.support.net import Client, Rig, eventually, on_uvloop, post


class Gate:
    """A handler that streams until it is let go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.cancelled = 0

    async def handle(self, exchange: Exchange) -> None:
        exchange.start(200, [])
        exchange.write(b"begun ")
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        exchange.write(b"done")
        exchange.finish()


@on_uvloop
async def test_draining_lets_streams_finish_and_closes_the_rest() -> None:
    gate = Gate()
    async with Rig(gate.handle) as rig:
        streaming, idle = await rig.client(), await rig.client()
        gate.open.set()
        idle.send(post())
        await idle.answer()
        gate.open.clear()
        streaming.send(post())
        await streaming.head()
        port = rig.port
        draining = asyncio.get_running_loop().create_task(rig.server.drain(5.0))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(port)
        assert not draining.done()
        gate.open.set()
        assert await streaming.chunked() == b"begun done"
        assert await draining is True
        assert repr(rig.server) == "<HttpServer draining, 0 connections, 0 exchanges>"


@on_uvloop
async def test_answers_of_a_draining_server_say_connection_close() -> None:
    async def echo(exchange: Exchange) -> None:
        exchange.respond(200, [], await exchange.read_body())

    async with Rig(echo) as rig:
        client = await rig.client()
        _, headers, _ = await client.ask(post())
        assert b"connection" not in headers
        rig.server.stop_listening()
        _, headers, _ = await client.ask(post())
        assert headers[b"connection"] == b"close"
        assert await client.rest() == b""


@on_uvloop
async def test_pipelined_requests_behind_the_last_answer_are_not_half_served() -> None:
    gate = Gate()
    async with Rig(gate.handle) as rig:
        client = await rig.client()
        client.send(post() + post())
        await client.head()
        rig.server.stop_listening()
        gate.open.set()
        await client.chunked()
        # The head of the first answer was sent before the drain began, so the second is answered too, with a close.
        status, headers, body = await client.answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"begun done")
        assert await client.rest() == b""


@pytest.mark.slow
@on_uvloop
async def test_whoever_was_accepted_last_of_all_is_served() -> None:
    """A connection in the kernel's backlog is a promise; its first request may still be on its way."""

    async def echo(exchange: Exchange) -> None:
        exchange.respond(200, [], await exchange.read_body())

    async with Rig(echo) as rig:
        clients = [await rig.client() for _ in range(5)]
        draining = asyncio.get_running_loop().create_task(rig.server.drain(5.0))
        await asyncio.sleep(0.1)
        for client in clients[:4]:
            _, headers, body = await client.ask(post(b"late"))
            assert (headers[b"connection"], body) == (b"close", b"late")
        assert await asyncio.wait_for(clients[4].rest(), 2.0) == b""
        assert await draining is True


@pytest.mark.slow
@on_uvloop
async def test_what_does_not_finish_in_time_is_reported_and_then_cut() -> None:
    gate = Gate()
    async with Rig(gate.handle) as rig:
        client = await rig.client()
        client.send(post())
        await client.head()
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        assert await rig.server.drain(0.3) is False
        assert 0.3 <= loop.time() - start_s <= 0.5
        assert gate.cancelled == 0
        await rig.server.close()
        assert gate.cancelled == 1
        assert not (await client.rest()).endswith(b"0\r\n\r\n"), "a cut answer must not look complete"


@on_uvloop
async def test_closing_twice_and_closing_an_unstarted_server_is_harmless() -> None:
    gate = Gate()
    async with Rig(gate.handle, ServerLimits()) as rig:
        await rig.server.close()
        await rig.server.close()
        with pytest.raises(RuntimeError, match="await start"):
            _ = rig.server.port
        rig.server.stop_listening()


@on_uvloop
async def test_a_drained_server_leaves_no_task_behind() -> None:
    gate = Gate()
    before = len(asyncio.all_tasks())
    async with Rig(gate.handle) as rig:
        clients = [await rig.client() for _ in range(20)]
        for client in clients:
            client.send(post())
        await eventually(lambda: rig.server.exchanges_open == 20)
        gate.open.set()
        assert await rig.server.drain(5.0) is True or rig.server.connections_open == 0
        assert len(rig.server._tasks) == 0
        assert len(rig.server._opening) == 0
    assert len(asyncio.all_tasks()) == before
