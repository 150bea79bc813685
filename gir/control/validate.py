"""What must hold in a policy as a whole: names that exist, limits that limit, a ladder that keeps its promise.

A policy that cannot take effect as written is refused before it replaces a good one, never half applied.
"""

from collections.abc import Iterable

from gir.health.ladder import check_ladder
from gir.model.policy import LimitRule, PolicySnapshot, TierPolicy
from gir.model.request import Criticality
from gir.place.check import check_placement
from gir.settings import ConfigError

_INTENTS = ("serve", "drain", "maintenance")
_CLASSES = tuple(item.label for item in Criticality)
_PER = ("tenant", "model", "key", "region")


def check_policy(policy: PolicySnapshot) -> None:
    """Raise ConfigError naming field, value and fix."""
    try:
        check_ladder(policy.health)
        check_placement(policy)
    except ValueError as error:
        raise ConfigError(f"policy: {error}") from None
    _tiers(policy.tiers)
    _unique((entry.name for entry in policy.models), "models")
    _tenants(policy)
    _clusters(policy)
    _limits(policy.limits)


def _unique(names: Iterable[str], field: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise ConfigError(f"policy.{field}[{index}] is {name!r}, listed before; keep one entry")
        seen.add(name)


def _one_of(value: str, allowed: tuple[str, ...], field: str) -> None:
    if value not in allowed:
        raise ConfigError(f"policy.{field} is {value!r}; choose from {', '.join(allowed)}")


def _tiers(tiers: tuple[TierPolicy, ...]) -> None:
    for index, tier in enumerate(tiers):
        _one_of(tier.criticality_min, _CLASSES, f"tiers[{index}].criticality_min")


def _tenants(policy: PolicySnapshot) -> None:
    _unique((tenant.id for tenant in policy.tenants), "tenants")
    for index, tenant in enumerate(policy.tenants):
        field = f"tenants[{index}]"
        _one_of(tenant.criticality_max, _CLASSES, f"{field}.criticality_max")
        _one_of(tenant.criticality_default, _CLASSES, f"{field}.criticality_default")
        if Criticality[tenant.criticality_default.upper()] > Criticality[tenant.criticality_max.upper()]:
            raise ConfigError(
                f"policy.{field}.criticality_default is {tenant.criticality_default!r}, above criticality_max "
                f"({tenant.criticality_max!r}); lower it"
            )
        for name, values in (("models", tenant.models), ("regions", tenant.regions)):
            if values is not None and not values:
                raise ConfigError(
                    f"policy.{field}.{name} is empty: nothing would be allowed; leave it out to allow all"
                )


def _clusters(policy: PolicySnapshot) -> None:
    _unique((cluster.id for cluster in policy.clusters), "clusters")
    tiers = {tier.name for tier in policy.tiers}
    known = {tenant.id for tenant in policy.tenants}
    for index, cluster in enumerate(policy.clusters):
        _one_of(cluster.intent, _INTENTS, f"clusters[{index}].intent")
        if cluster.tier is not None and tiers and cluster.tier not in tiers:
            raise ConfigError(
                f"policy.clusters[{index}].tier is {cluster.tier!r}; declare it under policy.tiers, where are: "
                f"{', '.join(sorted(tiers))}"
            )
        for tenant in cluster.tenants or ():
            if known and tenant not in known:
                raise ConfigError(
                    f"policy.clusters[{index}].tenants holds {tenant!r}, which policy.tenants does not list; add it "
                    "there or correct the name"
                )


def _limits(rules: tuple[LimitRule, ...]) -> None:
    _unique((rule.name for rule in rules), "limits")
    for index, rule in enumerate(rules):
        if rule.requests_per_min is None and rule.tokens_per_min is None and rule.concurrency_max is None:
            raise ConfigError(
                f"policy.limits[{index}] ({rule.name!r}) limits nothing; give requests_per_min, tokens_per_min or "
                "concurrency_max"
            )
        for name in rule.per:
            _one_of(name, _PER, f"limits[{index}].per")
