"""One simulated router: the real stages, put together as the composition root does, on simulated connections."""

import functools
import hashlib
import random
import traceback
from collections.abc import Callable, Collection
from typing import Any, cast

from prometheus_client.registry import CollectorRegistry

from chaos.sim.beats import BEATS_PORT, BeatPort
from chaos.sim.cluster import DATA_PORT, SimCluster
from chaos.sim.loop import Node, SimClock, SimLoop
from chaos.sim.network import Network
from chaos.sim.serving import Sent
from chaos.sim.watchers import SLACK_S, Observed, SeenBudget, SeenPlacer, SeenRegistry, SeenScopes
from gir.account.ledger import UsageLedger
from gir.admit.limits import Limiter
from gir.admit.ports import LimitStore
from gir.admit.waiting import WaitingRoom
from gir.auth.authenticator import Authenticator
from gir.auth.settings import ApiKey, AuthSettings
from gir.forward.dispatch import Dispatcher
from gir.health.ladder import rungs
from gir.model.cluster import ClusterStatus
from gir.model.errors import ErrorKind
from gir.model.ids import ClusterId, TenantId
from gir.model.policy import PolicySnapshot
from gir.model.request import InferenceRequest
from gir.net.connection import ServerConnection
from gir.net.limits import ServerLimits
from gir.net.message import RequestHead
from gir.net.pool import PoolLimits
from gir.net.server import HttpServer
from gir.pipeline import Pipeline, Stages
from gir.place.rewrite import Rewriter
from gir.pools import Pools
from gir.requesting import PolicyIndex
from gir.scope import Scope
from gir.stores.memory import MemoryStore
from gir.tasks import TaskSet
from gir.telemetry.metrics import RouterMetrics
from gir.telemetry.tracing import TracingOff
from gir.watch import Watch

CLIENT_PORT = 8080
LIMITS = ServerLimits(body_bytes_max=1_000_000)


@functools.cache
def _metrics() -> RouterMetrics:
    """One for all routers of all runs: nobody reads it here, and making it costs more than a run."""
    return RouterMetrics(CollectorRegistry())


class _Mute:
    """A logger that says nothing."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


def where_of(error: BaseException) -> str:
    """Last place of a failure, `file:line`."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename.rpartition('/')[2]}:{last.lineno}"


class SimServer(HttpServer):
    """The HTTP server without its listening sockets."""

    def adopt(self, peer: str) -> ServerConnection:
        """A connection that the simulated network has accepted."""
        connection = ServerConnection(self, peer)
        self._connections.add(connection)
        self._per_peer[peer] = self._per_peer.get(peer, 0) + 1
        return connection


class Observer:
    """Handlers must not fail."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def refused(self, kind: ErrorKind) -> None:
        """A client sent something unusable."""

    def handler_failed(self, head: RequestHead, error: BaseException) -> None:
        """A bug."""
        self._loop.failures.append(f"handler of {head.path} failed: {error!r} at {where_of(error)}")


def key_of(tenant: str) -> str:
    """A tenant's API key."""
    return f"key-of-{tenant}-0123456789"


class Policies:
    """The policy in force: never an older one."""

    def __init__(self, policy: PolicySnapshot) -> None:
        self.current = policy


