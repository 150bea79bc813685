"""Connections between simulated processes, as TCP shows them: bytes in order or not at all, and silence.

A link goes one way. It has a delay; it may lose packets (which a connection feels as longer delays), be clogged
(nothing arrives before some time) or cut (nothing arrives until it is mended; connections live on and deliver then).
A process that dies resets its connections, unless its host dies with it: then nothing comes at all. A stopped process
still accepts connections, for its kernel does.
"""

import asyncio
import random
from collections.abc import Callable
from enum import Enum
from typing import Any

from chaos.sim.loop import Node, SimLoop, current_node

RETRANSMIT_S = 0.2


class Kind(Enum):
    """What travels."""

    DATA = 0
    END = 1
    RESET = 2


class Link:
    """One direction between two places."""

    __slots__ = ("clogged_until_s", "cut", "delay_s", "held", "loss", "noise")

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.loss = 0.0
        """Chance of a packet being sent again."""
        self.noise = 0.0
        """Chance of a message being seen twice or late (messages only: a byte stream hides it)."""
        self.clogged_until_s = 0.0
        self.cut = False
        self.held: list[Callable[[], None]] = []
        """What waits for the cut to be mended."""

    def calm(self, now_s: float) -> bool:
        """Whatever is sent now arrives, once and after `delay_s`."""
        return not (self.cut or self.loss or self.noise or self.clogged_until_s > now_s)


