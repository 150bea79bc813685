"""TLS and mTLS on both sides, with certificates that change while serving."""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest
import trustme

from gir.clock import SystemClock
from gir.net.errors import ConnectFailed
from gir.net.exchange import Exchange
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.tls import ClientTls, ServerTls
from tests.support.net import DEADLINES, Rig, eventually, on_uvloop, post


class Files:
    """PEM files of an authority, a server and a client."""

    def __init__(self, root: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(root / "ca.pem")
        self.certificate = str(root / "server.pem")
        self.key = str(root / "server.key")
        self.client_certificate = str(root / "client.pem")
        self.client_key = str(root / "client.key")
        self.authority.cert_pem.write_to_path(self.ca)
        self.issue("127.0.0.1", "gir.example")
        self._write(
            self.authority.issue_cert("agent.eu-1.example", "eu-1.example"),
            self.client_certificate,
            self.client_key,
        )

    def issue(self, *names: str) -> None:
        """A new certificate for the server."""
        self._write(self.authority.issue_cert(*names), self.certificate, self.key)

    def spoil(self) -> None:
        """A certificate file that is none, as while it is being copied."""
        Path(self.certificate).write_text("garbage")

    def remove(self) -> None:
        """No certificate file at all."""
        Path(self.certificate).unlink()

    @staticmethod
    def _write(leaf: trustme.LeafCert, certificate: str, key: str) -> None:
        leaf.private_key_pem.write_to_path(key)
        leaf.cert_chain_pems[0].write_to_path(certificate)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def who(exchange: Exchange) -> None:
    await exchange.read_body()
    exchange.respond(200, [], ",".join(exchange.head.peer_names).encode())


def pool_to(rig: Rig, tls: ClientTls, host: str = "127.0.0.1") -> UpstreamPool:
    endpoint = Endpoint.parse(f"https://{host}:{rig.port}")
    return UpstreamPool(endpoint, PoolLimits(connect_s=3.0), clock=SystemClock(), tls=tls)


async def ask(pool: UpstreamPool, body: bytes = b"{}") -> bytes:
    head = request_head("POST", b"/", pool.endpoint.authority, [], len(body))
    return await (await pool.send(head, body, deadlines=DEADLINES)).read_all(2**26)


@on_uvloop
async def test_a_verified_server_is_talked_to_and_reused(files: Files) -> None:
    async with Rig(who, tls=ServerTls(files.certificate, files.key)) as rig:
        pool = pool_to(rig, ClientTls(ca=files.ca))
        assert [await ask(pool) for _ in range(3)] == [b""] * 3
        assert (rig.server.connections_open, pool.idle) == (1, 1)
        await pool.close()


@on_uvloop
async def test_the_names_in_a_client_certificate_reach_the_handler(files: Files) -> None:
    tls = ServerTls(files.certificate, files.key, client_ca=files.ca)
    async with Rig(who, tls=tls) as rig:
        pool = pool_to(rig, ClientTls(ca=files.ca, certificate=files.client_certificate, key=files.client_key))
        assert set((await ask(pool)).split(b",")) == {b"agent.eu-1.example", b"eu-1.example"}
        await pool.close()


@on_uvloop
async def test_without_or_with_a_foreign_client_certificate_nobody_gets_in(files: Files, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Files(tmp_path / "other")
    async with Rig(who, tls=ServerTls(files.certificate, files.key, client_ca=files.ca)) as rig:
        for tls in (
            ClientTls(ca=files.ca),
            ClientTls(ca=files.ca, certificate=other.client_certificate, key=other.client_key),
        ):
            pool = pool_to(rig, tls)
            with pytest.raises(Exception, match=r"(?i)certificate|ssl|lost|closed|reset"):
                await ask(pool)
            await pool.close()
        await eventually(lambda: rig.server.connections_open == 0)


@on_uvloop
async def test_a_server_that_cannot_prove_its_name_is_refused(files: Files, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Files(tmp_path / "other")
    async with Rig(who, tls=ServerTls(files.certificate, files.key)) as rig:
        for tls in (ClientTls(ca=other.ca), ClientTls(ca=files.ca, server_name="other.example")):
            pool = pool_to(rig, tls)
            with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
                await ask(pool)
            await pool.close()
        named = pool_to(rig, ClientTls(ca=files.ca, server_name="gir.example"))
        assert await ask(named) == b""
        await named.close()


@on_uvloop
async def test_new_connections_use_the_newest_certificate_and_bad_files_leave_the_last_good_one(files: Files) -> None:
    async def serial(port: int) -> int:
        context = ssl.create_default_context(cafile=files.ca)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        certificate = writer.get_extra_info("peercert")
        writer.close()
        return int(certificate["serialNumber"], 16)

    tls = ServerTls(files.certificate, files.key)
    async with Rig(who, tls=tls) as rig:
        pool = pool_to(rig, ClientTls(ca=files.ca))
        await ask(pool)
        first = await serial(rig.port)
        files.issue("127.0.0.1", "renewed.example")
        second = await serial(rig.port)
        assert second != first
        await ask(pool)
        assert pool.idle == 1, "open connections live on"
        files.spoil()
        assert await serial(rig.port) == second
        assert tls.error is not None
        assert files.certificate in tls.error
        files.remove()
        assert await serial(rig.port) == second
        files.issue("127.0.0.1")
        assert await serial(rig.port) not in {first, second}
        assert tls.error is None
        await pool.close()


def test_files_that_cannot_be_loaded_fail_at_start(files: Files, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing\.pem"):
        ServerTls(str(tmp_path / "missing.pem"), files.key)
    shutil.copy(files.client_key, files.key)
    with pytest.raises(ssl.SSLError):
        ServerTls(files.certificate, files.key)


@on_uvloop
async def test_a_client_that_leaves_over_tls_cancels_its_handler(files: Files) -> None:
    gone: list[bool] = []

    async def wait(exchange: Exchange) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gone.append(exchange.client_gone)

    async with Rig(wait, tls=ServerTls(files.certificate, files.key)) as rig:
        for leave in ("close", "abort"):
            context = ssl.create_default_context(cafile=files.ca)
            _, writer = await asyncio.open_connection("127.0.0.1", rig.port, ssl=context)
            writer.write(post())
            await eventually(lambda: rig.server.exchanges_open == 1)
            await asyncio.sleep(0.01)
            getattr(writer.transport, leave)()
            assert await eventually(lambda: gone) < 0.1
            assert gone == [True]
            gone.clear()
            await eventually(lambda: rig.server.exchanges_open == 0)


@on_uvloop
async def test_large_bodies_pass_over_tls_in_both_directions(files: Files) -> None:
    async def echo(exchange: Exchange) -> None:
        exchange.respond(200, [], await exchange.read_body())

    async with Rig(echo, tls=ServerTls(files.certificate, files.key)) as rig:
        pool = pool_to(rig, ClientTls(ca=files.ca))
        body = bytes(range(256)) * 8_000
        assert await ask(pool, body) == body
        await pool.close()


@on_uvloop
async def test_plain_text_on_a_tls_port_is_dropped_and_counts_for_nothing(files: Files) -> None:
    async with Rig(who, tls=ServerTls(files.certificate, files.key)) as rig:
        client = await rig.client()
        client.send(post())
        assert b"HTTP/1.1 200" not in await client.rest()
        await eventually(lambda: rig.server.connections_open == 0)
