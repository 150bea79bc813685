"""A beat port with a sink that remembers, and an agent that reports to it."""

from collections.abc import Callable
from typing import Any

import msgspec
from prometheus_client.registry import CollectorRegistry

from gir.clock import SystemClock
from gir.control.beats import BeatServer, BeatService, Terms
from gir.model.beat import AgentHello, BeatReport
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId, RegionId, TierName
from gir.telemetry.metrics import AgentMetrics, RouterMetrics
from gir.wire import beats as wire
from tier1_agent.beats import BeatClient

TOKENS = {"token-eu": ClusterId("eu-1"), "token-us": ClusterId("us-1")}


def hello(cluster: str = "eu-1", epoch: int = 1, **changes: Any) -> AgentHello:
    """A Hello that is accepted."""
    base = AgentHello(
        cluster=ClusterId(cluster),
        region=RegionId("eu-west"),
        url="http://127.0.0.1:8101",
        tier=TierName("reserved"),
        epoch=epoch,
    )
    return msgspec.structs.replace(base, **changes)


def report(**changes: Any) -> BeatReport:
    """A beat that is accepted."""
    pool = PoolState(model=ModelId("llama"), pods_ready=2, slots_total=16, slots_free=12)
    base = BeatReport(cluster=ClusterId("eu-1"), epoch=1, seq=1, pools=(pool,))
    return msgspec.structs.replace(base, **changes)


class Log:
    """Keeps what would be logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **fields: self.lines.append((level, event, fields))

    def events(self) -> list[str]:
        """What was said, in order."""
        return [event for _, event, _ in self.lines]


class Sink:
    """Remembers what agents said; `refuse_hello` and `ignore_beat` are its answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.refuse_hello = ""
        self.ignore_beat = ""

    def hello(self, hello: AgentHello, now_s: float) -> str:
        self.calls.append(("hello", hello))
        return self.refuse_hello

    def beat(self, beat: BeatReport, now_s: float) -> str:
        self.calls.append(("beat", beat))
        return self.ignore_beat

    def goodbye(self, cluster: ClusterId, epoch: int, now_s: float) -> None:
        self.calls.append(("goodbye", (cluster, epoch)))

    def stream_lost(self, cluster: ClusterId, epoch: int, now_s: float) -> None:
        self.calls.append(("lost", (cluster, epoch)))

    def kinds(self) -> list[str]:
        """What was called, in order."""
        return [kind for kind, _ in self.calls]

    def last_beat(self) -> BeatReport:
        """The newest beat taken."""
        return next(value for kind, value in reversed(self.calls) if kind == "beat")


class Router:
    """A beat port on loopback."""

    def __init__(self, sink: Any = None, *, router_id: str = "router-1", interval_s: float = 0.1) -> None:
        self.sink = Sink() if sink is None else sink
        self.metrics = RouterMetrics(CollectorRegistry())
        self.log = Log()
        self.peers: tuple[str, ...] = ()
        self.directives: tuple[wire.Directive, ...] = ()
        self.router_id = router_id
        self.interval_s = interval_s
        terms = Terms(
            cluster_of=TOKENS.get,
            welcome=lambda: wire.Welcome(self.interval_s, self.peers, 7, self.router_id),
            directives=lambda _: self.directives,
        )
        self.service = BeatService(self.sink, terms, clock=SystemClock(), metrics=self.metrics, log=self.log)  # type: ignore[arg-type]
        self.server = BeatServer(self.service)

    async def start(self, port: int = 0, credentials: Any = None) -> str:
        """Listen; returns the address."""
        await self.server.start("127.0.0.1", port, credentials)
        return self.address

    @property
    def address(self) -> str:
        """Where agents find it."""
        return f"127.0.0.1:{self.server.port}"


def agent(routers: list[str], *, token: str = "token-eu", seed: int = 1, **options: Any) -> BeatClient:
    """An agent's beat client for `routers`."""
    return BeatClient(
        options.pop("hello", hello()),
        options.pop("snapshot", report),
        routers,
        token,
        clock=SystemClock(seed),
        metrics=AgentMetrics(CollectorRegistry()),
        log=options.pop("log", Log()),
        **options,
    )
