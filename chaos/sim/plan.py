"""What a seed stands for: a fleet, its settings, its traffic and what will go wrong. All chance of a run begins here.

A swarm, not one average storm: each seed enables a random subset of the faults and draws every knob within its legal
bounds, so that some runs are nothing but frozen clusters and others nothing but lies.
"""

import random

import msgspec

from chaos.sim.client import Ask
from chaos.sim.cluster import ClusterSpec
from chaos.sim.pods import ILLNESSES
from gir.health.ladder import check_ladder
from gir.model.ids import TenantId
from gir.model.policy import (
    FlowPolicy,
    ForwardPolicy,
    HealthPolicy,
    LimitRule,
    PlacementPolicy,
    PolicySnapshot,
    TenantPolicy,
    TierPolicy,
)

START_S = 1_000.0
WARM_S = 12.0
"""Before the first fault: agents find routers, clusters serve."""
REGIONS = ("eu", "us", "ap")
TIERS = ("reserved", "on_demand", "spot")
MODELS = ("llama", "qwen")
TENANTS = ("gold", "plain", "cheap", "local")
"""Critical, Standard, Sheddable, and one that must not leave its Region."""

FAULTS = (
    "crash",
    "power",
    "stop",
    "freeze",
    "cut_both",
    "cut_there",
    "cut_back",
    "cut_beats",
    "cut_data",
    "clog",
    "lossy",
    "noise",
    "swizzle",
    "region",
    "pause_router",
    "crash_router",
    "all_beats",
    "restart_pods",
    "hang_pods",
    "slow_pods",
    "ill",
    "hang_up",
    "skew",
    "store_down",
    "policy",
)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: what, where, when and for how long."""

    kind: str
    at_s: float
    lasts_s: float
    target: int = 0
    """Index of the cluster or router it befalls."""
    other: int = 0
    """Index of the router whose links are meant; -1 means all."""
    illness: str = ""
    after: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    seed: int
    routers: int
    clusters: tuple[ClusterSpec, ...]
    policy: PolicySnapshot
    faults: tuple[Fault, ...]
    asks: tuple[Ask, ...]
    safety_s: float
    """Length of the part in which anything may fail."""
    shared_store: bool
    core: int
    """Index of the cluster that no fault touches; -1 if all may be touched."""

    @property
    def heal_s(self) -> float:
        """When everything is mended."""
        return START_S + WARM_S + self.safety_s

    @property
    def recovered_s(self) -> float:
        """By then every cluster must have its whole share back: the settings say how long that may take."""
        health = self.policy.health
        back_s = 10.0 + 4.0 * health.beat_interval_s + health.recover_probes * health.probe_interval_s
        return self.heal_s + back_s + health.holddown_max_s + 2.4 * health.ejection_max_s + 2.0 * health.ramp_s + 15.0


def plan_of(seed: int, *, clusters: int | None = None, faults: frozenset[str] | None = None) -> Plan:
    """Unfold a seed. `clusters` and `faults` narrow what it may draw."""
    chance = random.Random(seed)
    count = clusters or chance.choice((2, 3, 3, 4, 5, 6, 8, 10))
    policy = _policy(chance)
    safety_s = chance.uniform(300.0, 600.0)
    core = chance.randrange(count) if chance.random() < 0.7 else -1
    specs = tuple(_cluster(chance, number, core=number == core) for number in range(count))
    # Every router hears every cluster: several routers are for small fleets, or a run would cost too much.
    routers = chance.choices((1, 2, 3), (6, 3, 1) if count <= 5 else (12, 1, 0))[0]
    enabled = _swarm(chance, faults)
    chosen = _faults(chance, enabled, specs, routers, safety_s, core)
    plan = Plan(
        seed=seed,
        routers=routers,
        clusters=specs,
        policy=policy,
        faults=chosen,
        asks=(),
        safety_s=safety_s,
        shared_store=bool(policy.limits) and chance.random() < 0.5,
        core=core,
    )
    return msgspec.structs.replace(plan, asks=_traffic(chance, plan))


def _swarm(chance: random.Random, only: frozenset[str] | None) -> list[str]:
    if only is not None:
        return sorted(only)
    share = chance.choice((0.1, 0.2, 0.4))
    enabled = [kind for kind in FAULTS if chance.random() < share]
    return enabled or [chance.choice(FAULTS)]


def _policy(chance: random.Random) -> PolicySnapshot:
    interval_s = chance.choice((2.0, 4.0, 5.0, chance.uniform(1.0, 5.0)))
    suspect_s = max(6.0, 2.2 * interval_s + chance.uniform(0.5, 3.0))
    health = HealthPolicy(
        beat_interval_s=interval_s,
        suspect_after_s=suspect_s,
        dead_after_s=suspect_s + chance.uniform(3.0, 10.0),
        probe_misses=chance.choice((2, 3, 3)),
        probe_interval_s=chance.choice((1.0, 1.0, 2.0, 3.0)),
        sweep_interval_s=chance.choice((0.5, 0.5, 1.0)),
        breaker_consecutive=chance.choice((3, 3, 5)),
        ejection_s=chance.uniform(2.0, 10.0),
        ejection_max_s=chance.uniform(10.0, 20.0),
        ramp_s=chance.uniform(5.0, 30.0),
        ramp_floor=chance.uniform(0.05, 0.2),
        ramp_aggression=chance.choice((1.0, 1.0, 0.7, 1.5)),
        holddown_s=chance.uniform(0.5, 2.0),
        holddown_max_s=chance.uniform(4.0, 12.0),
    )
    check_ladder(health)
    forward = ForwardPolicy(
        head_s=chance.uniform(10.0, 20.0),
        first_token_s=chance.uniform(10.0, 20.0),
        idle_s=chance.uniform(8.0, 15.0),
        total_s=chance.uniform(30.0, 60.0),
    )
    flow = FlowPolicy(queue_max=chance.choice((2, 8, 50)), wait_max_s=chance.uniform(2.0, 15.0))
    limits: tuple[LimitRule, ...] = ()
    if chance.random() < 0.25:
        limits = (LimitRule(name="per-tenant", per=("tenant",), requests_per_min=chance.choice((3, 6, 20))),)
    tiers = tuple(TierPolicy(name=name, price_per_slot_hour=1.0 + place) for place, name in enumerate(TIERS))
    tenants = (
        TenantPolicy(id=TenantId("gold"), criticality_default="critical"),
        TenantPolicy(id=TenantId("plain")),
        TenantPolicy(id=TenantId("cheap"), criticality_default="sheddable"),
        TenantPolicy(id=TenantId("local"), regions=("eu",)),
    )
    return PolicySnapshot(
        version=1, tiers=tiers, tenants=tenants, health=health, forward=forward, flow=flow, limits=limits,
        placement=PlacementPolicy(),
    )  # fmt: skip


def _cluster(chance: random.Random, number: int, *, core: bool) -> ClusterSpec:
    region = REGIONS[number % len(REGIONS)]
    models = MODELS if core or chance.random() < 0.6 else (chance.choice(MODELS),)
    return ClusterSpec(
        name=f"{region}-{number}",
        region=region,
        tier=TIERS[-1] if core else chance.choice(TIERS),
        models=models,
        pods=1 if core else chance.choice((1, 1, 2)),
        slots=32 if core else chance.choice((1, 2, 8)),
        pace=chance.choice((1.0, 2.0, 5.0, 15.0)),
        cap=None if core else chance.choice((None, None, 2)),
    )


def _faults(
    chance: random.Random, enabled: list[str], specs: tuple[ClusterSpec, ...], routers: int, safety_s: float, core: int
) -> tuple[Fault, ...]:
    """Trouble, most of it where the traffic goes: the cheapest tier is filled first."""
    start_s = START_S + WARM_S
    touchable = [number for number in range(len(specs)) if number != core]
    weights = [
        8 if specs[number].tier == "reserved" else 3 if specs[number].tier == "on_demand" else 1 for number in touchable
    ]
    faults = []
    for _ in range(chance.randint(2, 3 + int(safety_s / 90.0))):
        kind = chance.choice(enabled)
        at_s = start_s + chance.uniform(0.0, safety_s - 20.0)
        lasts_s = chance.choice((chance.uniform(0.5, 5.0), chance.uniform(5.0, 25.0), chance.uniform(20.0, 60.0)))
        faults.append(
            Fault(
                kind=kind,
                at_s=at_s,
                lasts_s=min(lasts_s, start_s + safety_s - at_s),
                target=chance.choices(touchable, weights)[0],
                other=chance.choice((-1, -1, chance.randrange(routers))),
                illness=chance.choice(ILLNESSES),
                after=chance.randint(1, 3),
            )
        )
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _traffic(chance: random.Random, plan: Plan) -> tuple[Ask, ...]:
    """Bursts around each fault, long answers before it and new requests into it; then a trickle that must be served."""
    asks: list[Ask] = []
    for fault in plan.faults:
        models = plan.clusters[fault.target].models
        before = [fault.at_s - chance.uniform(0.0, 2.0) for _ in range(chance.choice((1, 2, 4)))]
        after = [fault.at_s + chance.uniform(0.0, min(8.0, fault.lasts_s)) for _ in range(chance.choice((1, 2, 3, 6)))]
        asks += [_ask(chance, plan, at_s, models=models, tokens=(8, 16, 24)) for at_s in before]
        asks += [_ask(chance, plan, at_s, models=models, tokens=(1, 2, 8)) for at_s in after]
    at_s = plan.heal_s + 30.0
    while at_s < plan.recovered_s:
        asks.append(_ask(chance, plan, at_s, tokens=(1, 2, 4)))
        at_s += chance.uniform(12.0, 30.0)
    return tuple(sorted(asks, key=lambda ask: ask.at_s))


def _ask(
    chance: random.Random, plan: Plan, at_s: float, *, tokens: tuple[int, ...], models: tuple[str, ...] = ()
) -> Ask:
    served = models or tuple(sorted({model for spec in plan.clusters for model in spec.models}))
    steady = at_s > plan.heal_s
    leaves = not steady and chance.random() < 0.2
    local = any(spec.region == "eu" for spec in plan.clusters) and not steady
    return Ask(
        at_s=at_s,
        router=chance.randrange(plan.routers),
        tenant=chance.choice(TENANTS if local else TENANTS[:3]),
        model=chance.choice(served),
        stream=chance.random() < 0.75,
        prompt_bytes=chance.choice((40, 400, 4_000)),
        tokens=chance.choice(tokens),
        patience_s=chance.choice((0.05, 0.5, 3.0)) if leaves else None,
        deadline_ms=chance.choice((2_000, 8_000)) if not steady and chance.random() < 0.1 else None,
    )
