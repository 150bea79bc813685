"""Each toxic hits: its effect is seen from the client's socket, and gone when it is removed."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator

import pytest

from chaos.faults.proxies import ProxyHost
from chaos.faults.tcp import TcpProxy, Toxic
from gir.clock import SystemClock


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    """A proxy before a server that echoes what it gets and hangs up after the client has."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    running = TcpProxy(("127.0.0.1", server.sockets[0].getsockname()[1]), SystemClock(seed=1), seed=1)
    await running.start()
    yield running
    await running.close()
    server.close()


class Client:
    """A connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def echo(self, data: bytes, *, within_s: float = 3.0) -> float:
        """Send, wait for it all to come back; seconds that took."""
        started_s = time.perf_counter()
        self.writer.write(data)
        async with asyncio.timeout(within_s):
            assert await self.reader.readexactly(len(data)) == data
        return time.perf_counter() - started_s


@pytest.fixture
async def client(proxy: TcpProxy) -> AsyncIterator[Client]:
    connected = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    yield connected
    connected.writer.close()


async def test_without_toxics_bytes_pass_unchanged(client: Client, proxy: TcpProxy) -> None:
    assert await client.echo(bytes(range(256)) * 1_000) < 1.0
    client.writer.write_eof()
    assert await client.reader.read() == b""
    assert proxy.hits == {}


async def test_latency_delays_each_chunk_by_its_own_arrival(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="far", kind="latency", way="up", delay_s=0.1, jitter_s=0.01))
    assert 0.08 <= await client.echo(b"x") < 0.4
    started_s = time.perf_counter()
    for _ in range(5):
        client.writer.write(b"y")
        await asyncio.sleep(0.01)
    await client.reader.readexactly(5)
    assert time.perf_counter() - started_s < 0.4  # not five times the delay
    await proxy.remove("far")
    assert await client.echo(b"x") < 0.08


async def test_a_toxic_may_come_or_go_while_another_is_at_work(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="far", kind="latency", way="up", delay_s=0.1))
    echoed = asyncio.get_running_loop().create_task(client.echo(b"x"))
    await asyncio.sleep(0.03)
    await proxy.add(Toxic(name="farther", kind="latency", way="down", delay_s=0.01))
    await proxy.remove("far")
    assert await echoed < 0.5


async def test_one_way_toxics_leave_the_other_way_alone(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="deaf", kind="timeout", way="down"))
    client.writer.write(b"lost?")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.reader.readexactly(5)
    assert proxy.hits["deaf"] >= 1
    await proxy.remove("deaf")
    async with asyncio.timeout(1.0):
        assert await client.reader.readexactly(5) == b"lost?"


async def test_a_timeout_toxic_closes_after_its_time(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="mute", kind="timeout", delay_s=0.05))
    client.writer.write(b"x")
    async with asyncio.timeout(1.0):
        assert await client.reader.read() == b""


async def test_down_refuses_and_drops_until_removed(client: Client, proxy: TcpProxy) -> None:
    await client.echo(b"x")
    await proxy.add(Toxic(name="off", kind="down"))
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionError):
        await client.echo(b"x")
    await proxy.remove("off")
    again = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    assert await again.echo(b"x") < 1.0
    again.writer.close()


async def test_bandwidth_is_bytes_each_second(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="thin", kind="bandwidth", way="up", bytes_per_s=100_000))
    assert 0.15 <= await client.echo(b"x" * 20_000) < 1.0


async def test_slow_close_delays_the_fin(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="slow", kind="slow_close", way="down", delay_s=0.1))
    await client.echo(b"x")
    started_s = time.perf_counter()
    client.writer.write_eof()
    assert await client.reader.read() == b""
    assert time.perf_counter() - started_s >= 0.1


async def test_reset_peer_ends_with_an_rst(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="rst", kind="reset_peer", way="down", delay_s=0.02))
    client.writer.write(b"x")
    with pytest.raises(ConnectionResetError):
        await client.reader.readexactly(1)


async def test_a_slicer_cuts_chunks_into_pieces(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="knife", kind="slicer", way="down", slice_bytes=3, delay_s=0.01))
    client.writer.write(b"abcdefgh")
    pieces = []
    while sum(map(len, pieces)) < 8:
        pieces.append(await client.reader.read(100))
    assert pieces == [b"abc", b"def", b"gh"]


async def test_limit_data_closes_after_so_many_bytes(client: Client, proxy: TcpProxy) -> None:
    await proxy.add(Toxic(name="cap", kind="limit_data", way="down", limit_bytes=5))
    client.writer.write(b"abcdefgh")
    assert await client.reader.read() == b"abcde"


async def test_connections_are_forgotten_when_they_end(client: Client, proxy: TcpProxy) -> None:
    await client.echo(b"x")
    assert proxy.connections == 1
    client.writer.close()
    async with asyncio.timeout(1.0):
        while proxy.connections:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("host", ["10.0.0.1", "8.8.8.8"])
async def test_targets_beyond_this_machine_are_refused(host: str) -> None:
    with pytest.raises(PermissionError, match="loopback only"):
        TcpProxy((host, 80), SystemClock())
    with pytest.raises(PermissionError, match="loopback only"):
        await TcpProxy(("127.0.0.1", 80), SystemClock()).start("0.0.0.0")


def test_a_host_of_proxies_serves_callers_without_a_loop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = ProxyHost()
        try:
            proxy = host.open(server.getsockname()[1])
            with socket.create_connection(("127.0.0.1", proxy.port)) as client:
                accepted, _ = server.accept()
                with accepted:
                    host.add(proxy, Toxic(name="mute", kind="timeout"))
                    client.sendall(b"x")
                    accepted.settimeout(0.1)
                    with pytest.raises(TimeoutError):
                        accepted.recv(1)
                    host.remove(proxy, "mute")
                    accepted.settimeout(2.0)
                    assert accepted.recv(1) == b"x"
        finally:
            host.close()
            host.close()
    assert not any(thread.name == "proxies" for thread in threading.enumerate())


def unacknowledged(client: Client) -> int:
    """Segments sent that the other kernel has not acknowledged."""
    info: bytes = client.writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int.from_bytes(info[24:28], "little")


async def connect_within(port: int, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


@pytest.mark.slow
async def test_dropped_segments_are_not_even_acknowledged_and_arrive_when_the_link_is_mended(
    client: Client, proxy: TcpProxy
) -> None:
    await client.echo(b"before")
    await proxy.add(Toxic(name="cut", kind="drop"))
    with pytest.raises(TimeoutError):
        await client.echo(b"lost", within_s=0.3)
    assert unacknowledged(client) >= 1, "the kernel took the data: this is a slow link, not a cut one"
    with pytest.raises(TimeoutError):
        await connect_within(proxy.port, 0.3)
    assert proxy.hits["cut"] == 1
    await proxy.remove("cut")
    async with asyncio.timeout(5.0):
        assert await client.reader.readexactly(4) == b"lost"
    await connect_within(proxy.port, 3.0)


@pytest.mark.slow
async def test_only_established_connections_are_forgotten_when_told_so(client: Client, proxy: TcpProxy) -> None:
    await client.echo(b"before")
    await proxy.add(Toxic(name="forgotten", kind="drop", established_only=True))
    with pytest.raises(TimeoutError):
        await client.echo(b"lost", within_s=0.3)
    fresh = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    await fresh.echo(b"new connections work")
    fresh.writer.close()


@pytest.mark.slow
async def test_segments_lost_on_the_way_back_befall_new_connections_too(client: Client, proxy: TcpProxy) -> None:
    await client.echo(b"before")
    await proxy.add(Toxic(name="deaf", kind="drop", way="down"))
    fresh = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    for one in (client, fresh):
        with pytest.raises(TimeoutError):
            await one.echo(b"answer?", within_s=0.3)
        assert unacknowledged(one) == 0, "what is sent arrives; only the answers are lost"
    assert proxy.hits["deaf"] == 2
    fresh.writer.close()
