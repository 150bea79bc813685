"""What a local fleet consists of: Regions, clusters, pods, routers, keys. Data only."""

from typing import Annotated, Any, Literal

import msgspec

from chaos.engine.metrics import Dialect

Count = Annotated[int, msgspec.Meta(ge=1)]


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what may be written in a topology file."""


class PodShape(Shape, frozen=True, kw_only=True):
    """One simulated engine."""

    model: str = ""
    """What it serves, if not what its cluster does."""
    gpu: str = "llama2-70b/h100-80gb/tp8"
    slots: Count = 16
    kv_tokens: Count = 131_072
    context_tokens_max: Count = 8_192
    dialect: Dialect = "vllm"
    adapters: tuple[str, ...] = ()
    adapter_slots: int = 0


class ClusterShape(Shape, frozen=True, kw_only=True):
    """One cluster: an agent and its pods, all serving one model unless a pod names its own."""

    name: str
    region: str
    tier: str = "reserved"
    price_per_slot_hour: float = 1.0
    model: str = "llama-70b"
    pods: tuple[PodShape, ...] = (PodShape(), PodShape())
    proxied: bool = False
    """Routers reach its data port, and it reaches their beat port, through proxies that drills can poison."""
    agent: dict[str, Any] = {}
    """Sections laid over the agent's configuration."""


class StoreShape(Shape, frozen=True, kw_only=True):
    """Where routers count limits."""

    kind: Literal["memory", "redis", "sentinel"] = "memory"
    """`sentinel`: a primary, its replica, and a sentinel that promotes it."""
    proxied: int = 0
    """So many routers, from the first, reach it each through a proxy of its own, that drills can poison."""


class KeyShape(Shape, frozen=True, kw_only=True):
    """An API key; its secret is made when the fleet starts."""

    id: str
    tenant: str


class Topology(Shape, frozen=True, kw_only=True):
    """A whole fleet."""

    clusters: tuple[ClusterShape, ...]
    routers: Count = 1
    keys: tuple[KeyShape, ...] = (KeyShape(id="demo", tenant="demo"),)
    time_scale: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    """Multiplies the engines' durations."""
    clocks_adjustable: bool = False
    """The wall clocks of routers and agents can be set wrong, each by itself. Needs a C compiler."""
    policy: dict[str, Any] = {}
    """Policy section of the routers' configuration."""
    store: StoreShape = StoreShape()
    phantoms: int = 0
    """Agents without a cluster that routers are told to expect: a drill plays them."""
    issuer: tuple[str, ...] = ()
    """Names of the keys of a token issuer beside the fleet; empty: there is none."""
    issuer_settings: dict[str, Any] = {}
    """What routers are told about it beside its address."""
    router: dict[str, Any] = {}
    """Other sections laid over the routers' configuration."""

    @property
    def models(self) -> list[str]:
        """Every model and adapter, by name."""
        pods = [(pod.model or cluster.model, *pod.adapters) for cluster in self.clusters for pod in cluster.pods]
        return sorted({name for names in pods for name in names})


def demo(*, time_scale: float = 0.5) -> Topology:
    """Three clusters in two Regions: reserved and on-demand tiers, mixed GPUs, adapters in both reserved clusters.

    No cluster is the only one for anything, so that any may be killed.
    """
    h100, a100 = "llama2-70b/h100-80gb/tp8", "llama2-70b/a100-80gb/tp8"
    capped = "llama2-70b/h100-80gb-pcap/tp4"
    adapters = ("llama-70b-sql", "llama-70b-support")
    return Topology(
        clusters=(
            ClusterShape(
                name="eu-reserved",
                region="eu-west",
                pods=(PodShape(gpu=h100, adapters=adapters, adapter_slots=2), PodShape(gpu=a100, slots=8)),
            ),
            ClusterShape(
                name="eu-burst",
                region="eu-west",
                tier="on_demand",
                price_per_slot_hour=2.5,
                pods=(PodShape(gpu=capped), PodShape(gpu=capped, dialect="sglang")),
            ),
            ClusterShape(
                name="us-reserved",
                region="us-east",
                price_per_slot_hour=1.1,
                pods=(
                    PodShape(gpu=h100, adapters=adapters, adapter_slots=1),
                    PodShape(gpu=a100, slots=8, adapters=adapters, adapter_slots=2),
                ),
            ),
        ),
        time_scale=time_scale,
        policy={
            "tiers": [
                {"name": "reserved", "price_per_slot_hour": 1.0},
                {"name": "on_demand", "price_per_slot_hour": 2.5},
            ],
            "models": [{"name": "llama-70b", "aliases": ["llama"], "ttft_objective_s": 2.0}],
        },
    )
