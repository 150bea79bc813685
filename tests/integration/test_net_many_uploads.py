"""Many large bodies at once: all arrive whole, and nobody else waits for them."""

import asyncio
import hashlib
import ssl
from pathlib import Path

import pytest
import trustme

from gir.model.errors import ErrorKind, RequestError
from gir.net.exchange import Exchange
from gir.net.server import ServerLimits
from gir.net.tls import ServerTls
from gir.net.turns import READS_PER_TURN
from tests.support.net import Client, Rig, eventually, on_uvloop, post

pytestmark = pytest.mark.slow
BODY_BYTES = 1024 * 1024
UPLOADS = 60


class Desk:
    """Answers with a body's digest, and counts how many whole bodies came in one turn of the loop."""

    def __init__(self) -> None:
        self.turn = 0
        self.whole: dict[int, int] = {}
        self.refuse = False

    async def serve(self, exchange: Exchange) -> None:
        if self.refuse:
            raise RequestError(ErrorKind.UNAUTHENTICATED, "nobody is known here")
        body = await exchange.read_body()
        if len(body) > 1_000:
            self.whole[self.turn] = self.whole.get(self.turn, 0) + 1
        exchange.respond(200, [], hashlib.sha256(body).hexdigest().encode())

    async def count_turns(self) -> None:
        """Until cancelled."""
        while True:
            self.turn += 1
            await asyncio.sleep(0)


def uploads() -> list[bytes]:
    """Each another body, so that no two can be taken for one another."""
    return [bytes([number]) * BODY_BYTES for number in range(UPLOADS)]


async def connected(rig: Rig) -> list[Client]:
    return [await rig.client() for _ in range(UPLOADS)]


@on_uvloop
async def test_chunked_bodies_and_bodies_of_known_length_arrive_whole_side_by_side() -> None:
    desk = Desk()
    async with Rig(desk.serve) as rig:
        counting = asyncio.get_running_loop().create_task(desk.count_turns())
        clients, bodies = await connected(rig), uploads()
        for number, (client, body) in enumerate(zip(clients, bodies, strict=True)):
            head = b"POST /v1/x HTTP/1.1\r\nHost: gir\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunked = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            client.send(chunked if number % 2 else post(body))
        small = await rig.client()
        assert (await small.ask(post(b"quick")))[0] == 200
        answers = [await client.answer() for client in clients]
        counting.cancel()
        assert [answer[2] for answer in answers] == [hashlib.sha256(body).hexdigest().encode() for body in bodies]
        assert sum(desk.whole.values()) == UPLOADS
        assert max(desk.whole.values()) <= 2 * READS_PER_TURN
        assert (await clients[0].ask(post(b"again")))[0] == 200, "the connection is read on"


@on_uvloop
async def test_bodies_that_come_encrypted_arrive_whole_too(tmp_path: Path) -> None:
    desk, authority = Desk(), trustme.CA()
    certificate, key, trusted = tmp_path / "server.pem", tmp_path / "server.key", ssl.create_default_context()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(str(key))
    leaf.cert_chain_pems[0].write_to_path(str(certificate))
    authority.configure_trust(trusted)
    async with Rig(desk.serve, tls=ServerTls(str(certificate), str(key))) as rig:
        clients = [await rig.client(ssl=trusted, server_hostname="127.0.0.1") for _ in range(UPLOADS)]
        for client, body in zip(clients, uploads(), strict=True):
            client.send(post(body))
        answers = [await client.answer() for client in clients]
        assert [answer[2] for answer in answers] == [hashlib.sha256(body).hexdigest().encode() for body in uploads()]
        assert (await clients[-1].ask(post(b"again")))[0] == 200


@on_uvloop
async def test_clients_that_leave_and_answers_that_do_not_wait_for_the_body_hold_up_no_turn() -> None:
    desk = Desk()
    async with Rig(desk.serve) as rig:
        clients, bodies = await connected(rig), uploads()
        for client, body in zip(clients, bodies, strict=True):
            client.send(post(body)[: BODY_BYTES // 2])
        for client in clients[::2]:
            client.reset()
        for client, body in zip(clients[1::2], bodies[1::2], strict=True):
            client.send(post(body)[BODY_BYTES // 2 :])
        answers = [await client.answer() for client in clients[1::2]]
        assert {answer[0] for answer in answers} == {200}
        await eventually(lambda: rig.server.exchanges_open == 0)
        desk.refuse = True
        refused = await connected(rig)
        for client, body in zip(refused, bodies, strict=True):
            client.send(post(body))
        assert {(await client.answer())[0] for client in refused} == {401}
        assert repr(rig.server.turns) == "<Turns 0 waiting>"


@on_uvloop
async def test_who_waits_for_a_turn_is_not_called_slow() -> None:
    desk = Desk()
    strict = ServerLimits(body_bytes_per_s_min=1024 * 1024, body_window_s=0.4)
    async with Rig(desk.serve, strict) as rig:
        client = await rig.client()
        client.send(post(bytes(BODY_BYTES))[: BODY_BYTES // 2])
        await eventually(lambda: rig.server.exchanges_open == 1)
        (connection,) = rig.server._connections
        transport = connection._transport
        assert transport is not None
        transport.pause_reading()
        rig.server.turns._waiting[transport] = None
        await asyncio.sleep(1.5)
        rig.server.turns.leave(transport)
        client.send(post(bytes(BODY_BYTES))[BODY_BYTES // 2 :])
        assert (await client.answer())[0] == 200