class Listener:
    """A port: the process that listens and what makes its side of a new connection."""

    __slots__ = ("factory", "node")

    def __init__(self, node: Node, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.node = node
        self.factory = factory


class Side(asyncio.Transport):
    """One end of a connection: the transport its protocol sees."""

    __slots__ = ("_closed", "_ended", "_held", "_last_s", "_network", "_reading", "node", "peer", "port", "protocol",
                 "way")  # fmt: skip

    def __init__(self, network: "Network", node: Node, port: int) -> None:
        super().__init__()
        self._network = network
        self.port = port
        self._closed = False
        self._ended = False
        """This side has said that it will send no more."""
        self._last_s = 0.0
        self._reading = True
        self._held: list[tuple[Kind, Any]] = []
        self.node = node
        self.peer: Side | None = None
        self.way: Link | None = None
        """The link to the other end."""
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        if not self._closed and not self._ended:
            self._network.carry(self, Kind.DATA, data)

    def write_eof(self) -> None:
        if not self._closed and not self._ended:
            self._ended = True
            self._network.carry(self, Kind.END, None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closed:
            self.write_eof()
            self._over(None)

    def abort(self) -> None:
        if not self._closed:
            self._network.carry(self, Kind.RESET, None)
            self._over(None)

    def is_closing(self) -> bool:
        return self._closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever buffered here: the network takes all."""

    def get_extra_info(self, name: Any, default: Any = None) -> Any:  # noqa: ARG002 -- the transport's interface
        return default

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        held, self._held = self._held, []
        for kind, data in held:
            self.arrive(kind, data)

    def arrive(self, kind: Kind, data: Any) -> None:
        """Something has come from the other end."""
        if self._closed:
            if kind is Kind.DATA:
                self._network.carry(self, Kind.RESET, None)
            return
        if self.protocol is None or (not self._reading and kind is not Kind.RESET):
            self._held.append((kind, data))
        elif kind is Kind.DATA:
            self.protocol.data_received(data)
        elif kind is Kind.RESET:
            self._over(ConnectionResetError("reset by peer"))
        elif not self.protocol.eof_received():
            self.close()

    def _over(self, error: Exception | None) -> None:
        self._closed = True
        self._network.sides.pop(self, None)
        self.node.soon(self.protocol.connection_lost, error)


class Network:
    """Every link, listener and connection."""

    def __init__(self, loop: SimLoop, chance: random.Random, delay_between_s: Callable[[str, str], float]) -> None:
        self.loop = loop
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.sides: dict[Side, None] = {}
        self._chance = chance
        self._delay_between_s = delay_between_s
        self._links: dict[tuple[str, str, int], Link] = {}
        loop.dial = self.dial

    def link(self, source: str, target: str, port: int) -> Link:
        """The way from one host to another, for connections to `port` at either end."""
        link = self._links.get((source, target, port))
        if link is None:
            link = self._links[source, target, port] = Link(self._delay_between_s(source, target))
        return link

    def links(self) -> list[Link]:
        """Every way used so far, in the order of first use."""
        return list(self._links.values())

    def listen(self, host: str, port: int, node: Node, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections to `host:port` as `node`."""
        self.listeners[host, port] = Listener(node, factory)

    # Faults

    def mend(self, link: Link) -> None:
        """Undo everything that is wrong with a link; what was held arrives now."""
        link.cut, link.loss, link.noise, link.clogged_until_s = False, 0.0, 0.0, 0.0
        held, link.held = link.held, []
        for send in held:
            send()

    def died(self, node: Node) -> None:
        """The connections of a dead process: reset by its kernel, or silent if its host is gone too."""
        for side in [side for side in self.sides if side.node is node]:
            self.sides.pop(side, None)
            side._closed = True
            if not node.silent:
                self.carry(side, Kind.RESET, None)

    def round_trip_s(self, source: str, target: str, port: int) -> float | None:
        """How long a question and its answer take now; None if either would be lost."""
        there, back = self.link(source, target, port), self.link(target, source, port)
        now_s = self.loop.time()
        if there.cut or back.cut or max(there.clogged_until_s, back.clogged_until_s) > now_s:
            return None
        if not (there.loss or back.loss):
            return there.delay_s + back.delay_s
        lost = self._chance.random() < there.loss or self._chance.random() < back.loss
        return there.delay_s + back.delay_s + (RETRANSMIT_S if lost else 0.0)

    # Carrying

    def carry(self, side: Side, kind: Kind, data: Any) -> None:
        """Take something from one end to the other."""
        peer, link = side.peer, side.way
        assert peer is not None and link is not None, "half a connection"
        if link.cut:
            link.held.append(lambda: self.carry(side, kind, data))
            return
        at_s = self.loop._now_s + link.delay_s
        if link.loss or link.clogged_until_s > at_s:
            at_s = self._arrival_s(link)
        if link.noise and kind is Kind.DATA and not isinstance(data, bytes) and self._chance.random() < link.noise:
            late_s = at_s + self._chance.uniform(0.0, 20.0)
            peer.node.at(late_s, peer.arrive, kind, data)
        side._last_s = at_s = max(side._last_s, at_s)
        peer.node.at(at_s, peer.arrive, kind, data)

    def _arrival_s(self, link: Link) -> float:
        at_s = max(self.loop.time() + link.delay_s, link.clogged_until_s)
        while link.loss and self._chance.random() < link.loss:
            at_s += RETRANSMIT_S
        return at_s

    # Connecting

    async def dial(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple[Side, Any]:
        """Connect the running process to `host:port`; as with a real network, it may also never answer."""
        node = current_node()
        assert node is not None, "only processes make connections"
        opened: asyncio.Future[Side] = self.loop.create_future()
        self._knock(node, host, port, opened)
        side = await opened
        protocol: Any = factory()
        side.protocol = protocol
        self.sides[side] = None
        protocol.connection_made(side)
        side.resume_reading()
        return side, protocol

    def _knock(self, node: Node, host: str, port: int, opened: "asyncio.Future[Side]") -> None:
        link = self.link(node.name, host, port)
        if link.cut:
            link.held.append(lambda: self._knock(node, host, port, opened))
            return
        self.loop.call_at(self._arrival_s(link), self._answer_knock, node, host, port, opened)

    def _answer_knock(self, node: Node, host: str, port: int, opened: "asyncio.Future[Side]") -> None:
        """The other host's kernel answers, whatever its process is doing."""
        listener = self.listeners.get((host, port))
        if opened.done() or listener is None or listener.node.silent:
            return
        back = self.link(host, node.name, port)
        if back.cut:
            back.held.append(lambda: self._answer_knock(node, host, port, opened))
            return
        at_s = self._arrival_s(back)
        if not listener.node.alive:
            node.at(at_s, _refuse, opened)
            return
        near, far = Side(self, node, port), Side(self, listener.node, port)
        near.peer, far.peer = far, near
        near.way, far.way = self.link(node.name, host, port), back
        near._last_s = far._last_s = at_s
        far.protocol = listener.factory()
        self.sides[far] = None
        listener.node.soon(far.protocol.connection_made, far)
        node.at(at_s, _open, opened, near)


def _refuse(opened: "asyncio.Future[Side]") -> None:
    if not opened.done():
        opened.set_exception(ConnectionRefusedError(111, "Connection refused"))


def _open(opened: "asyncio.Future[Side]", near: Side) -> None:
    if opened.done():  # the caller has given up: the connection it does not want any more is reset
        near.protocol = asyncio.Protocol()
        near.abort()
    else:
        opened.set_result(near)
