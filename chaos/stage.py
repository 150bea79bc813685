"""What a drill's fault may touch while it runs, and the undo of everything it does."""

import asyncio
import functools
from collections.abc import Mapping, Sequence

import msgspec

from chaos.backing import RedisServers
from chaos.engine.faults import Fault
from chaos.evidence import Facts
from chaos.faults.process import ProcessFaults
from chaos.faults.tcp import TcpProxy, Toxic
from chaos.faults.undo import Undo
from chaos.fleet import Fleet, call
from chaos.issuer import Issuer
from chaos.members import Cluster
from gir.clock import Clock

EXPERIMENT_MODEL = "llama-70b"
CANARY_MODEL = "llama-70b-next"
CONTROL_MODEL = "control-70b"
STORE_START_S = 10.0


class Stage:
    """One run's fleet, victims and moments."""

    def __init__(self, fleet: Fleet, facts: Facts, clock: Clock, undo: Undo) -> None:
        self.fleet = fleet
        self.facts = facts
        self.clock = clock
        self._undo = undo
        self.signals = ProcessFaults(undo, self._hit)
        self.signals.allow(self.victim_pids)
        self.signals.allow(self.router_pids)
        self.signals.allow(self.store_pids)

    @property
    def victims(self) -> list[Cluster]:
        """The clusters under fault."""
        return [self.fleet.cluster(name) for name in self.facts.victims]

    @property
    def victim_pids(self) -> list[int]:
        """Every process of the victims."""
        return [pid for cluster in self.victims for pid in cluster.pids]

    @property
    def agent_pids(self) -> list[int]:
        """The victims' agents."""
        return [cluster.agent.pid for cluster in self.victims if cluster.agent is not None]

    @property
    def router_pids(self) -> list[int]:
        """Every router."""
        return [pid for router in self.fleet.routers for pid in router.pids]

    @property
    def store(self) -> RedisServers:
        """The store of the limits."""
        assert self.fleet.store is not None, "the drill has no store to hurt"
        return self.fleet.store

    @property
    def store_pids(self) -> list[int]:
        """The store's primary."""
        store = self.fleet.store
        return [store.primary.pid] if store is not None and store.primary is not None else []

    @property
    def store_proxies(self) -> list[TcpProxy]:
        """Proxies between each router and the store, in order of the routers."""
        return [router.store_proxy for router in self.fleet.routers if router.store_proxy is not None]

    @property
    def issuer(self) -> Issuer:
        """The issuer of the tokens."""
        assert self.fleet.issuer is not None, "the drill has no issuer to hurt"
        return self.fleet.issuer

    @property
    def victim_pods(self) -> list[dict[str, str]]:
        """The victims' engines."""
        return [pod for cluster in self.victims for pod in cluster.pods]

    @property
    def experiment_pods(self) -> list[dict[str, str]]:
        """Every engine but the control group's."""
        return [p for c in self.fleet.clusters.values() if c.shape.model == EXPERIMENT_MODEL for p in c.pods]

    @property
    def canary_pods(self) -> list[dict[str, str]]:
        """The victims' engines of the new version."""
        return [pod for pod in self.victim_pods if pod["model"] == CANARY_MODEL]

    @property
    def data_proxies(self) -> list[TcpProxy]:
        """Proxies between the routers and the victims' data ports."""
        return [cluster.data_proxy for cluster in self.victims if cluster.data_proxy is not None]

    @property
    def beat_proxies(self) -> list[TcpProxy]:
        """Proxies between the victims' agents and the routers' beat ports."""
        return [proxy for cluster in self.victims for proxy in cluster.beat_proxies]

    def _hit(self, name: str, count: int) -> None:
        """Remember what a fault really touched."""
        self.facts.hits[name] = self.facts.hits.get(name, 0) + count

    def measured(self, name: str, value: float) -> None:
        """Remember a figure that the drill took itself; of several by one name the largest stands."""
        self.facts.figures[name] = max(value, self.facts.figures.get(name, value))

    def mark(self, name: str) -> None:
        """Remember this moment."""
        self.facts.marks[name] = self.clock.monotonic_s()

    async def pause(self, duration_s: float) -> None:
        """Wait, scaled."""
        await self.clock.sleep_s(duration_s * self.facts.scale)

    def start_victims(self) -> None:
        """Start again whatever of the victims has ended, and declare it a target."""
        for cluster in self.victims:
            self.fleet.start_cluster(cluster.name)
        self.signals.allow(self.victim_pids)

    async def start_store(self) -> None:
        """Start the store's primary again, empty, and declare it a target."""
        self.store.start_primary(STORE_START_S)
        self.signals.allow(self.store_pids)

    def start_routers(self) -> None:
        """Start every router that has ended, and declare it a target."""
        self.fleet.start_routers()
        self.facts.router_ended = True
        self.signals.allow(self.router_pids)

    async def order(self, fault: Fault, pods: Sequence[dict[str, str]]) -> None:
        """Install a fault on engines. RuntimeError when one refuses it, or when there is none."""
        if not pods:
            raise RuntimeError("the fault aims at no engine at all")
        body = msgspec.json.encode(fault)
        for pod in pods:
            url = f"{pod['url']}/debug/faults"
            self._undo.register(f"faults of {pod['name']}", functools.partial(call, "DELETE", url))
            status, answer = await asyncio.to_thread(call, "POST", url, "", body)
            if status != 200:
                raise RuntimeError(f"{pod['name']} refused the fault: {status} {answer.decode(errors='replace')}")

    async def relieve(self, pods: Sequence[dict[str, str]]) -> None:
        """Remove every fault from engines."""
        for pod in pods:
            status, rows = await asyncio.to_thread(call, "GET", f"{pod['url']}/debug/faults")
            if status == 200:
                for row in msgspec.json.decode(rows):
                    self._hit(row["name"], row["hits"])
            await asyncio.to_thread(self._undo.mend, f"faults of {pod['name']}")

    async def poison(self, toxic: Toxic, proxies: Sequence[TcpProxy]) -> None:
        """Install a toxic on connections. RuntimeError when there are none to install it on."""
        host = self.fleet.proxies
        if not proxies or host is None:
            raise RuntimeError("the fault aims at no connection at all: is the drill `proxied`?")
        for proxy in proxies:
            self._undo.register(f"{toxic.name} on {proxy.port}", functools.partial(host.remove, proxy, toxic.name))
            await asyncio.to_thread(host.add, proxy, toxic)

    async def cure(self, name: str, proxies: Sequence[TcpProxy]) -> None:
        """Take a toxic away."""
        for proxy in proxies:
            await asyncio.to_thread(self._undo.mend, f"{name} on {proxy.port}")
            self._hit(name, proxy.hits.get(name, 0))

    def set_clocks(self, wrong_by_s: Mapping[str, float]) -> None:
        """Step the wall clocks of processes, by their names. RuntimeError when they cannot be set."""
        clocks = self.fleet.wall_clocks
        if not clocks:
            raise RuntimeError("the fault aims at no clock at all: are the drill's `clocks_adjustable`?")
        for name, offset_s in wrong_by_s.items():
            clock = clocks[name]
            self._undo.register(f"clock of {name}", functools.partial(clock.set_wrong_by, 0.0))
            clock.set_wrong_by(offset_s)

    def set_clocks_right(self) -> None:
        """Set every wall clock right again."""
        for name, clock in self.fleet.wall_clocks.items():
            self._undo.mend(f"clock of {name}")
            self._hit(f"clock of {name}", clock.told)
