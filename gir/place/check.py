"""What is wrong with a policy's placement and rewrite sections as a whole, beyond the bounds of single fields.

Called before a policy is swapped in: the first problem raises ValueError naming field, value and fix, and the old
policy stays. With the current view, targets and residency are also held against what the fleet really reports.
"""

from collections.abc import Iterable
from itertools import pairwise

from gir.model.cluster import ClusterView
from gir.model.ids import ModelId
from gir.model.policy import CanaryRule, PolicySnapshot, TierPolicy

_SPLIT = 2
"""Targets of a rule that splits: a control and a canary."""


def check_placement(policy: PolicySnapshot, view: ClusterView | None = None) -> None:
    """Raise ValueError when tiers, residency, aliases or rewrite rules contradict themselves or the fleet in `view`."""
    _check_tiers(policy.tiers)
    _check_residency(policy, view)
    _check_aliases(policy)
    _unique("rewrites", [rule.name for rule in policy.rewrites])
    aliases = {alias: str(model.name) for model in policy.models for alias in model.aliases}
    for position, rule in enumerate(policy.rewrites):
        _check_rule(f"rewrites[{position}]", rule)
        if view is not None and view.by_model:
            _check_served(f"rewrites[{position}]", rule, view, aliases)
    _check_cycles(policy)


def _check_tiers(tiers: tuple[TierPolicy, ...]) -> None:
    _unique("tiers", [tier.name for tier in tiers])
    for position, tier in enumerate(tiers):
        if tier.return_at <= tier.spill_at:
            raise ValueError(
                f"tiers[{position}].return_at is {tier.return_at:g}, spill_at is {tier.spill_at:g}: traffic would come "
                f"back where it just left; set return_at above spill_at"
            )
        if tier.spill_at <= 0.0:
            raise ValueError(
                f"tiers[{position}].spill_at is 0: the tier would spill only when nothing is free; use at least 0.01"
            )


def _check_residency(policy: PolicySnapshot, view: ClusterView | None) -> None:
    _unique("tenants", [tenant.id for tenant in policy.tenants])
    _unique("clusters", [cluster.id for cluster in policy.clusters])
    known = {str(state.region) for state in view.clusters} if view is not None else set()
    for position, tenant in enumerate(policy.tenants):
        if tenant.regions is None:
            continue
        if not tenant.regions:
            raise ValueError(
                f"tenants[{position}].regions is empty: it excludes every cluster for {tenant.id}; "
                f"name its Regions, or leave the field out to allow all"
            )
        if known and not known.intersection(tenant.regions):
            raise ValueError(
                f"tenants[{position}].regions is {', '.join(tenant.regions)}: no cluster is there, so {tenant.id} "
                f"could not be served; clusters are in {', '.join(sorted(known))}"
            )
    for position, cluster in enumerate(policy.clusters):
        if cluster.tenants is not None and not cluster.tenants:
            raise ValueError(
                f"clusters[{position}].tenants is empty: {cluster.id} could serve nobody; "
                f"set intent: drain to take it out, or leave the field out to allow all"
            )


def _check_aliases(policy: PolicySnapshot) -> None:
    _unique("models", [model.name for model in policy.models])
    names = {str(model.name): position for position, model in enumerate(policy.models)}
    owner: dict[str, str] = {}
    for position, model in enumerate(policy.models):
        for place, alias in enumerate(model.aliases):
            field = f"models[{position}].aliases[{place}]"
            if alias in owner:
                raise ValueError(f"{field} is '{alias}', already an alias of {owner[alias]}; an alias means one model")
            if alias in names:
                raise ValueError(
                    f"{field} is '{alias}', which is the name of models[{names[alias]}]: an alias of a model that has "
                    f"an entry of its own would be cyclic or never used; choose another alias"
                )
            owner[alias] = str(model.name)


def _check_rule(field: str, rule: CanaryRule) -> None:
    weights = [target.weight for target in rule.targets]
    given = [weight for weight in weights if weight is not None]
    if given and len(given) != len(weights):
        missing = weights.index(None)
        raise ValueError(
            f"{field}.targets[{missing}].weight is missing while others have one; weigh all targets or none"
        )
    if given and not sum(given):
        raise ValueError(f"{field}.targets: all weights are 0, so nobody could be served; give one a weight")
    _unique(f"{field}.targets", [target.model for target in rule.targets])
    if len(rule.targets) < _SPLIT and (rule.guard is not None or rule.plan):
        what = "guard" if rule.guard is not None else "plan"
        raise ValueError(f"{field}.{what} needs a second target to act on; add the canary to targets")
    times = [stage[0] for stage in rule.plan]
    for place, (before, after) in enumerate(pairwise(times), start=1):
        if after <= before:
            raise ValueError(
                f"{field}.plan[{place}] starts at {after:g} s, not after the stage before it ({before:g} s)"
            )
    limit = sum(given) if given else 100
    for place, (_, weight) in enumerate(rule.plan):
        if weight > limit:
            raise ValueError(f"{field}.plan[{place}] has weight {weight} of {limit} in all; use 0 to {limit}")


def _check_served(field: str, rule: CanaryRule, view: ClusterView, aliases: dict[str, str]) -> None:
    for place, target in enumerate(rule.targets):
        if ModelId(aliases.get(target.model, target.model)) not in view.by_model:
            raise ValueError(
                f"{field}.targets[{place}].model is '{target.model}', which no cluster serves; "
                f"deploy it first (GET /v1/models lists what is served)"
            )


def _check_cycles(policy: PolicySnapshot) -> None:
    """Refuse renames that lead back to where they began: aliases, and rules that send all of a model elsewhere."""
    step = {alias: str(model.name) for model in policy.models for alias in model.aliases}
    for rule in policy.rewrites:
        targets = {target.model for target in rule.targets}
        for match in rule.matches:
            if match.model is not None and not match.headers and match.model not in targets:
                step.setdefault(match.model, rule.targets[0].model)
    for start in step:
        seen = [start]
        while (following := step.get(seen[-1])) is not None:
            if following in seen:
                raise ValueError(
                    f"rewrites and aliases: {' -> '.join([*seen, following])} is a cycle; break it at one of the names"
                )
            seen.append(following)


def _unique(field: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for position, name in enumerate(names):
        if name in seen:
            raise ValueError(f"{field}[{position}]: '{name}' is listed twice; keep one of them")
        seen.add(name)
