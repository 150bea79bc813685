"""Composition root of the agent: the only place that knows every part, and the order in which they start and stop."""

import asyncio
import gc
import signal
from collections.abc import Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import grpc
from prometheus_client.registry import CollectorRegistry

from gir.clock import SystemClock
from gir.model.beat import AgentHello, BeatReport
from gir.model.ids import ClusterId, RegionId, TierName
from gir.net.limits import ServerLimits
from gir.net.server import HttpServer
from gir.net.tls import ServerTls
from gir.settings import ConfigError, host_and_port
from gir.tasks import TaskSet
from gir.telemetry.admin import (
    READER,
    AdminAccess,
    AdminServer,
    AdminToken,
    Readiness,
    build_app,
    digest_of,
    json_response,
)
from gir.telemetry.logs import AccessLog, LogSink, capture_standard_logging, make_logger
from gir.telemetry.metrics import AgentMetrics
from gir.wire.beats import Directive, Drain
from tier1_agent.beats import BeatClient
from tier1_agent.capacity import report
from tier1_agent.catalogue import Catalogue
from tier1_agent.config import AgentConfig
from tier1_agent.discovery import PodsWatch, pods_of
from tier1_agent.fleet import Fleet
from tier1_agent.gate import Door
from tier1_agent.pods import PodSpec, PodState
from tier1_agent.proxy import Proxy, Upstreams
from tier1_agent.record import Recorder
from tier1_agent.scrape import Observed, Scraper
from tier1_agent.status import Status

STALL_S = 0.5
YOUNG_OBJECTS = 50_000