class SimRouter:
    """A router across the lives of its process."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        network: Network,
        chance: random.Random,
        policy: PolicySnapshot,
        clusters: dict[str, SimCluster],
        observed: Observed,
        store: Callable[[SimClock], LimitStore] = MemoryStore,
    ) -> None:
        self.name = name
        self.loop = loop
        self.network = network
        self.clock = SimClock(loop, chance)
        self.policies = Policies(policy)
        self.lives = 0
        self.born_s = loop.time()
        self.unpaused_s = float("-inf")
        self._clusters = clusters
        self._observed = observed
        self._store = store
        self.boot()

    def __repr__(self) -> str:
        return f"<SimRouter {self.name} {self.node!r} {self.registry!r}>"

    def boot(self) -> None:
        """A new process."""
        self.lives += 1
        self.born_s = self.loop.time()
        self.node = Node(self.loop, self.name)
        self.node.context.run(self._build)
        self.network.listen(self.name, BEATS_PORT, self.node, lambda: BeatPort(self))
        self.network.listen(self.name, CLIENT_PORT, self.node, lambda: self.server.adopt("client"))
        self.node.later(0.0, self._look)
        self.node.later(self.clock.random.random() * 0.5, self._ask_all)

    def _build(self) -> None:
        policy, clock, loop = self.policies.current, self.clock, self.loop
        failed = lambda name, error: loop.failures.append(f"task {name}: {error!r}")  # noqa: E731
        self.tasks = TaskSet(failed)
        self.registry = SeenRegistry(policy, now_s=clock.monotonic_s(), jitter=clock.random.random)
        self.registry.observed, self.registry.router = self._observed, self
        self.registry.closed_s, self.registry.suspected_s = float("-inf"), {}
        self.registry.risen_s = {}
        self.registry.unreachable_s = {}
        self.placer = SeenPlacer()
        self.placer.observed, self.placer.router = self._observed, self
        self.pools = Pools(clock, lambda: PoolLimits(connect_s=policy.forward.connect_s), lambda _: None)
        forward = policy.forward
        self.budget = SeenBudget(share=forward.retry_budget_share, minimum=forward.retry_budget_min)
        self.budget.now_s = clock.monotonic_s
        self.dispatcher = Dispatcher(clock, self.pools, self.budget)
        self.store = self._store(clock)
        self.limiter = Limiter(policy.limits, self.store, clock=clock, replica=f"{self.name}#{self.lives}")
        self.waiting = WaitingRoom(policy.flow, clock)
        self.ledger = UsageLedger(since_wall_s=clock.wall_s())
        self.scopes = SeenScopes(self, self._observed)
        rewriter = Rewriter()
        self.stages = Stages(
            clock=clock,
            policies=self.policies,
            index=PolicyIndex(),
            limiter=self.limiter,
            waiting=self.waiting,
            ledger=self.ledger,
            authenticator=Authenticator(_keys(policy), clock=clock, tasks=self.tasks, tenants=policy.tenants),
            rewriter=rewriter,
            placer=self.placer,
            registry=self.registry,
            dispatcher=self.dispatcher,
            telemetry=self.scopes,
            tracing=TracingOff(),
            credential_for=lambda cluster: f"Bearer data-{cluster}".encode(),
            models_body=lambda _: b"{}",
            model_card=lambda _, _name: None,
        )
        self.server = SimServer(
            Pipeline(self.stages).handle, limits=LIMITS, clock=clock, origin="gir", observer=Observer(loop)
        )
        self.watch = Watch(
            clock=clock,
            registry=self.registry,
            dispatcher=self.dispatcher,
            waiting=self.waiting,
            trials=lambda: None,
            pools=self.pools,
            metrics=_metrics(),
            log=cast("Any", _Mute()),
        )
        self.waiting.start(self.tasks)
        if not isinstance(self.store, MemoryStore):
            self.limiter.start(self.tasks)

    # Lives

    def crash(self) -> None:
        """SIGKILL."""
        if self.node.alive:
            self.node.kill()
            self.network.died(self.node)
            self.scopes.forget()

    def restart(self) -> None:
        """A new process in place of a dead one."""
        if not self.node.alive:
            self.boot()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.node.running:
            self.node.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.node.paused:
            self.unpaused_s = self.loop.time()
            self.node.resume()

    def apply(self, policy: PolicySnapshot) -> None:
        """Take over a newer policy; an older one is ignored."""
        if policy.version <= self.policies.current.version:
            return
        self.policies.current = policy
        self.stages.adopt(policy, _keys(policy))

    # What watchers ask

    def cluster(self, name: str) -> SimCluster:
        """A cluster as it really is."""
        return self._clusters[name]

    def frozen_too_long_s(self, cluster: str, now_s: float) -> float:
        """By how much a cluster has been frozen for longer than it takes the probes to see it; negative if not."""
        frozen_s = self._clusters[cluster].frozen_since_s
        since_s = max(self.born_s, self.unpaused_s, self.registry.closed_s)
        if frozen_s is None or self.registry.fail_open or since_s > frozen_s:
            return -1.0
        return now_s - frozen_s - rungs(self.registry.policy)[0][1] - SLACK_S

    def silent_too_long_s(self, cluster: str, now_s: float) -> float:
        """By how much streams from a frozen cluster should have been ended by now; negative if not."""
        frozen_s = self._clusters[cluster].frozen_since_s
        known_s = self.registry.unreachable_s.get(ClusterId(cluster))
        if frozen_s is None or known_s is None:
            return -1.0
        since_s = max(self.born_s, self.unpaused_s, frozen_s, known_s)
        policy = self.policies.current
        return now_s - since_s - policy.forward.lost_idle_s - 2.0 * policy.health.sweep_interval_s - 2.0 * SLACK_S

    def others_serve(self, request: InferenceRequest, tried: Collection[str], for_s: float = 0.0) -> bool:
        """Somebody not yet tried, in good health, could take the request and may, and could so `for_s` ago."""
        policy, then_s = self.policies.current, self.loop.time() - for_s
        risen_s = self.registry.risen_s
        principal = request.principal
        kept_in = [set(tenant.regions) for tenant in policy.tenants if tenant.id == principal.tenant and tenant.regions]
        if principal.regions_allowed is not None:
            kept_in.append(set(principal.regions_allowed))
        drained = {entry.id for entry in policy.clusters if entry.intent != "serve"}
        good = (ClusterStatus.HEALTHY, ClusterStatus.RAMPING)
        return any(
            state.id not in tried
            and state.id not in drained
            and state.status in good
            and state.weight > 0
            and not state.probation
            and max(state.backoff_until_s, state.refusing.get(request.model, 0.0)) <= then_s
            and risen_s.get(state.id, 0.0) <= then_s
            and request.model in state.pools
            and state.pools[request.model].slots_total > 0
            and all(state.region in regions for regions in kept_in)
            for state in self.registry.view.clusters
        )

    def sent(self, scope: Scope) -> Sent | None:
        """What the pod of a request's last attempt sent."""
        if not scope.attempts:
            return None
        log = self._clusters[scope.attempts[-1].cluster].log.get(scope.request_id)
        return log[-1] if log else None

    # What a router does while nobody asks it anything

    def look_if_needed(self) -> None:
        """After a beat: at once when it changed anything, or somebody waits for room."""
        if self.registry._events or self.waiting.flow.waiting:
            self.watch.look()

    def _look(self) -> None:
        self.watch.look()
        self.node.later(self.registry.policy.sweep_interval_s, self._look)

    def _ask_all(self) -> None:
        """One round of probes; the answers are told together when the last has come."""
        policy = self.registry.policy
        self.node.later(policy.probe_interval_s, self._ask_all)
        if not policy.probe:
            return
        now_s = self.loop.time()
        good: list[tuple[str, float]] = []
        bad: list[tuple[str, bool]] = []
        slowest_s = 0.0
        for state in self.registry.view.clusters:
            cluster = self._clusters[state.id]
            node = cluster.node
            rtt_s = self.network.round_trip_s(self.name, state.id, DATA_PORT)
            if rtt_s is None or rtt_s > policy.probe_timeout_s or node.paused or node.silent:
                bad.append((state.id, False))
            elif not node.alive or not cluster.able:
                bad.append((state.id, not node.alive))
            else:
                good.append((state.id, rtt_s))
                slowest_s = max(slowest_s, rtt_s)
        if good:
            self.node.later(slowest_s, self._answered, good, now_s)
        if bad:
            self.node.later(policy.probe_timeout_s, self._missed, bad, now_s)

    def _answered(self, good: list[tuple[Any, float]], asked_s: float) -> None:
        now_s = self.loop.time()
        in_time = now_s - asked_s <= self.registry.policy.probe_timeout_s
        for cluster, rtt_s in good:
            self.registry.probe(cluster, in_time, rtt_s if in_time else None, now_s, started_s=asked_s)

    def _missed(self, bad: list[tuple[Any, bool]], asked_s: float) -> None:
        for cluster, refused in bad:
            self.registry.probe(cluster, False, None, self.loop.time(), refused=refused, started_s=asked_s)
        self.watch.look()


@functools.cache
def _settings(tenants: tuple[str, ...]) -> AuthSettings:
    keys = tuple(
        ApiKey(
            id=tenant,
            key_sha256=hashlib.sha256(key_of(tenant).encode()).hexdigest(),
            tenant=TenantId(tenant),
            trusted=True,
        )
        for tenant in tenants
    )
    return AuthSettings(api_keys=keys)


def _keys(policy: PolicySnapshot) -> AuthSettings:
    return _settings(tuple(tenant.id for tenant in policy.tenants))
