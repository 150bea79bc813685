"""A router without its control plane: the real pipeline on a real port, its registry fed by hand."""

import hashlib
from collections.abc import Sequence
from typing import Any

from prometheus_client.registry import CollectorRegistry

from gir.account.ledger import UsageLedger
from gir.account.recorder import Recorder
from gir.admit.limits import Limiter
from gir.admit.waiting import WaitingRoom
from gir.auth.authenticator import Authenticator
from gir.auth.settings import ApiKey, AuthSettings
from gir.catalog import Catalog
from gir.clock import SystemClock
from gir.forward.budget import RetryBudget
from gir.forward.dispatch import Dispatcher
from gir.health.registry import Registry
from gir.model.beat import AgentHello, BeatReport
from gir.model.cluster import PoolState
from gir.model.errors import ErrorKind
from gir.model.ids import ClusterId, ModelId, RegionId, TenantId, TierName
from gir.model.policy import PolicySnapshot, TierPolicy
from gir.net.limits import ServerLimits
from gir.net.message import RequestHead
from gir.net.pool import PoolLimits
from gir.net.server import HttpServer
from gir.pipeline import Pipeline, Stages
from gir.place.placer import Placer
from gir.place.rewrite import Rewriter
from gir.pools import Pools
from gir.requesting import PolicyIndex
from gir.scope import Scope
from gir.stores.memory import MemoryStore
from gir.tasks import TaskSet
from gir.telemetry.metrics import RouterMetrics
from gir.telemetry.tracing import TracingOff
from tests.support.upstream import FakeCluster

API_KEY = "test-key-0123456789abcdef"
PLAIN_KEY = "plain-key-0123456789abcdef"
"""Of a tenant that is not trusted."""
MODEL = ModelId("llama")


class Policies:
    """A policy source a test can set."""

    def __init__(self, policy: PolicySnapshot) -> None:
        self.current = policy


class SpyRecorder(Recorder):
    """Keeps every ended scope, so that a test can look at outcomes and attempts."""

    ended: list[Scope]

    def request(self, scope: Any, bytes_sent: int) -> None:
        self.ended.append(scope)
        super().request(scope, bytes_sent)


class _LoudObserver:
    """A handler that fails is a bug: remember it so that the test fails."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []

    def refused(self, kind: ErrorKind) -> None:
        """Not interesting here."""

    def handler_failed(self, head: RequestHead, error: BaseException) -> None:
        self.failures.append(error)


class TestRouter:
    """Start with `await TestRouter(clusters).start()`; close in a finally."""

    __test__ = False

    def __init__(self, clusters: Sequence[FakeCluster], policy: PolicySnapshot | None = None) -> None:
        self.clock = SystemClock(seed=7)
        self.policies = Policies(policy or PolicySnapshot(tiers=(TierPolicy(name="reserved", price_per_slot_hour=1),)))
        self.metrics = RouterMetrics(CollectorRegistry())
        self.recorder = SpyRecorder(self.metrics, self.clock, None)
        self.recorder.ended = []
        self.observer = _LoudObserver()
        self.registry = Registry(self.policies.current, now_s=self.clock.monotonic_s(), jitter=self.clock.random.random)
        self.pools = Pools(self.clock, PoolLimits, lambda _: None)
        forward = self.policies.current.forward
        self.dispatcher = Dispatcher(
            self.clock, self.pools, RetryBudget(share=forward.retry_budget_share, minimum=forward.retry_budget_min)
        )
        self.placer = Placer()
        self.rewriter = Rewriter()
        self.tasks = TaskSet(lambda name, error: self.observer.failures.append(error))
        self.limiter = Limiter(self.policies.current.limits, MemoryStore(self.clock), clock=self.clock)
        self.waiting = WaitingRoom(self.policies.current.flow, self.clock)
        self.ledger = UsageLedger(since_wall_s=self.clock.wall_s())
        self.clusters = clusters
        self.awaited = ""
        """What the router says it must hear before it may call a model unknown."""
        self._seq = 0
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """Base URL of the data port."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def port(self) -> int:
        """Data port."""
        assert self._server is not None
        return self._server.port

    async def start(self) -> "TestRouter":
        """Introduce the clusters and listen."""
        for cluster in self.clusters:
            self.introduce(cluster)
        catalog = Catalog()
        stages = Stages(
            clock=self.clock,
            policies=self.policies,
            index=PolicyIndex(),
            limiter=self.limiter,
            waiting=self.waiting,
            ledger=self.ledger,
            authenticator=self._authenticator(),
            rewriter=self.rewriter,
            placer=self.placer,
            registry=self.registry,
            dispatcher=self.dispatcher,
            telemetry=self.recorder,
            tracing=TracingOff(),
            credential_for=lambda cluster: f"Bearer data-{cluster}".encode(),
            models_body=lambda principal: catalog.body(self.registry.view, self.policies.current, principal),
            model_card=lambda who, name: catalog.card(self.registry.view, self.policies.current, who, name),
            awaited=lambda: self.awaited,
        )
        self._server = HttpServer(
            Pipeline(stages).handle,
            limits=ServerLimits(body_bytes_max=1_000_000),
            clock=self.clock,
            origin="gir",
            observer=self.observer,
        )
        self.waiting.start(self.tasks)
        self.limiter.start(self.tasks)
        await self._server.start("127.0.0.1", 0)
        return self

    def introduce(self, cluster: FakeCluster, *, tier: str = "reserved", slots: int = 8) -> None:
        """Hello and first beat of a cluster serving `MODEL`."""
        now_s = self.clock.monotonic_s()
        name = ClusterId(cluster.name)
        self.registry.hello(
            AgentHello(cluster=name, region=RegionId("eu"), url=cluster.url, tier=TierName(tier), epoch=1), now_s
        )
        self.beat(cluster, slots=slots)

    def beat(self, cluster: FakeCluster, *, slots: int = 8, waiting: int = 0) -> None:
        """One more beat."""
        self._seq += 1
        pool = PoolState(model=MODEL, pods_ready=1, slots_total=slots, slots_free=slots, running=0, waiting=waiting)
        self.registry.beat(
            BeatReport(cluster=ClusterId(cluster.name), epoch=1, seq=self._seq, pools=(pool,)),
            self.clock.monotonic_s(),
        )

    async def close(self) -> None:
        """Stop everything; fail if a handler raised."""
        assert self._server is not None
        await self._server.close()
        await self.tasks.close()
        await self.pools.close()
        assert not self.observer.failures, self.observer.failures

    def _authenticator(self) -> Authenticator:
        key = ApiKey(
            id="test", key_sha256=hashlib.sha256(API_KEY.encode()).hexdigest(), tenant=TenantId("team"), trusted=True
        )
        plain = ApiKey(id="plain", key_sha256=hashlib.sha256(PLAIN_KEY.encode()).hexdigest(), tenant=TenantId("plain"))
        failures = TaskSet(lambda name, error: None)
        return Authenticator(AuthSettings(api_keys=(key, plain)), clock=self.clock, tasks=failures)
