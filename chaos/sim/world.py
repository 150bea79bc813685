"""A fleet made from a plan, and its life: at first anything may fail and nothing wrong may happen, then all is well."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from chaos.sim.audit import audit, leaks, unwell
from chaos.sim.beats import BeatLink
from chaos.sim.client import Crowd
from chaos.sim.cluster import GRACE_S, SimCluster
from chaos.sim.faults import BLAMELESS, EVERYWHERE, KINDS, Undo
from chaos.sim.loop import SimClock, SimLoop
from chaos.sim.network import Network
from chaos.sim.plan import START_S, Fault, Plan
from chaos.sim.router import SimRouter
from chaos.sim.watchers import Observed
from gir.admit.ports import Census, Claim, LimitStore, Replies, StoreError, Take
from gir.model.ids import ClusterId
from gir.model.policy import ClusterPolicy
from gir.stores.memory import MemoryStore

AUDIT_S = 5.0
DRAIN_S = 5.0
"""After the last deadline, until nothing may be held any more."""


class SharedStore:
    """A shared store behind a network: it takes its time, or does not answer."""

    def __init__(self, world: "World", clock: SimClock) -> None:
        self._world = world
        self._clock = clock

    async def connect(self) -> None:
        """Nothing to prepare."""

    async def exchange(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        await self._travel()
        return self._world.counters.exchange_now(takes, claims)

    async def census(self, replica: str, ttl_s: float, absent_s: float) -> Census:
        await self._travel()
        return await self._world.counters.census(replica, ttl_s, absent_s)

    async def close(self) -> None:
        """Nothing is held."""

    async def _travel(self) -> None:
        if not self._world.store_up:
            await self._clock.sleep_s(0.05)
            raise StoreError("no answer")
        await self._clock.sleep_s(0.001)


class World:
    """Everything in one run. `live` takes it from the first hello to the last audit."""

    def __init__(self, plan: Plan, *, skew: bool = True) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed ^ 0x5EED)
        self.loop = SimLoop(start_s=START_S)
        self.observed = Observed(self.loop.time)
        self.network = Network(self.loop, random.Random(plan.seed ^ 0x0E7), self._delay_s)
        self.clusters: dict[str, SimCluster] = {}
        self.routers: list[SimRouter] = []
        self.store_up = True
        self.counters = MemoryStore(SimClock(self.loop, self.chance))
        self._policy = plan.policy
        self._skew = skew
        self._undos: list[Undo] = []
        self._delays: dict[tuple[str, str], float] = {}
        self.crowd: Crowd | None = None

    def __repr__(self) -> str:
        return f"<World seed {self.plan.seed} {self.loop!r} {len(self.observed.failed)} failed>"

    def live(self) -> None:
        """The whole run. Findings are in `observed.failed`."""
        plan = self.plan
        self.loop.call_soon(self._begin)
        self.loop.run_until(plan.heal_s)
        self.loop.call_soon(self._heal)
        self.loop.run_until(plan.recovered_s)
        self.observed.failed += [f"liveness: {detail}" for detail in unwell(self)]
        self.loop.run_until(plan.recovered_s + plan.policy.forward.total_s + DRAIN_S)
        self.observed.failed += [f"I2: {detail}" for detail in leaks(self)]
        self.observed.failed += [f"loop: {failure}" for failure in self.loop.failures]

    def at(self, when_s: float, callback: Callable[..., object], *args: object) -> None:
        """Have something done to the world."""
        self.loop.call_at(when_s, callback, *args)

    # Making it

    def _begin(self) -> None:
        plan, seed = self.plan, self.plan.seed
        for number, spec in enumerate(plan.clusters):
            cluster = SimCluster(spec, self.loop, self.network, random.Random(seed * 1_000 + number))
            self.clusters[spec.name] = cluster
            cluster.on_boot = lambda cluster=cluster: self._introduce(cluster)  # type: ignore[misc]
        for number in range(plan.routers):
            router = SimRouter(
                f"router-{number}",
                self.loop,
                self.network,
                random.Random(seed * 1_000 + 500 + number),
                plan.policy,
                self.clusters,
                self.observed,
                self._store,
            )
            self.routers.append(router)
        for cluster in self.clusters.values():
            self._introduce(cluster)
        if plan.core >= 0:
            self.observed.core = plan.clusters[plan.core].name
        self._announce_limits()
        self.crowd = Crowd(self.loop, self.network, self.routers, self.clusters, self.observed)
        for ask in plan.asks:
            self.crowd.plan(ask)
        for fault in plan.faults:
            if fault.kind != "skew" or self._skew:
                self.at(fault.at_s, self._strike, fault)
        self.at(START_S + AUDIT_S, self._audit)

    def _announce_limits(self) -> None:
        """What I8 allows. Without a shared store, or while it is away, every life of every router has counters of its
        own; and Critical requests are not refused for its absence."""
        kinds = [fault.kind for fault in self.plan.faults]
        lives = self.plan.routers * (1 + kinds.count("crash_router"))
        if not self.plan.shared_store:
            self.observed.overshoot = float(lives)
        elif "store_down" in kinds:
            self.observed.overshoot = 1.0 + lives
        for rule in self.plan.policy.limits:
            self.observed.limits = {tenant.id: rule.requests_per_min or 0 for tenant in self.plan.policy.tenants}

    def _store(self, clock: SimClock) -> LimitStore:
        return SharedStore(self, clock) if self.plan.shared_store else MemoryStore(clock)

    def _introduce(self, cluster: SimCluster) -> None:
        """A new agent process reaches out to every router."""
        links = [BeatLink(cluster, router.name) for router in self.routers]

        def say_goodbye() -> None:
            for link in links:
                link.say_goodbye()

        cluster.on_stop = say_goodbye

    def _delay_s(self, source: str, target: str) -> float:
        """Of light, more or less: stable for each pair, the same both ways."""
        pair = (min(source, target), max(source, target))
        if "clients" in pair:
            return 0.001
        if pair not in self._delays:
            self._delays[pair] = self.chance.choice((0.001, 0.01, 0.04, 0.08))
        return self._delays[pair]

    # What happens to it

    def _strike(self, fault: Fault) -> None:
        if fault.kind != "skew":
            self.observed.note("fault", fault.kind, fault.target, fault.other, fault.illness)
        self._blame(fault)
        undo = KINDS[fault.kind](self, fault)
        self._undos.append(undo)
        self.at(self.loop.time() + fault.lasts_s, self._relieve, undo)

    def _blame(self, fault: Fault) -> None:
        """Remember whom the fault befalls, and until when."""
        until_s = self.loop.time() + fault.lasts_s + (GRACE_S if fault.kind == "stop" else 0.0)
        if fault.kind in BLAMELESS:
            return
        name = self.plan.clusters[fault.target].name
        for cluster in self.clusters.values():
            if cluster.spec.name == name or fault.kind in EVERYWHERE:
                cluster.troubled_until_s = max(cluster.troubled_until_s, until_s)

    def _relieve(self, undo: Undo) -> None:
        if undo in self._undos:
            self._undos.remove(undo)
            undo()

    def _heal(self) -> None:
        """Mend everything."""
        self.observed.note("heal")
        for link in self.network.links():
            self.network.mend(link)
        undos, self._undos = self._undos, []
        for undo in undos:
            undo()
        for cluster in self.clusters.values():
            cluster.thaw()
            cluster.restart()
            cluster.infect(None)
            cluster.hang(hung=False)
            cluster.slow(1.0)
        for router in self.routers:
            router.resume()
            router.restart()
        self.store_up = True
        self.push_policy(drained=None)

    def push_policy(self, *, drained: str | None) -> None:
        """A new version of the policy reaches each router in its own time, perhaps after the next one."""
        entries = (ClusterPolicy(id=ClusterId(drained), intent="drain"),) if drained else ()
        self._policy = msgspec.structs.replace(self._policy, version=self._policy.version + 1, clusters=entries)
        for router in self.routers:
            router.node.later(self.chance.uniform(0.0, 3.0), router.apply, self._policy)

    def _audit(self) -> None:
        self.observed.failed += audit(self)
        self.at(self.loop.time() + AUDIT_S, self._audit)


def drop_pending(world: World) -> None:
    """Let go of coroutines that will never end, quietly: their processes were killed or the run is over."""
    for task in asyncio.all_tasks(cast("asyncio.AbstractEventLoop", world.loop)):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
