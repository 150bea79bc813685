"""What is looked at from time to time, and at the end: bounds (I10), leaks (I2) and recovery."""

from typing import TYPE_CHECKING

from gir.health.ladder import worst_case
from gir.model.cluster import ClusterStatus

if TYPE_CHECKING:
    from chaos.sim.router import SimRouter
    from chaos.sim.world import World


GOOD = (ClusterStatus.HEALTHY, ClusterStatus.RAMPING)


def audit(world: "World") -> list[str]:
    """I10 and sanity of every gauge, at any time."""
    found = []
    for router in world.routers:
        if not router.node.running:
            continue
        flow, policy = router.waiting.flow, router.policies.current
        gauges = {
            "waiting": flow.waiting,
            "in flight": flow.in_flight,
            "open accounts": router.ledger.open_accounts,
            "exchanges": router.server.exchanges_open,
            "retries": router.budget.retrying,
        }
        found += [f"I2: {router.name}: {name} is {value}" for name, value in gauges.items() if value < 0]
        if flow.waiting > policy.flow.queue_max:
            found.append(f"I10: {router.name}: {flow.waiting} wait, queue_max is {policy.flow.queue_max}")
        if len(router.placer.tried) > router.server.exchanges_open:
            found.append(f"I1: {router.name}: requests that never ended: {sorted(router.placer.tried)[:3]}")
        found += _unnoticed(world, router)
    for cluster in world.clusters.values():
        for pool in cluster.fleet.pools.values():
            waiting = cluster.gate(pool).waiting
            if waiting > cluster.spec.queue_max:
                found.append(f"I10: {cluster.spec.name}: {waiting} wait at the gate")
    return found


def _unnoticed(world: "World", router: "SimRouter") -> list[str]:
    """A frozen cluster that a router still thinks well of, long after its slowest signal must have spoken."""
    bound_s = worst_case(router.registry.policy)[0] + 1.0
    found = []
    for state in router.registry.view.clusters:
        frozen_s = world.clusters[state.id].frozen_since_s
        since_s = max(router.born_s, router.unpaused_s, router.registry.closed_s, frozen_s or 0.0)
        late_s = world.loop.time() - since_s - bound_s
        if frozen_s is not None and late_s > 0 and state.status in GOOD and not router.registry.fail_open:
            found.append(f"ladder: {router.name} calls {state.id} {state.status.value}, frozen {late_s:.1f}s too long")
    return found


def leaks(world: "World") -> list[str]:
    """I2: when nothing runs any more, nothing is held."""
    found = []
    for router in world.routers:
        found += [f"{router.name} holds {name}: {value}" for name, value in _held(router).items() if value]
    for cluster in world.clusters.values():
        for pool in cluster.fleet.pools.values():
            held = sum(pod.in_flight for pod in pool.pods) + cluster.gate(pool).waiting + cluster.gate(pool).reserved
            if held:
                found.append(f"{cluster.spec.name} holds {held} requests of {pool.model}")
        if cluster.servings or any(pod.busy for pod in cluster.pods.values()):
            found.append(f"{cluster.spec.name} still serves {len(cluster.servings)}")
    return found


def _held(router: "SimRouter") -> dict[str, float]:
    return {
        "exchanges": router.server.exchanges_open,
        "tickets": router.waiting.flow.in_flight,
        "accounts": router.ledger.open_accounts,
        "retries": router.budget.retrying,
        "active requests": router.budget.active,
        "upstream connections": sum(pool.active for _, pool in router.pools.items()),
        "dispatches": sum(ledger.open for ledger in router.placer.loads._ledgers.values()),
        "reservations": len(router.limiter._open),
    }


def unwell(world: "World") -> list[str]:
    """Liveness: all is mended long ago, so every cluster has its whole share and every late request an answer."""
    found = []
    for router in world.routers:
        view = router.registry.view
        if len(view.clusters) != len(world.clusters):
            found.append(f"{router.name} knows {len(view.clusters)} of {len(world.clusters)} clusters")
        found += [
            f"{router.name}: {state.id} is {state.status.value} w={state.weight} {state.reason}"
            for state in view.clusters
            if state.status is not ClusterStatus.HEALTHY or state.weight < 1.0
        ]
    assert world.crowd is not None, "nobody lived here"
    for told in world.crowd.told:
        steady = told.ask.at_s >= world.plan.heal_s + 30.0 and told.ask.at_s < world.plan.recovered_s - 25.0
        if steady and (told.broke or told.status not in (200, 429)):
            found.append(f"a request at {told.ask.at_s:.1f}s ended with {told.status}, broke={told.broke}")
    return found
