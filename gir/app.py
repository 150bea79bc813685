"""Composition root of the router: the only module that names adapters, and the order in which parts start and stop."""

import asyncio
import hashlib
import hmac
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from aiohttp import web
from prometheus_client.registry import CollectorRegistry

from gir.account.ledger import UsageLedger
from gir.account.recorder import Recorder
from gir.admin.canary import CanaryApi
from gir.admin.explain import ExplainApi
from gir.admin.fleet import FleetApi
from gir.admin.limits import LimitsApi
from gir.admin.orders import Company, Office
from gir.admin.usage import UsageApi
from gir.admit.limits import Limiter
from gir.admit.rules import check_rules
from gir.admit.waiting import WaitingRoom
from gir.auth.authenticator import Authenticator
from gir.bounds import server_limits
from gir.catalog import Catalog
from gir.clock import SystemClock
from gir.control.beats import BeatServer, BeatService, Terms, directives_for
from gir.control.config import RouterConfig
from gir.control.orders import OrderDesk
from gir.control.policies import Policies
from gir.control.prober import Prober
from gir.forward.budget import RetryBudget
from gir.forward.dispatch import Dispatcher
from gir.gauges import Gauges
from gir.health.registry import AGENTS_RETURN_S, Registry
from gir.lifecycle import Grace, Lifecycle
from gir.listening import admin_access, beat_credentials, listen, server_tls
from gir.model.ids import ClusterId
from gir.model.orders import Orders
from gir.model.policy import PolicySnapshot
from gir.net.pool import PoolLimits
from gir.net.server import HttpServer
from gir.net.tls import ClientTls
from gir.observers import Observers
from gir.pipeline import Pipeline, Stages
from gir.place.lacking import review
from gir.place.placer import Placer
from gir.place.rewrite import Rewriter
from gir.placement_gauges import PlacementGauges
from gir.pools import Pools
from gir.requesting import PolicyIndex
from gir.settings import host_and_port
from gir.stores.chosen import fleet_usage, limit_store, order_copy, order_store
from gir.tasks import TaskSet
from gir.telemetry.admin import AdminServer, Readiness, build_app
from gir.telemetry.logs import AccessLog, LogSink, capture_standard_logging, make_logger
from gir.telemetry.metrics import RouterMetrics
from gir.telemetry.tracing import make_tracing
from gir.watch import Watch
from gir.wire.beats import Directive, Welcome


