"""What is wrong with a policy's placement and rewrite sections as a whole, beyond the bounds of single fields.

Called before a policy is swapped in: ValueError names field, value and fix of every problem, and the old
policy stays. Whether the fleet has what a policy asks for is another question: see `gir.place.lacking`.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from gir.model.policy import CanaryRule, PolicySnapshot, TierPolicy

_SPLIT = 2
"""Targets of a rule that splits: a control and a canary."""


def check_placement(policy: PolicySnapshot) -> None:
    """Raise ValueError, with a line for each fault, when `placement_faults` finds any."""
    faults = list(placement_faults(policy))
    if faults:
        raise ValueError("\n".join(faults))


def placement_faults(policy: PolicySnapshot) -> Iterator[str]:
    """Where tiers, residency, aliases or rewrite rules contradict themselves.

    Each begins with the field below the policy, as in `tiers[0].spill_at is 0: ...`.
    """
    yield from _check_tiers(policy.tiers)
    yield from _check_residency(policy)
    yield from _check_aliases(policy)
    yield from _unique("rewrites", "name", [rule.name for rule in policy.rewrites])
    for position, rule in enumerate(policy.rewrites):
        yield from _check_rule(f"rewrites[{position}]", rule)
    yield from _check_cycles(policy)


def _check_tiers(tiers: tuple[TierPolicy, ...]) -> Iterator[str]:
    yield from _unique("tiers", "name", [tier.name for tier in tiers])
    for position, tier in enumerate(tiers):
        if tier.return_at <= tier.spill_at:
            yield (
                f"tiers[{position}].return_at is {tier.return_at:g}, spill_at is {tier.spill_at:g}: traffic would come "
                f"back where it just left; set return_at above spill_at"
            )
        if tier.spill_at <= 0.0:
            yield (
                f"tiers[{position}].spill_at is 0: the tier would spill only when nothing is free; use at least 0.01"
            )


def _check_residency(policy: PolicySnapshot) -> Iterator[str]:
    yield from _unique("tenants", "id", [tenant.id for tenant in policy.tenants])
    yield from _unique("clusters", "id", [cluster.id for cluster in policy.clusters])
    for position, tenant in enumerate(policy.tenants):
        if tenant.regions is not None and not tenant.regions:
            yield (
                f"tenants[{position}].regions is empty: it excludes every cluster for {tenant.id}; "
                f"name its Regions, or leave the field out to allow all"
            )
    for position, cluster in enumerate(policy.clusters):
        if cluster.tenants is not None and not cluster.tenants:
            yield (
                f"clusters[{position}].tenants is empty: {cluster.id} could serve nobody; "
                f"set intent: drain to take it out, or leave the field out to allow all"
            )


def _check_aliases(policy: PolicySnapshot) -> Iterator[str]:
    yield from _unique("models", "name", [model.name for model in policy.models])
    names = {str(model.name): position for position, model in enumerate(policy.models)}
    owner: dict[str, str] = {}
    for position, model in enumerate(policy.models):
        for place, alias in enumerate(model.aliases):
            field = f"models[{position}].aliases[{place}]"
            if alias in owner:
                yield f"{field} is '{alias}', already an alias of {owner[alias]}; an alias means one model"
            if alias in names:
                yield (
                    f"{field} is '{alias}', which is the name of models[{names[alias]}]: an alias of a model that has "
                    f"an entry of its own would be cyclic or never used; choose another alias"
                )
            owner[alias] = str(model.name)


def _check_rule(field: str, rule: CanaryRule) -> Iterator[str]:
    weights = [target.weight for target in rule.targets]
    given = [weight for weight in weights if weight is not None]
    if given and len(given) != len(weights):
        missing = weights.index(None)
        yield (f"{field}.targets[{missing}].weight is missing while others have one; weigh all targets or none")
    if given and not sum(given):
        yield f"{field}.targets: all weights are 0, so nobody could be served; give one a weight"
    yield from _unique(f"{field}.targets", "model", [target.model for target in rule.targets])
    if len(rule.targets) < _SPLIT and (rule.guard is not None or rule.plan):
        what = "guard" if rule.guard is not None else "plan"
        yield f"{field}.{what} needs a second target to act on; add the canary to targets"
    times = [stage[0] for stage in rule.plan]
    for place, (before, after) in enumerate(pairwise(times), start=1):
        if after <= before:
            yield (f"{field}.plan[{place}] starts at {after:g} s, not after the stage before it ({before:g} s)")
    limit = sum(given) if given else 100
    for place, (_, weight) in enumerate(rule.plan):
        if weight > limit:
            yield f"{field}.plan[{place}] has weight {weight} of {limit} in all; use 0 to {limit}"


def _check_cycles(policy: PolicySnapshot) -> Iterator[str]:
    """Refuse renames that lead back to where they began: aliases, and rules that send all of a model elsewhere."""
    step: dict[str, tuple[str, str]] = {}
    for position, model in enumerate(policy.models):
        for place, alias in enumerate(model.aliases):
            step[alias] = (str(model.name), f"models[{position}].aliases[{place}]")
    for position, rule in enumerate(policy.rewrites):
        targets = {target.model for target in rule.targets}
        for place, match in enumerate(rule.matches):
            if match.model is not None and not match.headers and match.model not in targets:
                step.setdefault(match.model, (rule.targets[0].model, f"rewrites[{position}].matches[{place}].model"))
    told: set[str] = set()
    for start in step:
        seen = [start]
        while seen[-1] in step and seen[-1] not in told:
            following = step[seen[-1]][0]
            if following in seen:
                circle = [*seen[seen.index(following) :], following]
                told.update(circle)
                yield (
                    f"{step[circle[0]][1]} is '{circle[0]}', which leads back to itself: {' -> '.join(circle)} is a "
                    "cycle; break it at one of the names"
                )
                break
            seen.append(following)


def _unique(field: str, key: str, names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for position, name in enumerate(names):
        if name in seen:
            yield f"{field}[{position}].{key} is '{name}', which is listed twice; keep one of them"
        seen.add(name)
