"""The simulated processes and connections themselves: what stops, what dies, what arrives and in which order."""

import asyncio
import random
from typing import Any

import pytest

from chaos.sim.loop import Node, SimLoop
from chaos.sim.network import Network, Side

PORT = 80


class Peer(asyncio.Protocol):
    """Writes down what comes."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.side: Any = None

    def connection_made(self, transport: Any) -> None:
        self.side = transport

    def data_received(self, data: Any) -> None:
        self.heard.append(data)

    def eof_received(self) -> bool:
        self.heard.append("eof")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.heard.append(type(error).__name__ if error else "closed")


class Pair:
    """Two processes, `a` and `b`; `b` listens."""

    def __init__(self) -> None:
        self.loop = SimLoop(start_s=0.0)
        self.network = Network(self.loop, random.Random(1), lambda *_: 0.1)
        self.a, self.b = Node(self.loop, "a"), Node(self.loop, "b")
        self.client, self.server = Peer(), Peer()
        self.network.listen("b", PORT, self.b, lambda: self.server)
        self.failure: BaseException | None = None

    def connect(self) -> Side | None:
        self.a.soon(lambda: self.loop.create_task(self._dial(), context=self.a.context))
        self.run(1.0)
        side: Side | None = self.client.side
        return side

    async def _dial(self) -> None:
        try:
            async with asyncio.timeout(0.9):
                await self.network.dial(lambda: self.client, "b", PORT)
        except OSError as error:
            self.failure = error

    def run(self, duration_s: float) -> None:
        self.loop.run_until(self.loop.time() + duration_s)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_time_jumps_and_callbacks_run_in_order_of_time_then_of_asking() -> None:
    loop = SimLoop(start_s=0.0)
    seen: list[tuple[str, float]] = []
    node = Node(loop, "n")
    for name, at_s in (("late", 3_600.0), ("first", 1.0), ("second", 1.0)):
        node.at(at_s, lambda name=name: seen.append((name, loop.time())))
    loop.run_until(10_000.0)
    assert seen == [("first", 1.0), ("second", 1.0), ("late", 3_600.0)]
    assert loop.time() == 10_000.0


def test_a_stopped_process_does_nothing_and_catches_up_in_order() -> None:
    loop = SimLoop(start_s=0.0)
    node = Node(loop, "n")
    seen: list[float] = []
    for at_s in (1.0, 2.0, 3.0):
        node.at(at_s, lambda: seen.append(loop.time()))
    loop.run_until(1.5)
    node.pause()
    loop.run_until(10.0)
    assert seen == [1.0]
    node.resume()
    loop.run_until(10.0)
    assert seen == [1.0, 10.0, 10.0]


def test_a_killed_process_never_runs_again() -> None:
    loop = SimLoop(start_s=0.0)
    node = Node(loop, "n")
    seen: list[float] = []
    node.at(1.0, lambda: seen.append(loop.time()))
    node.kill()
    loop.run_until(10.0)
    assert seen == []


def test_what_a_callback_raises_is_a_finding() -> None:
    loop = SimLoop(start_s=0.0)
    Node(loop, "n").at(1.0, lambda: 1 / 0)
    loop.run_until(2.0)
    assert loop.failures == ["callback failed: ZeroDivisionError('division by zero')"]


def test_bytes_arrive_in_order_after_the_delay(pair: Pair) -> None:
    side = pair.connect()
    assert side is not None
    side.write(b"one")
    side.write(b"two")
    pair.run(0.05)
    assert pair.server.heard == []
    pair.run(0.1)
    assert pair.server.heard == [b"one", b"two"]


def test_a_closed_connection_ends_after_what_was_sent_and_a_reset_says_so(pair: Pair) -> None:
    side = pair.connect()
    assert side is not None
    side.write(b"last")
    side.close()
    pair.run(1.0)
    assert pair.server.heard == [b"last", "eof", "closed"]
    again = Pair()
    side = again.connect()
    assert side is not None
    side.abort()
    again.run(1.0)
    assert again.server.heard == ["ConnectionResetError"]


def test_a_cut_link_holds_what_is_sent_and_the_connection_lives(pair: Pair) -> None:
    side = pair.connect()
    assert side is not None
    link = pair.network.link("a", "b", PORT)
    link.cut = True
    side.write(b"held")
    pair.run(100.0)
    assert pair.server.heard == []
    pair.server.side.write(b"the other way is open")
    pair.network.mend(link)
    pair.run(1.0)
    assert pair.server.heard == [b"held"]
    assert pair.client.heard == [b"the other way is open"]


def test_a_clogged_link_delivers_late_but_in_order(pair: Pair) -> None:
    side = pair.connect()
    assert side is not None
    pair.network.link("a", "b", PORT).clogged_until_s = 50.0
    side.write(b"one")
    pair.run(60.0)
    side.write(b"two")
    pair.run(1.0)
    assert pair.server.heard == [b"one", b"two"]


def test_a_stopped_process_accepts_connections_and_never_answers(pair: Pair) -> None:
    pair.b.pause()
    side = pair.connect()
    assert side is not None
    side.write(b"hello?")
    pair.run(10.0)
    assert pair.server.heard == []
    pair.b.resume()
    pair.run(1.0)
    assert pair.server.heard == [b"hello?"]


def test_a_dead_process_refuses_and_its_connections_are_reset(pair: Pair) -> None:
    pair.connect()
    pair.b.kill()
    pair.network.died(pair.b)
    pair.run(1.0)
    assert pair.client.heard == ["ConnectionResetError"]
    pair.client = Peer()
    pair.connect()
    assert isinstance(pair.failure, ConnectionRefusedError)


def test_a_dead_host_says_nothing_at_all(pair: Pair) -> None:
    pair.connect()
    pair.b.kill(silent=True)
    pair.network.died(pair.b)
    pair.run(10.0)
    assert pair.client.heard == []
    pair.client = Peer()
    pair.connect()
    assert isinstance(pair.failure, TimeoutError)


def test_messages_may_be_seen_twice_but_bytes_never(pair: Pair) -> None:
    side = pair.connect()
    assert side is not None
    pair.network.link("a", "b", PORT).noise = 1.0
    side.write(("a", "message"))
    side.write(b"bytes")
    pair.run(30.0)
    assert sorted(map(str, pair.server.heard)) == ["('a', 'message')", "('a', 'message')", "b'bytes'"]
