"""What each fault does to a world, and how it is undone. One function for each kind, found by its name in `KINDS`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from chaos.sim.beats import BEATS_PORT
from chaos.sim.cluster import DATA_PORT, SimCluster
from chaos.sim.network import Link
from chaos.sim.plan import Fault
from chaos.sim.pods import Ill

if TYPE_CHECKING:
    from chaos.sim.world import World

Undo = Callable[[], object]
Deed = Callable[["World", Fault], Undo]
PORTS = (DATA_PORT, BEATS_PORT)


def _cluster(world: "World", fault: Fault) -> SimCluster:
    return world.clusters[world.plan.clusters[fault.target].name]


def _links(world: "World", fault: Fault, *, there: bool, back: bool, ports: tuple[int, ...] = PORTS) -> list[Link]:
    """Links between the fault's cluster and the routers it means."""
    routers = world.routers if fault.other < 0 else [world.routers[fault.other]]
    name = _cluster(world, fault).spec.name
    links = []
    for router in routers:
        for port in ports:
            links += [world.network.link(router.name, name, port)] if there else []
            links += [world.network.link(name, router.name, port)] if back else []
    return links


def _cut(world: "World", links: list[Link]) -> Undo:
    for link in links:
        link.cut = True
    return _mending(world, links)


def _mending(world: "World", links: list[Link]) -> Undo:

    def mend() -> None:
        for link in links:
            world.network.mend(link)

    return mend


def _nothing() -> None:
    """There is nothing to undo."""


def crash(world: "World", fault: Fault) -> Undo:
    """SIGKILL of the agent; a new one starts at the end."""
    cluster = _cluster(world, fault)
    cluster.crash()
    return cluster.restart


def power(world: "World", fault: Fault) -> Undo:
    """The host goes without a word."""
    cluster = _cluster(world, fault)
    cluster.crash(silent=True)
    return cluster.restart


def stop(world: "World", fault: Fault) -> Undo:
    """SIGTERM; the agent ends when its work has, and a new one starts."""
    cluster = _cluster(world, fault)
    cluster.stop()

    def again() -> None:
        cluster.crash()
        cluster.restart()

    return again


def freeze(world: "World", fault: Fault) -> Undo:
    """SIGSTOP of agent and engines."""
    cluster = _cluster(world, fault)
    cluster.freeze()
    return cluster.thaw


def region(world: "World", fault: Fault) -> Undo:
    """Every cluster of a Region but the untouched one dies at once."""
    place = _cluster(world, fault).spec.region
    lost = [
        cluster
        for number, spec in enumerate(world.plan.clusters)
        if spec.region == place and number != world.plan.core
        for cluster in [world.clusters[spec.name]]
    ]
    for cluster in lost:
        cluster.crash(silent=fault.after > 1)

    def restart() -> None:
        for cluster in lost:
            cluster.restart()

    return restart


def cut_both(world: "World", fault: Fault) -> Undo:
    """A partition."""
    return _cut(world, _links(world, fault, there=True, back=True))


def cut_there(world: "World", fault: Fault) -> Undo:
    """Routers are not heard."""
    return _cut(world, _links(world, fault, there=True, back=False))


def cut_back(world: "World", fault: Fault) -> Undo:
    """The cluster is not heard."""
    return _cut(world, _links(world, fault, there=False, back=True))


def cut_beats(world: "World", fault: Fault) -> Undo:
    """Only beats are lost."""
    return _cut(world, _links(world, fault, there=True, back=True, ports=(BEATS_PORT,)))


def cut_data(world: "World", fault: Fault) -> Undo:
    """Beats arrive, requests do not."""
    return _cut(world, _links(world, fault, there=True, back=True, ports=(DATA_PORT,)))


def clog(world: "World", fault: Fault) -> Undo:
    """Nothing arrives for a while, then all of it."""
    for link in _links(world, fault, there=True, back=True):
        link.clogged_until_s = world.loop.time() + fault.lasts_s
    return _nothing


