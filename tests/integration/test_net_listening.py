"""Accepting connections: ports, bounds, and a shortage of descriptors."""

import asyncio
import socket
import subprocess
import sys
import textwrap

import pytest

from gir.clock import SystemClock
from gir.net.exchange import Exchange
from gir.net.server import HttpServer, ServerLimits
from tests.support.net import Rig, eventually, on_uvloop, post


async def echo(exchange: Exchange) -> None:
    body = await exchange.read_body()
    exchange.respond(200, [(b"x-path", exchange.head.path.encode())], body)


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
        from tests.integration.test_net_listening import echo

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
