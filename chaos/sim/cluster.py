"""One simulated cluster: the agent's pure parts (fleet, picker, gate, capacity report) over simulated pods."""

import random
from collections.abc import Callable

import msgspec

from chaos.sim.loop import Node, SimClock, SimLoop
from chaos.sim.network import Network
from chaos.sim.pods import Ill, SimPod
from chaos.sim.serving import AgentConnection, Sent, Serving
from gir.model.beat import AgentHello, BeatReport
from gir.model.ids import ClusterId, ModelId, RegionId, TierName
from tier1_agent.capacity import Demand, Recent, report
from tier1_agent.fleet import Fleet
from tier1_agent.gate import Gate, GateSettings
from tier1_agent.pods import Pod, PodState
from tier1_agent.pool import Pool, PoolSettings
from tier1_agent.scorers import PRESETS

DATA_PORT = 80
SCRAPE_S = 0.25
GRACE_S = 30.0
SETTLED_S = 2.0
"""After so long without a request the numbers of a beat no longer change."""


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster is, whatever happens to it."""

    name: str
    region: str
    tier: str
    models: tuple[str, ...]
    pods: int
    slots: int
    pace: float
    """Times as slow as the measured GPU."""
    cap: int | None = None
    """Gate: requests in one pod at once."""
    queue_max: int = 8


class SimCluster:
    """A cluster across the lives of its agent."""

    def __init__(self, spec: ClusterSpec, loop: SimLoop, network: Network, chance: random.Random) -> None:
        self.spec = spec
        self.network = network
        self.chance = chance
        self.clock = SimClock(loop, chance)
        self.loop = loop
        self.log: dict[str, list[Sent]] = {}
        """What was sent for each request, by its id; every attempt of it."""
        self.on_boot: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None
        self.frozen_since_s: float | None = None
        self.troubled_until_s = float("-inf")
        """End of the last fault that may be held against the cluster."""
        self.lives = 0
        self._boot()

    def __repr__(self) -> str:
        return f"<SimCluster {self.spec.name} {self.node!r} {self.fleet!r}>"

    def _boot(self) -> None:
        """A new process: nothing is left of the one before but its name."""
        spec = self.spec
        self.lives += 1
        self.node = Node(self.loop, spec.name)
        self.epoch = int(self.clock.wall_s() * 1_000)
        self.seq = 0
        self.draining = self.hung = False
        self.servings: dict[Serving, None] = {}
        settings = PoolSettings(weights=PRESETS["weighted"], concurrent_max_per_pod=spec.cap)
        self.fleet = Fleet(settings)
        self.pods = {
            pod.spec.id: pod
            for model in spec.models
            for number in range(spec.pods)
            for pod in [
                SimPod(f"{spec.name}-{model}-{number}", model, slots=spec.slots, pace=spec.pace, node=self.node)
            ]
        }
        self.fleet.apply([pod.spec for pod in self.pods.values()], self.loop.time())
        self._gates: dict[ModelId, Gate] = {}
        self._recent: dict[ModelId, Recent] = {}
        self._scraped_s = float("-inf")
        self._touched_s = self.loop.time()
        self._told: tuple[float, BeatReport] | None = None
        self.network.listen(spec.name, DATA_PORT, self.node, lambda: AgentConnection(self))

    # Lives

    def crash(self, *, silent: bool = False) -> None:
        """SIGKILL; with `silent` the whole host goes."""
        if self.node.alive:
            self.node.kill(silent=silent)
            self.network.died(self.node)
            self.frozen_since_s = None

    def restart(self) -> None:
        """A new process in place of a dead one."""
        if not self.node.alive:
            self._boot()
            self.on_boot()

    def stop(self) -> None:
        """SIGTERM: say goodbye, finish what runs, end."""
        if self.node.running and not self.draining:
            self.draining = True
            self.on_stop()
            self.node.later(0.5, self._end_when_done, self.loop.time() + GRACE_S)

    def _end_when_done(self, until_s: float) -> None:
        if self.servings and self.loop.time() < until_s:
            self.node.later(0.5, self._end_when_done, until_s)
        else:
            self.crash()

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.node.running:
            self.node.pause()
            self.frozen_since_s = self.loop.time()

    def thaw(self) -> None:
        """SIGCONT."""
        if self.node.paused:
            self.frozen_since_s = None
            self.node.resume()

    @property
    def untroubled_s(self) -> float:
        """For how long nothing has been wrong with it or the ways to it; negative while something is."""
        return self.loop.time() - self.troubled_until_s

    # What beats say

    def hello(self) -> AgentHello:
        """Who speaks."""
        spec = self.spec
        return AgentHello(
            cluster=ClusterId(spec.name),
            region=RegionId(spec.region),
            url=f"http://{spec.name}:{DATA_PORT}",
            tier=TierName(spec.tier),
            epoch=self.epoch,
        )

    def beat(self) -> BeatReport:
        """State of the cluster now."""
        self.seq += 1
        now_s = self.loop.time()
        known = self._told
        if known is not None and not self.servings and known[0] > self._touched_s + SETTLED_S:
            return msgspec.structs.replace(known[1], epoch=self.epoch, seq=self.seq)
        self.scrape()
        full = report(
            self.fleet,
            self._demand,
            cluster=ClusterId(self.spec.name),
            epoch=self.epoch,
            seq=self.seq,
            draining=self.draining,
            warnings=(),
            now_s=now_s,
        )
        self._told = (now_s, full) if all(map(_steady, self.fleet.pods())) else None
        return full

    def _demand(self, pool: Pool) -> Demand:
        gate = self._gates.get(pool.model)
        return Demand(recent=self.recent(pool.model), waiting=gate.waiting if gate else 0)

    # What serving asks

    def touch(self) -> None:
        """Something changed that a beat should tell."""
        self._touched_s = self.loop.time()

    def gate(self, pool: Pool) -> Gate:
        """The gate before `pool`."""
        gate = self._gates.get(pool.model)
        if gate is None:
            gate = self._gates[pool.model] = Gate(GateSettings(queue_max=self.spec.queue_max, wait_max_s=10.0))
        return gate

    def recent(self, model: ModelId) -> Recent:
        """Outcomes of the last minute."""
        return self._recent.setdefault(model, Recent())

    def scrape(self) -> None:
        """Read every pod, unless that was done a moment ago."""
        now_s = self.loop.time()
        if now_s - self._scraped_s < SCRAPE_S:
            return
        self._scraped_s = now_s
        for id_, pod in self.pods.items():
            signals = pod.signals()
            if signals is None:
                self.fleet.missed(id_, now_s)
            else:
                self.fleet.scraped(id_, signals, now_s)
        self.fleet.tick(now_s)

    @property
    def able(self) -> bool:
        """What a probe over the data path would be told."""
        return not self.draining and not self.hung

    # Faults of pods

    def infect(self, ill: Ill | None) -> None:
        """Make every pod answer badly, or well again."""
        for pod in self.pods.values():
            pod.ill = ill
        self.touch()

    def hang(self, *, hung: bool) -> None:
        """All engines stand still, while the agent lives."""
        self.hung = hung
        for pod in self.pods.values():
            pod.hang(hung=hung)
        self.touch()

    def slow(self, factor: float) -> None:
        """Stretch every engine's steps."""
        for pod in self.pods.values():
            pod.slow(factor)

    def restart_pods(self) -> None:
        """Every engine dies and comes back empty; what ran there breaks."""
        for pod in self.pods.values():
            pod.restart()
        for serving in list(self.servings):
            serving.broken()
        self.touch()

    def hang_up(self) -> None:
        """Close every connection on which nothing is being answered: the keep-alive race."""
        for side in [side for side in self.network.sides if side.node is self.node and side.port == DATA_PORT]:
            if isinstance(side.protocol, AgentConnection) and side.protocol.idle:
                side.close()


def _steady(pod: Pod) -> bool:
    """Time alone will change nothing about it."""
    return pod.state is PodState.READY and pod.ramp_from_s is None
