"""The whole policy at one version."""

from gir.model.ids import ClusterId, ModelId, TenantId
from gir.model.policy.base import NonNegative, Seconds, Section, Share
from gir.model.policy.canary import CanaryRule
from gir.model.policy.forward import ForwardPolicy
from gir.model.policy.health import HealthPolicy
from gir.model.policy.limits import FlowPolicy, LimitRule
from gir.model.policy.placement import PlacementPolicy, TierPolicy


class ModelPolicy(Section, frozen=True, kw_only=True):
    """What the operator says about one model (a base model or an adapter). Models need not be listed to be served."""

    name: ModelId
    """Model as clusters report it."""
    aliases: tuple[str, ...] = ()
    """Other names clients may use for it."""
    ttft_objective_s: Seconds | None = None
    """Objective for the time to first token; Critical requests may leave a tier that would miss it."""
    resume: bool = False
    """Continue a broken stream on another cluster (needs engines with `continue_final_message`)."""
    hedge_after_s: NonNegative | None = None
    """Overrides forward.hedge_after_s."""
    placement: PlacementPolicy | None = None
    """Overrides the global placement section for this model."""
    hidden: bool = False
    """Served, but left out of /v1/models."""


class TenantPolicy(Section, frozen=True, kw_only=True):
    """What one tenant may do. None means no restriction."""

    id: TenantId
    """Tenant as credentials name it."""
    models: tuple[ModelId, ...] | None = None
    """Models it may ask for; None allows all."""
    regions: tuple[str, ...] | None = None
    """Data residency: its requests never leave these Regions."""
    criticality_max: str = "critical"
    """Highest class its requests may claim: `critical`, `standard` or `sheddable`."""
    criticality_default: str = "standard"
    """Class of its requests that claim none."""
    trusted: bool = False
    """May set `x-gir-*` control headers."""
    share: NonNegative = 1.0
    """Weight in the fair share between tenants of one class."""


class ClusterPolicy(Section, frozen=True, kw_only=True):
    """What the operator says about one cluster, whatever it reports about itself."""

    id: ClusterId
    """Cluster as its agent's credential names it."""
    weight: Share = 1.0
    """Pinned weight: upper bound of its share, independent of health."""
    intent: str = "serve"
    """`serve`, `drain` or `maintenance`."""
    tier: str | None = None
    """Overrides the tier the cluster reports."""
    tenants: tuple[TenantId, ...] | None = None
    """Only these tenants may be served here."""


class PolicySnapshot(Section, frozen=True, kw_only=True):
    """One version of everything an operator decides. A request keeps the one it started with."""

    version: int = 0
    digest: str = ""
    """Short hash of the source text, so that replicas can be compared."""
    tiers: tuple[TierPolicy, ...] = ()
    """Cheapest first. Clusters of undeclared tiers come last."""
    models: tuple[ModelPolicy, ...] = ()
    """What is said about single models; others are served by the defaults."""
    tenants: tuple[TenantPolicy, ...] = ()
    """What is said about single tenants; others are not restricted."""
    clusters: tuple[ClusterPolicy, ...] = ()
    """What is said about single clusters; others are taken as they report."""
    rewrites: tuple[CanaryRule, ...] = ()
    """Aliases and canaries. The first rule that matches rewrites a request; rules that name its model come first."""
    placement: PlacementPolicy = PlacementPolicy()
    """How clusters are ranked."""
    health: HealthPolicy = HealthPolicy()
    """When a cluster is lost, and how it comes back."""
    forward: ForwardPolicy = ForwardPolicy()
    """Attempts, retries and deadlines."""
    flow: FlowPolicy = FlowPolicy()
    """Who waits and who is shed when no cluster has room."""
    limits: tuple[LimitRule, ...] = ()
    """Global limits on requests, tokens and concurrency."""