class Agent:
    """One agent process. `start`, then `stop`; `ports` say where it listens."""

    def __init__(self, config: AgentConfig, *, base: Path, log_stream: TextIO) -> None:
        self._config = config
        self._base = base
        self._clock = clock = SystemClock()
        self._metrics = metrics = AgentMetrics(CollectorRegistry())
        self._sink = LogSink(log_stream, on_drop=metrics.logs_dropped.one.inc)
        telemetry = config.telemetry
        self._log = make_logger(
            self._sink, clock, component="agent", level=telemetry.log_level, log_format=telemetry.log_format
        )
        self._tasks = TaskSet(self._task_failed)
        self._epoch = int(clock.wall_s() * 1e3)
        self._fleet = Fleet(config.pool_settings())
        self._door = Door(config.gate_settings(), clock)
        self._upstreams = Upstreams(config.forward, clock)
        self._scraper = Scraper(
            self._fleet,
            config.scrape,
            clock=clock,
            tasks=self._tasks,
            on_scrape=self._scraped,
            on_news=self._news,
            on_tick=self._ticked,
        )
        self._catalogue = Catalogue(self._fleet, lambda: self._scraper.cards)
        access_log = AccessLog(self._sink) if telemetry.access_log else None
        self._recorder = Recorder(metrics, clock, self._log, access_log)
        token = config.token.read("token", base) if config.token is not None else None
        self._token = token
        self._proxy = Proxy(
            self._fleet,
            self._door,
            self._upstreams,
            self._catalogue,
            self._recorder,
            limits=config.forward,
            token=None if config.insecure_no_auth else token,
            clock=clock,
        )
        tls = ServerTls(config.tls.cert, config.tls.key, client_ca=config.tls.client_ca) if config.tls else None
        forward = config.forward
        limits = ServerLimits(body_bytes_max=forward.body_bytes_max, bodies_bytes_max=forward.bodies_bytes_max)
        self._server = HttpServer(
            self._proxy, limits=limits, clock=clock, origin="agent", tls=tls, observer=self._recorder
        )
        self._status = Status(self._fleet, self._door, self._recorder, self._catalogue, metrics, clock)
        self._admin = AdminServer(self._admin_app(), self._log)
        self._watch = self._pods_watch()
        self._beats: BeatClient | None = None
        self._ready_pods = -1

    # Life.

    async def start(self) -> None:
        """Listen and begin. Raises OSError when an address is not to be had, ConfigError for the pods' file."""
        config = self._config
        capture_standard_logging(self._log)
        host, port = host_and_port(config.listen, "listen")
        await self._server.start(host, port)
        await self._admin.start(*host_and_port(config.admin.listen, "admin.listen"))
        self._scraper.start()
        if self._watch is None:
            self._apply(pods_of(config.pods.static, source="pods.static", base=self._base))
        else:
            self._watch.look()
            if self._watch.error is not None:
                raise ConfigError(self._watch.error)
            self._watching = self._tasks.spawn(self._watch.run(), name="pods file")
        if config.routers:
            self._beats = self._beat_client(host)
            self._beats.start()
        self._metrics.build.child(version("gir")).set(1)
        self._log.info(
            "serving", cluster=config.cluster, port=self.port, admin_port=self.admin_port, pods=len(self._fleet.pods())
        )

    @property
    def port(self) -> int:
        """Port of the data path."""
        return self._server.port

    @property
    def admin_port(self) -> int:
        """Port of the admin API."""
        return self._admin.port

    async def drain(self) -> bool:
        """Take leave: tell routers, keep the door open for those who have not heard yet, let streams finish.

        Whether everything finished in time.
        """
        drain = self._config.drain
        self._proxy.draining = True
        self._log.info("draining", streams=self._server.exchanges_open)
        await self._say_goodbye()
        await self._clock.sleep_s(drain.listen_s)
        finished = await self._server.drain(drain.finish_s)
        if not finished:
            self._log.warning("streams cut by the end of the drain", streams=self._server.exchanges_open)
        return finished

    async def close(self) -> None:
        """End everything now."""
        await self._say_goodbye()
        await self._server.close()
        await self._scraper.close()
        await self._tasks.close()
        await self._upstreams.close()
        await self._admin.close()
        self._log.info("stopped")
        await asyncio.to_thread(self._sink.close)

    async def _say_goodbye(self) -> None:
        beats, self._beats = self._beats, None
        if beats is not None:
            await beats.close("stopping")

    # Parts.

    def _pods_watch(self) -> PodsWatch | None:
        pods = self._config.pods
        if pods.file is None:
            return None
        return PodsWatch(
            self._base / pods.file,
            apply=self._apply,
            on_error=lambda reason: self._log.error("pods file refused; keeping the last good pods", reason=reason),
            clock=self._clock,
            poll_s=pods.poll_s,
        )

    def _admin_app(self) -> Any:
        admin = self._config.admin
        tokens = [
            AdminToken(
                name=f"token-{index}", digest=digest_of(secret.read(f"admin.tokens[{index}]", self._base)), role=READER
            )
            for index, secret in enumerate(admin.tokens)
        ]
        app = build_app(
            registry=self._metrics.registry,
            readiness=self._readiness,
            access=AdminAccess(tokens, public_metrics=admin.public_metrics),
            on_error=lambda what, error: self._log.error("admin handler failed", what=what, exc_info=error),
            before_scrape=self._before_scrape,
            origin="agent",
        )
        self._status.mount(app)

        async def links(_: Any) -> Any:
            beats = self._beats
            if beats is None:
                return json_response({"routers": [], "unwanted": False, "in_flight": self._server.exchanges_open})
            return json_response(
                {"routers": beats.state(), "unwanted": beats.unwanted, "in_flight": self._server.exchanges_open}
            )

        app.router.add_get("/admin/routers", links)
        return app

    def _beat_client(self, host: str) -> BeatClient:
        config, tls = self._config, self._config.beat_tls
        url = config.advertise_url
        if url is None:
            bracketed = f"[{host}]" if ":" in host else host
            url = f"{'https' if config.tls else 'http'}://{bracketed}:{self.port}"
        hello = AgentHello(
            cluster=ClusterId(config.cluster),
            region=RegionId(config.region),
            zone=config.zone,
            url=url,
            tier=TierName(config.tier),
            price_per_slot_hour=config.price_per_slot_hour,
            epoch=self._epoch,
            version=version("gir"),
            labels=config.labels,
        )
        return BeatClient(
            hello,
            self._report,
            config.routers,
            self._token or "",
            clock=self._clock,
            metrics=self._metrics,
            log=self._log,
            credentials=_credentials(tls) if tls is not None else None,
            on_directives=self._directed,
        )

    def _report(self) -> BeatReport:
        return report(
            self._fleet,
            self._status.demand_of,
            cluster=ClusterId(self._config.cluster),
            epoch=self._epoch,
            seq=0,
            draining=self._proxy.draining,
            warnings=self._warnings(),
            now_s=self._clock.monotonic_s(),
        )

    # Events.

    def _apply(self, specs: tuple[PodSpec, ...]) -> None:
        change = self._fleet.apply(specs, self._clock.monotonic_s())
        self._scraper.follow(change)
        self._metrics.discovery_empty.child(self._config.pods.file or "static").set(not specs)
        self._log.info("pods", listed=len(specs), added=change.added, removed=change.removed, updated=change.updated)
        if not specs:
            self._log.warning("no pod is listed", source=self._config.pods.file)
        self._closing_idle = self._tasks.spawn(
            self._upstreams.keep_only(frozenset(spec.url for spec in specs)), name="close idle connections"
        )

    def _scraped(self, seen: Observed) -> None:
        self._metrics.scrapes.child(seen.pod, "failed" if seen.error else "ok").inc()
        self._metrics.scrape_s.one.observe(seen.took_s)
        if seen.restarted:
            self._log.warning("engine restarted", pod=seen.pod)
        if seen.error:
            self._log.debug("scrape failed", pod=seen.pod, detail=seen.error)

    def _news(self) -> None:
        """Pods have been heard from: waiters may have a place now, and routers want to know of big changes."""
        for pool in self._fleet.pools.values():
            self._door.freed(pool)
        ready = sum(pod.state is PodState.READY for pod in self._fleet.pods())
        if ready != self._ready_pods:
            self._log.info("ready pods", ready=ready, listed=len(self._fleet.pods()))
            self._ready_pods = ready
            if self._beats is not None:
                self._beats.beat_now()

    def _ticked(self, late_s: float) -> None:
        if late_s > STALL_S:
            self._metrics.loop_stalls.one.inc()
            self._log.warning("the event loop stood still", late_s=round(late_s, 3))

    def _directed(self, router: str, directives: tuple[Directive, ...]) -> None:
        """A router has changed its mind. That is shown and goes no further: others may want what one does not."""
        drains = [one.reason for one in directives if isinstance(one, Drain)]
        self._metrics.drain_asked.child(router).set(bool(drains))
        unwanted = self._beats is not None and self._beats.unwanted
        self._log.info("directives", router=router, directives=[repr(one) for one in directives], unwanted=unwanted)

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._metrics.task_failures.child(name.partition(" ")[0]).inc()
        self._log.error("task failed", task=name, exc_info=error)

    # Views.

    def _warnings(self) -> list[str]:
        found = self._fleet.warnings()
        if not self._fleet.pods():
            found.append("pods_empty")
        if self._watch is not None and self._watch.error is not None:
            found.append("pods_file_refused")
        return found

    def _readiness(self) -> Readiness:
        reasons = []
        if self._proxy.draining:
            reasons.append("draining")
        if not any(pod.state is PodState.READY for pod in self._fleet.pods()):
            reasons.append("no ready pod" if self._fleet.pods() else "no pod is listed")
        return Readiness(not reasons, tuple(reasons))

    def _before_scrape(self) -> None:
        self._status.refresh_gauges()
        self._metrics.connections.one.set(self._server.connections_open)
        self._metrics.ready.one.set(self._readiness().ready)


def _credentials(tls: Any) -> grpc.ChannelCredentials:
    """TLS towards routers. Raises OSError when a file cannot be read."""
    read = [Path(path).read_bytes() if path is not None else None for path in (tls.ca, tls.key, tls.cert)]
    return grpc.ssl_channel_credentials(root_certificates=read[0], private_key=read[1], certificate_chain=read[2])


async def serve(config: AgentConfig, *, base: Path, log_stream: TextIO) -> bool:
    """Run one agent until SIGTERM or SIGINT: the first drains, the second ends at once.

    Whether every stream could finish.
    """
    asked, hurried = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurried if asked.is_set() else asked).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    agent = Agent(config, base=base, log_stream=log_stream)
    try:
        await agent.start()
        # What start-up made lives as long as the process: the collector need not walk it again and again.
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, 20, 100)
        await asked.wait()
        return await _unless(hurried, agent.drain())
    finally:
        await agent.close()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, bool]) -> bool:
    """Do `work`, but give it up (False) when `event` comes."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work)
        watching = group.create_task(event.wait())
        working.add_done_callback(lambda _: watching.cancel())
        watching.add_done_callback(lambda _: working.cancel())
    return not working.cancelled() and working.result()
