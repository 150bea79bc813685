"""What a drill is: a hypothesis with figures, a fault, its mending, and the promises that are judged.

The five parts of a chaos experiment: steady state (promised in every drill, before and after), hypothesis, fault plan,
stop conditions (the runner's), rollback (every fault registers its undo before it acts).
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from chaos.members import overlay
from chaos.promises import Promise
from chaos.stage import CANARY_MODEL, CONTROL_MODEL, EXPERIMENT_MODEL, Stage
from chaos.topology import ClusterShape, KeyShape, PodShape, StoreShape, Topology

Deed = Callable[[Stage], Awaitable[None]]
Settings = Callable[[float], dict[str, Any]]
"""Settings at a scale."""
PHASE_MIN_S = 2.0
"""No phase is scaled below this: fewer requests would prove nothing."""


def nothing_special(_: float) -> dict[str, Any]:
    """No settings."""
    return {}


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """One drill. Durations are seconds at scale 1."""

    id: str
    title: str
    hypothesis: str
    fault: Deed
    heal: Deed
    promises: tuple[Promise, ...]
    victims: tuple[str, ...] = ("eu-1",)
    proxied: bool = False
    """Connections of the experiment's clusters pass through proxies, so that the fault can poison them."""
    probe: bool = True
    """The router probes data paths."""
    clocks_adjustable: bool = False
    """The fault may set wall clocks wrong."""
    patience_s: float = 30.0
    """How long clients wait for an answer, whatever the scale."""
    resume: bool = False
    """Policy lets broken streams be continued on another cluster."""
    leave_share: float = 0.0
    """Share of the experiment's clients that leave before their answer is complete."""
    control_may_fail: bool = False
    """The fault is meant to reach everybody."""
    classes: tuple[str, ...] = ()
    """Criticalities of the experiment's clients, drawn at random for each request: one named twice comes twice as
    often. Empty: all are Standard, and of one tenant."""
    canary: bool = False
    """Two clusters in place of three, each with one engine more, of a new version of the model."""
    users: int = 0
    """End users of the experiment, named in its requests; 0 names none."""
    rude: bool = False
    """The fault is made of requests that are in no history, so requests and attempts cannot be counted."""
    routers: int = 1
    """Routers that share the load; one that says it is not ready gets nothing new."""
    store: StoreShape = StoreShape()
    limited: bool = False
    """Both groups have a limit: the experiment's is used up soon after the fault, the control group's never."""
    phantoms: int = 0
    """Agents without a cluster, played by the drill."""
    issuer: tuple[str, ...] = ()
    """Keys of a token issuer; the experiment's clients then come with tokens signed by the first."""
    issuer_settings: Settings = nothing_special
    settings: Settings = nothing_special
    """Sections laid over the routers' configuration."""
    engine: PodShape = PodShape(gpu="llama2-70b/h100-80gb/tp8", slots=16)
    engines: dict[str, PodShape] = {}
    """Engines of single clusters, by name, where they differ."""
    time_scale: float = 0.5
    """Multiplies what the engines' answers take."""
    before_s: float = 20.0
    during_s: float = 30.0
    after_s: float = 20.0
    rps: float = 20.0
    stream_share: float = 0.7


HEALTH_S = {
    "beat_interval_s": 2.0,
    "suspect_after_s": 6.0,
    "dead_after_s": 15.0,
    "sweep_interval_s": 0.5,
    "probe_interval_s": 1.0,
    "probe_timeout_s": 0.5,
    "ejection_s": 10.0,
    "ramp_s": 30.0,
    "holddown_s": 2.0,
    "loop_gap_s": 1.0,
    "flap_window_s": 600.0,
}
"""The router's defaults, written out so that they can be scaled."""
LOST_IDLE_S = 5.0
"""Likewise: silence that ends a stream of an unreachable cluster."""


def limit_per_min(drill: Drill, scale: float) -> int:
    """The experiment's limit: enough for one and a half times the phase before the fault, so that what is left then
    matters; windows of a minute do not scale."""
    return round(1.5 * drill.rps * max(PHASE_MIN_S, drill.before_s * scale))


def limits(drill: Drill, scale: float) -> dict[str, Any]:
    """The policy of a limited drill. The control group is Critical and its rule is closed without the store: so it is
    served only if nobody refuses a Critical request because the store is away."""
    return {
        "tenants": [{"id": "experiment"}, {"id": "control", "criticality_default": "critical"}],
        "limits": [
            {"name": "experiment", "tenant": "experiment", "requests_per_min": limit_per_min(drill, scale)},
            {"name": "control", "tenant": "control", "requests_per_min": 2_000, "on_outage": "closed"},
        ],
    }


def tenants(drill: Drill) -> dict[str, Any]:
    """The policy of a drill with classes: a tenant for each."""
    groups = [{"id": "experiment"}, {"id": "control"}]
    return {"tenants": groups + [{"id": name, "criticality_default": name} for name in sorted(set(drill.classes))]}


def canary_engines(drill: Drill) -> tuple[PodShape, ...]:
    """Engines of the new version in each cluster."""
    return (msgspec.structs.replace(drill.engine, model=CANARY_MODEL),) if drill.canary else ()


def topology(drill: Drill, scale: float) -> Topology:
    """Three equal clusters for the experiment and one for the control group, every health setting scaled."""
    clusters = [
        ClusterShape(
            name=name,
            region=region,
            model=EXPERIMENT_MODEL,
            pods=(drill.engines.get(name, drill.engine),) * 2 + canary_engines(drill),
            proxied=drill.proxied,
        )
        for name, region in (("eu-1", "eu-west"), ("eu-2", "eu-west"), ("us-1", "us-east"))
        if not (drill.canary and name == "eu-2")
    ]
    clusters.append(ClusterShape(name="control", region="us-east", model=CONTROL_MODEL, pods=(drill.engine,)))
    policy = {
        "tiers": [{"name": "reserved", "price_per_slot_hour": 1.0}],
        "models": [{"name": EXPERIMENT_MODEL, "resume": drill.resume}],
        "health": {name: round(value * scale, 4) for name, value in HEALTH_S.items()} | {"probe": drill.probe},
        "forward": {"lost_idle_s": round(LOST_IDLE_S * scale, 4)},
        **(tenants(drill) if drill.classes else {}),
        **(limits(drill, scale) if drill.limited else {}),
    }
    settings = drill.settings(scale)
    return Topology(
        clusters=tuple(clusters),
        routers=drill.routers,
        store=drill.store,
        phantoms=drill.phantoms,
        issuer=drill.issuer,
        issuer_settings=drill.issuer_settings(scale),
        keys=tuple(KeyShape(id=name, tenant=name) for name in ("experiment", "control", *sorted(set(drill.classes)))),
        time_scale=drill.time_scale,
        clocks_adjustable=drill.clocks_adjustable,
        policy=overlay(policy, settings.get("policy", {})),
        router={name: section for name, section in settings.items() if name != "policy"},
    )
