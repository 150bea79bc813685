"""A fleet in virtual time that tells a registry what its clusters would: beats, probes, sweeps at their intervals."""

from collections.abc import Iterable

from gir.health.events import EventKind, HealthEvent
from gir.health.registry import Registry
from gir.model.beat import AgentHello, BeatReport, Condition
from gir.model.cluster import ClusterState, PoolState
from gir.model.ids import ClusterId, ModelId, RegionId, TierName
from gir.model.outcome import Attempt, AttemptResult, Phase
from gir.model.policy import HealthPolicy, PolicySnapshot

STEP_S = 0.25


def pool(model: str = "llama", slots: int = 8) -> PoolState:
    return PoolState(model=ModelId(model), pods_ready=1, slots_total=slots, slots_free=slots)


class Cluster:
    """What one cluster does now; change the attributes to break it."""

    def __init__(self, name: str, models: tuple[str, ...], offset_s: float) -> None:
        self.id = ClusterId(name)
        self.models = models
        self.beating = True
        self.probe = "ok"
        """`ok`, `miss` or `refuse`."""
        self.condition = Condition.SERVING
        self.epoch = 1
        self.seq = 0
        self.offset_s = offset_s
        self.beat_due_s = 0.0
        self.probe_due_s = 0.0

    def hello(self) -> AgentHello:
        return AgentHello(
            cluster=self.id,
            region=RegionId("eu"),
            url=f"http://{self.id}.example",
            tier=TierName("reserved"),
            epoch=self.epoch,
        )

    def report(self) -> BeatReport:
        self.seq += 1
        pools = tuple(pool(model) for model in self.models)
        return BeatReport(cluster=self.id, epoch=self.epoch, seq=self.seq, pools=pools, condition=self.condition)


class Fleet:
    """Registry plus clusters. `run(s)` lets virtual time pass."""

    def __init__(self, *names: str, health: HealthPolicy | None = None, models: tuple[str, ...] = ("llama",)) -> None:
        self.health = health or HealthPolicy()
        self.now_s = 1_000.0
        self.registry = Registry(PolicySnapshot(health=self.health), now_s=self.now_s, jitter=lambda: 0.5)
        self.clusters: dict[str, Cluster] = {}
        self.events: list[HealthEvent] = []
        self.weights: dict[str, list[tuple[float, float]]] = {}
        for name in names:
            self.join(name, models=models)

    def join(self, name: str, *, models: tuple[str, ...] = ("llama",)) -> Cluster:
        """A cluster nobody has heard of says hello."""
        cluster = Cluster(name, models, offset_s=0.1 * len(self.clusters))
        self.clusters[name] = cluster
        self.registry.hello(cluster.hello(), self.now_s)
        cluster.beat_due_s = cluster.probe_due_s = self.now_s
        return cluster

    def restart(self, name: str) -> None:
        """A new agent process opens its stream."""
        cluster = self.clusters[name]
        cluster.epoch, cluster.seq, cluster.beating, cluster.probe = cluster.epoch + 1, 0, True, "ok"
        self.registry.hello(cluster.hello(), self.now_s)
        cluster.beat_due_s = self.now_s

    def crash(self, name: str) -> None:
        """The agent process dies: its stream breaks and its port refuses."""
        cluster = self.clusters[name]
        cluster.beating, cluster.probe = False, "refuse"
        self.registry.stream_lost(cluster.id, cluster.epoch, self.now_s)

    def freeze(self, *names: str) -> None:
        for name in names:
            self.clusters[name].beating, self.clusters[name].probe = False, "miss"

    def thaw(self, *names: str) -> None:
        for name in names:
            self.clusters[name].beating, self.clusters[name].probe = True, "ok"

    def run(self, duration_s: float) -> None:
        """Let time pass in quarter seconds."""
        for _ in range(round(duration_s / STEP_S)):
            self.now_s += STEP_S
            for cluster in self.clusters.values():
                self._speak(cluster)
            self.registry.reconcile(self.now_s)
            self._watch()

    def pause(self, duration_s: float) -> None:
        """The router process is stopped: nothing reaches the registry."""
        self.now_s += duration_s

    def attempts(self, name: str, result: AttemptResult, count: int = 1, retry_after_s: float | None = None) -> None:
        """`count` attempts start and end now with `result`."""
        for _ in range(count):
            self.registry.attempt(
                Attempt(
                    cluster=ClusterId(name),
                    result=result,
                    phase=Phase.DISPATCHED,
                    started_s=self.now_s,
                    ended_s=self.now_s,
                    retry_after_s=retry_after_s,
                ),
                self.now_s,
            )
        self._watch()

    def state(self, name: str) -> ClusterState:
        return next(state for state in self.registry.view.clusters if state.id == name)

    def line(self) -> str:
        return repr(self.registry)

    def statuses(self, name: str) -> list[str]:
        """The statuses it went through since the fleet was made."""
        self._watch()
        return [event.after for event in self.events if event.cluster == name and event.kind is EventKind.STATUS]

    def kinds(self) -> Iterable[EventKind]:
        self._watch()
        return [event.kind for event in self.events]

    def _speak(self, cluster: Cluster) -> None:
        if self.now_s >= cluster.beat_due_s + cluster.offset_s:
            cluster.beat_due_s = self.now_s + self.health.beat_interval_s - cluster.offset_s
            if cluster.beating:
                self.registry.beat(cluster.report(), self.now_s)
        if self.now_s >= cluster.probe_due_s and self.health.probe:
            cluster.probe_due_s = self.now_s + self.health.probe_interval_s
            ok, refused = cluster.probe == "ok", cluster.probe == "refuse"
            self.registry.probe(cluster.id, ok, 0.01 if ok else None, self.now_s, refused=refused)

    def _watch(self) -> None:
        self.events += self.registry.take_events()
        for state in self.registry.view.clusters:
            self.weights.setdefault(state.id, []).append((self.now_s, state.weight))
