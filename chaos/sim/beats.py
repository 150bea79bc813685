"""Beats between a simulated agent and a simulated router: the conversation of the fleet protocol, message by message.

The agent's side beats and waits for the Ack, one at a time; an Ack that does not come means a dead router, and it
starts over after a pause drawn at random. The router's side hands everything to its registry.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from chaos.sim.loop import Call, Node
from gir.model.beat import AgentHello, BeatReport
from tier1_agent.beat_link import ACK_S, JITTER_SHARE, Backoff

if TYPE_CHECKING:
    from chaos.sim.cluster import SimCluster
    from chaos.sim.router import SimRouter

BEATS_PORT = 70


class Goodbye:
    """Last word of an agent."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class Welcome:
    """The router's answer to Hello."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s


class Ack:
    """The router's answer to a beat."""


ACK = Ack()


class BeatLink(asyncio.Protocol):
    """An agent's stream to one router, over the life of the agent's process."""

    def __init__(self, agent: "SimCluster", router: str) -> None:
        self.agent = agent
        self.router = router
        self._node: Node = agent.node
        self._backoff = Backoff()
        self._side: Any = None
        self._dialling: asyncio.Task[None] | None = None
        self._interval_s = 2.0
        self._session = 0
        """Number of the stream, so that timers of an earlier one mean nothing."""
        self._overdue = Call(self._node.context, lambda: None, ())
        """What happens if the router does not answer."""
        self._awaits = False
        """A beat or Hello waits for its answer."""
        self._up = False
        self._node.later(agent.chance.random() * 0.2, self._dial)

    def say_goodbye(self) -> None:
        """The agent stops on purpose."""
        if self._side is not None:
            self._side.write(Goodbye(self.agent.epoch))
        self._session += 1
        self._side = None

    def _dial(self) -> None:
        self._dialling = self.agent.loop.create_task(self._open(), context=self._node.context)

    async def _open(self) -> None:
        self._session += 1
        session = self._session
        try:
            async with asyncio.timeout(ACK_S):
                self._side, _ = await self.agent.network.dial(lambda: self, self.router, BEATS_PORT)
        except OSError:
            self._lost(session)
            return
        self._ask(self.agent.hello())

    def _ask(self, message: AgentHello | BeatReport) -> None:
        self._awaits = True
        self._side.write(message)
        self._overdue = self._node.later(ACK_S, self._give_up, self._session)

    def _give_up(self, session: int) -> None:
        if session == self._session:
            self._side.abort()

    def data_received(self, message: Any) -> None:
        """The router has answered."""
        if isinstance(message, Welcome):
            self._overdue.cancel()
            self._up = True
            self._backoff.reset()
            self._interval_s = message.interval_s
            self._beat(self._session)
        else:
            self.acknowledged(self._side, 0.0)

    def acknowledged(self, side: Any, after_s: float) -> None:
        """The last beat on `side` was taken, as is known here `after_s` from now: plan the next one."""
        if side is not self._side or not self._awaits:
            return  # of an earlier stream, or seen twice
        self._awaits = False
        self._overdue.cancel()
        jitter = self.agent.chance.uniform(1.0 - JITTER_SHARE, 1.0 + JITTER_SHARE)
        self._node.later(after_s + self._interval_s * jitter, self._beat, self._session)

    def _beat(self, session: int) -> None:
        if session == self._session and self._side is not None:
            self._ask(self.agent.beat())

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _: Exception | None) -> None:
        """The stream is over."""
        if self._side is not None:
            self._lost(self._session)

    def _lost(self, session: int) -> None:
        if session != self._session:
            return
        self._session += 1
        self._side = None
        window_s = self._backoff.window_s(refused=False)
        self._up = False
        self._node.later(self.agent.chance.uniform(0.0, window_s), self._dial)


class BeatPort(asyncio.Protocol):
    """The router's side of one stream."""

    def __init__(self, router: "SimRouter") -> None:
        self._router = router
        self._side: Any = None
        self._hello: AgentHello | None = None

    def connection_made(self, transport: Any) -> None:
        self._side = transport

    def data_received(self, message: Any) -> None:
        """The agent has said something."""
        router, registry = self._router, self._router.registry
        now_s = router.clock.monotonic_s()
        if isinstance(message, AgentHello):
            if self._hello is not None:
                return  # seen twice on its way
            if registry.hello(message, now_s):
                self._side.abort()
                return
            self._hello = message
            self._side.write(Welcome(registry.policy.beat_interval_s))
        elif self._hello is None:
            return
        elif isinstance(message, Goodbye):
            registry.goodbye(self._hello.cluster, message.epoch, now_s)
            self._hello = None
        else:
            registry.beat(message, now_s)
            self._acknowledge()
        router.look_if_needed()

    def _acknowledge(self) -> None:
        """Answer a beat. On a way where nothing can happen to the answer its effect is planned at once: beats are most
        of what happens in a run, and this halves their events."""
        way, peer = self._side.way, self._side.peer
        if way.calm(self._router.loop.time()) and peer.protocol is not None and not self._side.is_closing():
            peer.protocol.acknowledged(peer, way.delay_s)
        else:
            self._side.write(ACK)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _: Exception | None) -> None:
        """The stream is over."""
        if self._hello is not None:
            router = self._router
            router.registry.stream_lost(self._hello.cluster, self._hello.epoch, router.clock.monotonic_s())
            router.watch.look()
