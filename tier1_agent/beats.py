"""Beats out: one stream to every router replica. No router is needed to go on serving.

Configured routers are kept for good. Those named by a Welcome are added while they answer and forgotten when they have
been gone for a while; two addresses of one replica (it tells its id) share one stream.
"""

import asyncio
from collections.abc import Callable, Iterable

import grpc
import grpc.aio
import msgspec

from gir.clock import Clock
from gir.model.beat import AgentHello, BeatReport
from gir.tasks import TaskSet
from gir.telemetry.logs import Logger
from gir.telemetry.metrics import AgentMetrics
from gir.wire import beats as wire
from gir.wire.beat_transport import CLIENT_OPTIONS
from tier1_agent.beat_link import ACK_S, GOODBYE_S, Agent, Link, LinkState

LINKS_MAX = 64
FORGET_S = 300.0
"""A router nobody configured is forgotten after being unreachable this long."""


class BeatClient:
    """All links of one agent.

    `snapshot()` gives the cluster's state at this moment; epoch and seq are stamped here. `on_directives(router,
    directives)` hears of every change in what a router asks for, and of its silence as of no wishes.
    """

    def __init__(
        self,
        hello: AgentHello,
        snapshot: Callable[[], BeatReport],
        routers: Iterable[str],
        token: str,
        *,
        clock: Clock,
        metrics: AgentMetrics,
        log: Logger,
        credentials: grpc.ChannelCredentials | None = None,
        on_directives: Callable[[str, tuple[wire.Directive, ...]], None] = lambda _router, _directives: None,
    ) -> None:
        self._agent = Agent(
            hello=hello,
            token=token,
            clock=clock,
            metrics=metrics,
            log=log,
            next_seq=self._next_seq,
            next_report=self._next_report,
            on_welcome=self._welcomed,
            on_lost=self._reconcile,
            on_directives=on_directives,
        )
        self._snapshot = snapshot
        self._configured = tuple(dict.fromkeys(routers))
        self._credentials = credentials
        self._seq = 0
        self._links: dict[str, Link] = {}
        self._announced: dict[str, str] = {}
        """Router ids behind announced addresses, '' until met."""
        self._tasks = TaskSet(self._failed)

    def __repr__(self) -> str:
        return f"<BeatClient {' | '.join(map(repr, self._links.values())) or 'no routers'}>"

    @property
    def links_up(self) -> int:
        """Routers that acknowledge beats now."""
        return sum(link.up for link in self._links.values())

    @property
    def unwanted(self) -> bool:
        """Every router that acknowledges beats sends nothing new here, on purpose."""
        heard = [link for link in self._links.values() if link.up]
        return bool(heard) and all(any(isinstance(one, wire.Drain) for one in link.directives) for link in heard)

    def state(self) -> list[LinkState]:
        """Every link, for the admin page."""
        return [link.state() for link in self._links.values()]

    def start(self) -> None:
        """Begin to reach every configured router."""
        self._reconcile()

    def beat_now(self) -> None:
        """Something big has changed: beat on every link at once (at most every URGENT_GAP_S)."""
        for link in self._links.values():
            if link.up:
                link.urgent.set()

    async def close(self, reason: str = "stopping") -> None:
        """Say goodbye to every router that listens, and end all links."""
        self._agent.closing = reason
        running = [link.task for link in self._links.values() if link.task is not None]
        for link in self._links.values():
            link.urgent.set()
        if running:
            await asyncio.wait(running, timeout=ACK_S + GOODBYE_S)
        await self._tasks.close()

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _next_report(self) -> BeatReport:
        hello = self._agent.hello
        report = self._snapshot()
        return msgspec.structs.replace(report, cluster=hello.cluster, epoch=hello.epoch, seq=self._next_seq())

    def _welcomed(self, link: Link, welcome: wire.Welcome) -> None:
        """A router has answered: learn its id and its peers."""
        if link.address in self._announced:
            self._announced[link.address] = welcome.router
        for peer in welcome.peers:
            if peer not in self._links and len(self._announced) < LINKS_MAX:
                self._announced.setdefault(peer, "")
        self._reconcile()

    def _reconcile(self) -> None:
        """Restore the invariant: one link for each configured router and for each announced one not met elsewhere."""
        if self._agent.closing is not None:
            return
        now_s = self._agent.clock.monotonic_s()
        for link in list(self._links.values()):
            if not link.configured and self._is_surplus(link, now_s):
                self._drop(link)
        met = {link.router_id for link in self._links.values() if link.up and link.router_id}
        for address in (*self._configured, *self._announced):
            if address in self._links or len(self._links) >= LINKS_MAX:
                continue
            if address in self._configured or self._announced[address] not in met:
                self._add(address)

    def _is_surplus(self, link: Link, now_s: float) -> bool:
        if not link.up:
            return now_s - link.gone_since_s > FORGET_S
        return any(
            other.up and other.router_id == link.router_id and other is not link and link.router_id
            for other in self._links.values()
            if other.configured or other.address < link.address
        )

    def _add(self, address: str) -> None:
        link = Link(self._agent, address, self._open_channel(address), configured=address in self._configured)
        self._links[address] = link
        link.task = self._tasks.spawn(link.run(), name=f"beats to {address}")

    def _open_channel(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        return grpc.aio.secure_channel(address, self._credentials, options=CLIENT_OPTIONS)

    def _drop(self, link: Link) -> None:
        del self._links[link.address]
        if not link.up:
            self._announced.pop(link.address, None)
        if link.task is not None:
            link.task.cancel()

    def _failed(self, name: str, error: BaseException) -> None:
        self._agent.metrics.task_failures.child("beats").inc()
        self._agent.log.error("task failed", task=name, error=repr(error))
