"""One beat stream, to one router, over one channel for life.

A link is a loop: open the stream, say Hello, then beat and wait for the Ack, one at a time. An Ack that does not come
within ACK_S means the router is dead or frozen, whatever the transport thinks, and the link starts over after a pause
drawn at random, so that a restarted router is not met by all its agents at once.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import msgspec

from gir.clock import Clock
from gir.model.beat import AgentHello, BeatReport
from gir.telemetry.logs import Logger
from gir.telemetry.metrics import AgentMetrics
from gir.wire import beats as wire
from gir.wire.beat_transport import METHOD
from gir.wire.v1 import fleet_pb2 as pb

ACK_S = 1.75
"""Longest wait for an answer. With 2 s beats a dead router is noticed within 4 s."""
JITTER_SHARE = 0.1
URGENT_GAP_S = 0.25
"""Shortest time between two beats, however much there is to tell."""
GOODBYE_S = 1.0


class Backoff:
    """Full jitter: each pause is drawn from zero up to a window that doubles.

    The window of a router that once answered never falls back to that of a stranger: whoever tried in vain while it
    was down would otherwise all meet it within a second of its return.
    """

    __slots__ = ("_failures", "_met")

    NEW_S = 0.5
    """First window while the router has never answered: it may be starting beside us."""
    LOST_S = 8.0
    """First window after a working stream broke: the router restarts, and all its agents come back. With it no second
    brings more than three times the mean, however long the restart takes."""
    REFUSED_S = 30.0
    """Window after a refusal: only a change of configuration helps."""
    WINDOW_MAX_S = 10.0

    def __init__(self) -> None:
        self._failures = 0
        self._met = False

    def reset(self) -> None:
        """A stream works."""
        self._failures = 0
        self._met = True

    def window_s(self, *, refused: bool) -> float:
        """Upper bound of the next pause; grows with each call until `reset`."""
        first_s = self.LOST_S if self._met else self.NEW_S
        window_s = min(self.WINDOW_MAX_S, first_s * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return self.REFUSED_S if refused else window_s


class LinkState(msgspec.Struct, frozen=True, kw_only=True):
    """One link, for the admin page."""

    router: str
    up: bool
    router_id: str
    acknowledged: int
    """`seq` of the last beat acknowledged."""
    ack_s: float | None
    """How long the last Ack took, seconds."""
    error: str
    directives: tuple[str, ...] = ()


class _Lost(Exception):  # noqa: N818 - an end of a stream, expected all the time
    """The stream ended. `refused`: the router does not want us."""

    def __init__(self, detail: str, *, refused: bool = False) -> None:
        super().__init__(detail)
        self.refused = refused


class Agent(msgspec.Struct, kw_only=True):
    """What every link of one agent shares."""

    hello: AgentHello
    token: str
    clock: Clock
    metrics: AgentMetrics
    log: Logger
    next_seq: Callable[[], int]
    next_report: Callable[[], BeatReport]
    """State of the cluster at this moment, stamped."""
    on_welcome: Callable[["Link", wire.Welcome], None]
    on_lost: Callable[[], None]
    on_directives: Callable[[str, tuple[wire.Directive, ...]], None]
    closing: str | None = None
    """Why the agent stops, once it does."""


class Link:
    """The stream to the router at `address`. `configured`: an operator named it, so it is kept for good."""

    def __init__(self, agent: Agent, address: str, channel: grpc.aio.Channel, *, configured: bool) -> None:
        self.address = address
        self.configured = configured
        self.router_id = ""
        """Of the replica last met at this address."""
        self.up = False
        self.gone_since_s = agent.clock.monotonic_s()
        self.acknowledged = 0
        self.ack_s: float | None = None
        self.error = "not connected yet"
        self.directives: tuple[wire.Directive, ...] = ()
        self.urgent = asyncio.Event()
        """Set to end the current pause: there is something to tell."""
        self.task: asyncio.Task[Any] | None = None
        self._agent = agent
        self._channel = channel
        self._report = channel.stream_stream(
            METHOD,
            request_serializer=pb.AgentMessage.SerializeToString,
            response_deserializer=pb.RouterMessage.FromString,
        )
        self._backoff = Backoff()
        self._call: Any = None

    def __repr__(self) -> str:
        return f"{self.address} up seq={self.acknowledged}" if self.up else f"{self.address} down ({self.error})"

    def state(self) -> LinkState:
        """For the admin page."""
        return LinkState(
            router=self.address,
            up=self.up,
            router_id=self.router_id,
            acknowledged=self.acknowledged,
            ack_s=self.ack_s,
            error=self.error,
            directives=tuple(map(repr, self.directives)),
        )

    async def run(self) -> None:
        """Keep the stream until the agent closes or this link is dropped."""
        agent = self._agent
        try:
            while agent.closing is None:
                try:
                    await self._session()
                except _Lost as lost:
                    await self._recover(str(lost), refused=lost.refused)
                except Exception as error:
                    agent.metrics.task_failures.child("beats").inc()
                    agent.log.exception("beat failed", router=self.address)
                    await self._recover(repr(error), refused=True)
        finally:
            self._down(self.error)
            await self._channel.close()

    async def _recover(self, error: str, *, refused: bool) -> None:
        """Say that the stream is gone, and wait before the next one."""
        agent = self._agent
        window_s = self._backoff.window_s(refused=refused)
        self._down(error)
        agent.on_lost()
        if agent.closing is None:
            self.urgent.clear()
            await self._pause(agent.clock.random.uniform(0.0, window_s))

    async def _session(self) -> None:
        """One stream from Hello to goodbye. Raises _Lost."""
        agent = self._agent
        call = self._report(metadata=(("authorization", f"Bearer {agent.token}"),))
        self._call = call
        call.add_done_callback(self._ended)
        try:
            interval_s = await self._greet(call)
            while agent.closing is None:
                self.urgent.clear()
                await self._beat(call)
                await agent.clock.sleep_s(min(URGENT_GAP_S, interval_s))
                draw = agent.clock.random.uniform(-JITTER_SHARE, JITTER_SHARE)
                await self._pause(interval_s * (1.0 + draw) - URGENT_GAP_S)
                if call.done():
                    raise _lost(await call.code(), await call.details())
            await self._say_goodbye(call, agent.closing)
        except grpc.aio.AioRpcError as error:
            raise _lost(error.code(), error.details()) from None
        except asyncio.InvalidStateError:
            raise _Lost("the stream ended while a beat was written") from None
        finally:
            self._call = None
            call.cancel()

    def _ended(self, call: Any) -> None:
        """Between beats nobody reads, so the end of the stream must end the pause by itself."""
        if call is self._call:
            self.urgent.set()

    async def _greet(self, call: Any) -> float:
        """Exchange Hello and Welcome; returns the beat interval."""
        agent = self._agent
        reply = await self._ask(call, wire.encode_hello(agent.hello))
        if reply.WhichOneof("body") != "welcome":
            raise _Lost("the router did not answer hello with welcome")
        welcome = wire.decode_welcome(reply.welcome)
        agent.metrics.beat_connects.child(self.address, "welcomed").inc()
        self.router_id = welcome.router
        self.up, self.error = True, ""
        self._backoff.reset()
        agent.metrics.beat_streams.child(self.address).set(1)
        agent.log.info("router connected", router=self.address, router_id=welcome.router)
        agent.on_welcome(self, welcome)
        return welcome.interval_s

    async def _beat(self, call: Any) -> None:
        """One beat and its Ack."""
        agent = self._agent
        report = agent.next_report()
        started_s = agent.clock.monotonic_s()
        reply = await self._ask(call, wire.encode_beat(report))
        ack = wire.decode_ack(reply.ack)
        self.ack_s = agent.clock.monotonic_s() - started_s
        self.acknowledged = max(self.acknowledged, ack.seq)
        agent.metrics.beats.child(self.address, "refused" if ack.refused else "acknowledged").inc()
        agent.metrics.beat_ack_s.one.observe(self.ack_s)
        if ack.refused and ack.refused != self.error:
            agent.log.warning("beat refused", router=self.address, seq=ack.seq, detail=ack.refused)
        self.error = ack.refused
        if ack.directives != self.directives:
            self.directives = ack.directives
            agent.on_directives(self.address, ack.directives)

    async def _say_goodbye(self, call: Any, reason: str) -> None:
        goodbye = wire.Goodbye(self._agent.hello.epoch, self._agent.next_seq(), reason)
        try:
            async with asyncio.timeout(GOODBYE_S):
                await call.write(wire.encode_goodbye(goodbye))
                await call.read()
        except TimeoutError:
            self.error = "no answer to goodbye"

    async def _ask(self, call: Any, message: pb.AgentMessage) -> pb.RouterMessage:
        """Send one message and read its answer within ACK_S."""
        try:
            async with asyncio.timeout(ACK_S):
                await call.write(message)
                reply = await call.read()
        except TimeoutError:
            self._agent.metrics.beats.child(self.address, "lost").inc()
            raise _Lost(f"no answer within {ACK_S:g}s") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The library raises this, too, when the stream was cancelled by the other side.
            raise _Lost("the router cancelled the stream") from None
        if reply is grpc.aio.EOF:
            raise _lost(await call.code(), await call.details())
        assert isinstance(reply, pb.RouterMessage), "the only type this method answers with"
        return reply

    async def _pause(self, pause_s: float) -> None:
        """Until `pause_s` has passed or there is something urgent to say."""
        try:
            async with asyncio.timeout(max(0.0, pause_s)):
                await self.urgent.wait()
        except TimeoutError:
            return

    def _down(self, error: str) -> None:
        agent = self._agent
        if self.up:
            agent.log.warning("router lost", router=self.address, detail=error)
            self.gone_since_s = agent.clock.monotonic_s()
        elif _kind_of(error) != _kind_of(self.error):
            # Whoever tries again and again says why once.
            agent.log.warning("router not connected", router=self.address, detail=error)
        self.up, self.error = False, error
        agent.metrics.beat_streams.child(self.address).set(0)
        if self.directives:
            self.directives = ()
            agent.on_directives(self.address, ())


_REFUSALS = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION}
)


def _kind_of(error: str) -> str:
    """What stays the same when the same thing goes wrong again."""
    return error.partition(":")[0]


def _lost(code: grpc.StatusCode, details: str | None) -> _Lost:
    return _Lost(f"{code.name.lower()}: {(details or 'the router ended the stream')[:200]}", refused=code in _REFUSALS)