class Router:
    """One router process: a full replica. `start`, then `run`; `port`, `admin_port` and `beat_port` say where."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        log_stream: TextIO,
        path: Path | None = None,
        state: Path | None = None,
        shared: Path | None = None,
        written: RouterConfig | None = None,
        rejected: str = "",
    ) -> None:
        """`shared`: directory of all workers, for want of a `state` that lasts. `written`: the file's own words."""
        self._config = config
        self._clock = clock = SystemClock()
        self._began_s = clock.monotonic_s()
        self._metrics = metrics = RouterMetrics(CollectorRegistry())
        self._sink = LogSink(log_stream, on_drop=metrics.logs_dropped.one.inc)
        telemetry = config.telemetry
        self._log = log = make_logger(
            self._sink, clock, component="gir", level=telemetry.log_level, log_format=telemetry.log_format
        )
        self._observers = Observers(metrics, log)
        self._tracing = make_tracing(
            telemetry.otlp_endpoint,
            service="gir",
            version=version("gir"),
            instance=config.name or config.listen,
            sample_share=telemetry.sample_share,
            on_drop=metrics.spans_dropped.one.inc,
        )
        self._tasks = TaskSet(self._observers.task_failed)
        self.lifecycle = Lifecycle(clock, self._tasks)
        self._policies = Policies(
            written or config, path, clock=clock, metrics=metrics, log=log, state=state, rejected=rejected
        )
        self._policies.on_change(self._adopt, self._review)
        self._tokens = config.tokens()
        self._build_decisions(config)
        self._build_data_path(config)
        self._build_orders(config, state, shared)
        self._build_control(config)

    def _build_decisions(self, config: RouterConfig) -> None:
        """What decides: pure cores and the state they keep."""
        clock, policy = self._clock, self._policies.current
        self._registry = Registry(policy, now_s=clock.monotonic_s(), jitter=clock.random.random)
        self._placer = Placer()
        self._rewriter = Rewriter()
        self._waiting = WaitingRoom(policy.flow, clock)
        self._ledger = UsageLedger(since_wall_s=clock.wall_s())
        self._fleet_usage = fleet_usage(config, self._ledger, clock, self._observers.usage_told)
        self._limiter = Limiter(
            policy.limits,
            limit_store(config.store, clock),
            clock=clock,
            replica=config.name or f"{config.listen}",
            region=config.region,
            replicas_min=config.store.replicas_min,
            observer=self._observers,
        )
        self._authenticator = Authenticator(
            config.auth, clock=clock, tasks=self._tasks, tenants=policy.tenants, observer=self._observers
        )

    def _build_data_path(self, config: RouterConfig) -> None:
        """What moves bytes."""
        clock, forward = self._clock, self._policies.current.forward
        tls = config.cluster_tls
        self._cluster_tls = ClientTls(ca=tls.ca, certificate=tls.cert, key=tls.key) if tls else None
        self._pools = Pools(
            clock,
            lambda: PoolLimits(connect_s=self._policies.current.forward.connect_s),
            lambda _: self._cluster_tls,
        )
        self._dispatcher = Dispatcher(
            clock, self._pools, RetryBudget(share=forward.retry_budget_share, minimum=forward.retry_budget_min)
        )
        access_log = AccessLog(self._sink) if config.telemetry.access_log else None
        catalog = Catalog()
        authorizations = {cluster: f"Bearer {token}".encode() for cluster, token in self._tokens.items()}
        self._stages = Stages(
            clock=clock,
            policies=self._policies,
            index=PolicyIndex(),
            authenticator=self._authenticator,
            rewriter=self._rewriter,
            limiter=self._limiter,
            waiting=self._waiting,
            ledger=self._ledger,
            placer=self._placer,
            registry=self._registry,
            dispatcher=self._dispatcher,
            telemetry=Recorder(self._metrics, clock, access_log),
            tracing=self._tracing,
            credential_for=lambda cluster: authorizations[ClusterId(cluster)],
            models_body=lambda who: catalog.body(self._registry.view, self._policies.current, who),
            model_card=lambda who, name: catalog.card(self._registry.view, self._policies.current, who, name),
            response_headers=config.telemetry.response_headers,
            awaited=self._awaited,
        )
        self._server = HttpServer(
            Pipeline(self._stages).handle,
            limits=server_limits(self._policies.current),
            clock=clock,
            origin="gir",
            tls=server_tls(config.tls),
            observer=self._observers,
        )

    def _build_orders(self, config: RouterConfig, state: Path | None, shared: Path | None) -> None:
        """What operators order at run time, and who hears of it."""
        self._desk = OrderDesk(
            order_store(config.store, state or shared),
            clock=self._clock,
            follow=self._heed,
            observer=self._observers,
            copy=order_copy(config.store, state),
        )
        company = Company(
            name=config.name or config.listen,
            workers=config.workers,
            routers=len(config.beats.peers),
            lasting=state is not None,
        )
        self._office = Office(self._desk, self._clock, company)

    def _build_control(self, config: RouterConfig) -> None:
        """What learns about the fleet, and what operators talk to."""
        clock, metrics, log = self._clock, self._metrics, self._log
        self._placement_gauges = PlacementGauges(metrics, log, self._placer, self._rewriter)
        self._canaries = CanaryApi(
            self._rewriter,
            self._desk,
            self._office,
            clock,
            router=config.name or config.listen,
            view=lambda: self._registry.view,
            policy=lambda: self._policies.current,
            on_event=self._placement_gauges.canary,
        )
        self._watch = Watch(
            clock=clock,
            registry=self._registry,
            dispatcher=self._dispatcher,
            waiting=self._waiting,
            trials=self._canaries.tick,
            pools=self._pools,
            metrics=metrics,
            log=log,
        )
        terms = Terms(
            cluster_of=self._cluster_of,
            welcome=self._welcome,
            directives=self._directives,
            on_change=self._watch.look,
        )
        self._beats = BeatServer(BeatService(self._registry, terms, clock=clock, metrics=metrics, log=log))
        self._prober = Prober(self._registry, clock=clock, tasks=self._tasks, tls=self._cluster_tls, metrics=metrics)
        self._gauges = Gauges(
            metrics,
            clock=clock,
            registry=self._registry,
            dispatcher=self._dispatcher,
            waiting=self._waiting,
            limiter=self._limiter,
            pools=self._pools,
            server=self._server,
            policy=lambda: self._policies.current,
            ready=lambda: self.lifecycle.ready,
        )
        self._admin = AdminServer(self._admin_app(config), self._log)

    # Life

    async def start(self, *, reuse_port: bool = False) -> None:
        """Listen and begin. Raises OSError naming the address that is not to be had."""
        config = self._config
        capture_standard_logging(self._log)
        await self._desk.open()  # before the first request: a canary that was aborted stays so
        await self._server.start(*host_and_port(config.listen, "listen"), reuse_port=reuse_port)
        await listen("admin", self._admin.start, config.admin.listen)
        await self._beats.start(*host_and_port(config.beats.listen, "beats.listen"), beat_credentials(config.beats.tls))
        self._authenticator.start()
        self._waiting.start(self._tasks)
        self._limiter.start(self._tasks)
        if self._fleet_usage is not None:
            self._fleet_usage.start(self._tasks)
        for name, coroutine in (
            ("watch", self._watch.run()),
            ("prober", self._prober.run()),
            ("policies", self._policies.run()),
            ("orders", self._desk.run()),
        ):
            _ = self._tasks.spawn(coroutine, name=name)
        self.lifecycle.ready = True
        self._metrics.build.child(version("gir")).set(1)
        self._log.info("serving", port=self.port, admin_port=self.admin_port, beat_port=self.beat_port)
        if config.auth.insecure_no_auth:
            self._log.warning("authentication is off: everybody who reaches the port may use every model")

    @property
    def port(self) -> int:
        """Data port."""
        return self._server.port

    @property
    def admin_port(self) -> int:
        """Admin port."""
        return self._admin.port

    @property
    def beat_port(self) -> int:
        """Port for agents."""
        return self._beats.port

    async def run(self) -> bool:
        """Serve until asked to stop, then go down in order; True when every request finished by itself."""
        await self.lifecycle.until_stopped()
        self._log.info("stopping", exchanges=self._server.exchanges_open)
        drain = self._config.drain
        return await self.lifecycle.descend(
            Grace(listen_s=drain.listen_s, drain_s=drain.finish_s),
            stop_listening=self._server.stop_listening,
            drain=self._server.drain,
        )

    async def close(self) -> None:
        """End everything now."""
        self._waiting.close()
        await self._server.close()
        await self._beats.close()
        await self._prober.close()
        await self._limiter.close()
        await self._authenticator.close()
        await self._tasks.close()
        await self._desk.close()
        if self._fleet_usage is not None:
            await self._fleet_usage.close()
        await self._pools.close()
        await self._admin.close()
        self._log.info("stopped")
        await asyncio.to_thread(self._tracing.close)
        await asyncio.to_thread(self._sink.close)

    # Control

    def _review(self, policy: PolicySnapshot, before: PolicySnapshot) -> tuple[str, ...]:
        """What the fleet lacks for `policy`; raises FleetLacksError when that is certain and new."""
        view = self._registry.view
        heard = {state.id for state in view.clusters if state.beat_at_s is not None}
        return review(policy, before, view, [cluster for cluster in self._tokens if cluster not in heard])

    def _adopt(self, policy: PolicySnapshot) -> None:
        """Take over a new policy; a part that refuses leaves every part at the old one."""
        config = self._config
        shared = config.store.kind == "redis"
        check_rules(policy.limits, region=config.region, shared=shared, processes=config.workers)
        self._stages.adopt(policy, config.auth)
        self._server.limits = server_limits(policy)

    def _heed(self, orders: Orders) -> None:
        """Carry out what operators order."""
        now_s = self._clock.monotonic_s()
        self._registry.heed(orders.clusters, now_s)
        self._rewriter.heed(orders.canaries, now_s, self._clock.wall_s())
        self._limiter.heed({name: order.numbers for name, order in orders.limits.items()})

    def _cluster_of(self, presented: str) -> ClusterId | None:
        digest = hashlib.sha256(presented.encode()).digest()
        found = None
        for cluster, token in self._tokens.items():
            # Every token is compared, so that the time taken does not tell which one was close.
            if hmac.compare_digest(hashlib.sha256(token.encode()).digest(), digest):
                found = cluster
        return found

    def _welcome(self) -> Welcome:
        policy = self._policies.current
        return Welcome(
            interval_s=policy.health.beat_interval_s,
            peers=self._config.beats.peers,
            policy_version=policy.version,
            router=self._config.name or self._config.listen,
        )

    def _directives(self, cluster: ClusterId) -> tuple[Directive, ...]:
        return directives_for(self._registry.intent_of(cluster), self._config.name or self._config.listen)

    def _admin_app(self, config: RouterConfig) -> web.Application:
        app = build_app(
            registry=self._metrics.registry,
            readiness=self._readiness,
            access=admin_access(config.admin),
            on_error=lambda what, error: self._log.error("admin handler failed", what=what, exc_info=error),
            before_scrape=self._refresh_gauges,
        )
        office, clock, log, look = self._office, self._clock, self._log, self._watch.look
        app.on_response_prepare.append(office.sign)
        app.add_routes(office.routes())
        app.add_routes(FleetApi(self._registry, office, self._policies, config, clock, log, on_change=look).routes())
        app.add_routes(self._canaries.routes())
        app.add_routes(LimitsApi(self._limiter, office, clock, log).routes())
        app.add_routes(UsageApi(self._ledger, self._fleet_usage).routes())
        explain = ExplainApi(
            self._placer,
            self._rewriter,
            self._clock,
            view=lambda: self._registry.view,
            policy=lambda: self._policies.current,
            limits=self._limiter.explain,
        )
        app.add_routes(explain.routes())
        return app

    def _refresh_gauges(self) -> None:
        self._gauges.refresh()
        self._placement_gauges.refresh()

    def _readiness(self) -> Readiness:
        reasons = [] if self.lifecycle.ready else ["stopping"]
        if awaited := self._awaited():
            reasons.append(awaited)
        return Readiness(ready=not reasons, reasons=tuple(reasons))

    def _awaited(self) -> str:
        """What this router must hear before it may call a model unknown; empty when it has heard it."""
        clusters = self._registry.view.clusters
        if not any(state.pools for state in clusters):
            return "no cluster has reported yet"
        if self._clock.monotonic_s() - self._began_s >= AGENTS_RETURN_S:
            return ""
        missing = sorted(self._tokens.keys() - {state.id for state in clusters})
        return f"waiting for {', '.join(missing[:5])} to report" if missing else ""