def swizzle(world: "World", fault: Fault) -> Undo:
    """Clog a random subset of clusters one by one, unclog them in another order."""
    numbers = [number for number in range(len(world.plan.clusters)) if number != world.plan.core]
    chosen = world.chance.sample(numbers, world.chance.randint(1, len(numbers)))
    now_s = world.loop.time()
    ends = sorted(now_s + world.chance.uniform(0.5, 1.0) * fault.lasts_s for _ in chosen)
    world.chance.shuffle(ends)
    for place, (number, until_s) in enumerate(zip(chosen, ends, strict=True)):
        name = world.plan.clusters[number].name
        world.at(now_s + place * fault.lasts_s / (4.0 * len(chosen)), _clog_all, world, name, until_s)
    return _nothing


def _clog_all(world: "World", name: str, until_s: float) -> None:
    for router in world.routers:
        for port in PORTS:
            world.network.link(router.name, name, port).clogged_until_s = until_s
            world.network.link(name, router.name, port).clogged_until_s = until_s


def lossy(world: "World", fault: Fault) -> Undo:
    """Packets are lost both ways."""
    links = _links(world, fault, there=True, back=True)
    for link in links:
        link.loss = 0.3
    return _mending(world, links)


def noise(world: "World", fault: Fault) -> Undo:
    """Beats are seen twice, and late."""
    links = _links(world, fault, there=False, back=True, ports=(BEATS_PORT,))
    for link in links:
        link.noise = 0.5
    return _mending(world, links)


def all_beats(world: "World", _: Fault) -> Undo:
    """Every beat to every router is lost, while the data paths work."""
    links = [
        world.network.link(*way, BEATS_PORT)
        for router in world.routers
        for name in world.clusters
        for way in ((router.name, name), (name, router.name))
    ]
    return _cut(world, links)


def pause_router(world: "World", fault: Fault) -> Undo:
    """SIGSTOP of a router."""
    router = world.routers[max(0, fault.other)]
    router.pause()
    return router.resume


def crash_router(world: "World", fault: Fault) -> Undo:
    """SIGKILL of a router."""
    router = world.routers[max(0, fault.other)]
    router.crash()
    return router.restart


def restart_pods(world: "World", fault: Fault) -> Undo:
    """Engines die and come back empty."""
    _cluster(world, fault).restart_pods()
    return _nothing


def hang_pods(world: "World", fault: Fault) -> Undo:
    """Engines stand still; their agent lives."""
    cluster = _cluster(world, fault)
    cluster.hang(hung=True)
    return lambda: cluster.hang(hung=False)


def slow_pods(world: "World", fault: Fault) -> Undo:
    """Engines take ten times as long."""
    cluster = _cluster(world, fault)
    cluster.slow(10.0)
    return lambda: cluster.slow(1.0)


def ill(world: "World", fault: Fault) -> Undo:
    """Pods answer badly: errors, lies and cut streams."""
    cluster = _cluster(world, fault)
    cluster.infect(Ill(fault.illness, fault.after))
    return lambda: cluster.infect(None)


def hang_up(world: "World", fault: Fault) -> Undo:
    """The agent closes its idle connections."""
    _cluster(world, fault).hang_up()
    return _nothing


def skew(world: "World", fault: Fault) -> Undo:
    """Wall clocks step by minutes, one way or the other."""
    step_s = 600.0 if fault.after > 1 else -600.0
    _cluster(world, fault).clock.skew_s += step_s
    world.routers[max(0, fault.other)].clock.skew_s -= step_s
    return _nothing


def store_down(world: "World", _: Fault) -> Undo:
    """The shared store does not answer."""
    world.store_up = False

    def up() -> None:
        world.store_up = True

    return up


def policy(world: "World", fault: Fault) -> Undo:
    """An operator drains a cluster by a new policy, and takes that back by another."""
    world.push_policy(drained=_cluster(world, fault).spec.name)
    return lambda: world.push_policy(drained=None)


BLAMELESS = frozenset({"noise", "skew", "store_down", "policy", "hang_up", "pause_router", "crash_router", "ill"})
"""Faults for which no cluster may be accused of silence."""
EVERYWHERE = frozenset({"all_beats", "swizzle", "region"})
"""Faults that befall more than their target."""

KINDS: dict[str, Deed] = {
    deed.__name__: deed
    for deed in (
        crash, power, stop, freeze, region, cut_both, cut_there, cut_back, cut_beats, cut_data, clog, swizzle, lossy,
        noise, all_beats, pause_router, crash_router, restart_pods, hang_pods, slow_pods, ill, hang_up, skew,
        store_down, policy,
    )
}  # fmt: skip
