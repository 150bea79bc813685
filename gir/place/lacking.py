"""What a sound policy asks for that the fleet does not have.

`gir.place.check` judges a policy by itself, once. The fleet is another matter: it changes while the policy stands, and
right after a start nothing of it is known yet. So what is *not known* and what is *known to be absent* are told apart.
"""

from collections.abc import Iterator, Sequence

import msgspec

from gir.model.cluster import ClusterView
from gir.model.ids import ClusterId, ModelId
from gir.model.policy import PolicySnapshot


class Lacking(msgspec.Struct, frozen=True):
    """Something a policy asks for and no cluster has."""

    about: tuple[str, ...]
    """What it is, wherever in the policy it stands."""
    text: str
    """Field, value and fix."""


class FleetLacksError(ValueError):
    """A policy was refused only for what the fleet lacks now; it may be taken once the fleet has it."""


def lacking(policy: PolicySnapshot, view: ClusterView) -> Iterator[Lacking]:
    """Targets of rules that no cluster of `view` reports, and tenants in whose Regions there is no cluster.

    A cluster that is dead now still counts: it may come back, and until then requests stay with the stable target.
    """
    aliases = {alias: str(model.name) for model in policy.models for alias in model.aliases}
    for position, rule in enumerate(policy.rewrites):
        for place, target in enumerate(rule.targets):
            if ModelId(aliases.get(target.model, target.model)) not in view.by_model:
                yield Lacking(
                    ("model", target.model),
                    f"rewrites[{position}].targets[{place}].model is '{target.model}', which no cluster serves; "
                    f"deploy it first (GET /v1/models lists what is served)",
                )
    known = {str(state.region) for state in view.clusters}
    for position, tenant in enumerate(policy.tenants):
        if tenant.regions and not known.intersection(tenant.regions):
            yield Lacking(
                ("regions", str(tenant.id), *tenant.regions),
                f"tenants[{position}].regions is {', '.join(tenant.regions)}: no cluster is there, so {tenant.id} "
                f"could not be served; clusters are in {', '.join(sorted(known))}",
            )


def review(
    policy: PolicySnapshot, before: PolicySnapshot, view: ClusterView, unheard: Sequence[ClusterId]
) -> tuple[str, ...]:
    """Hold a policy that is to replace `before` against the fleet. Returns warnings; empty when nothing is lacking.

    `unheard` are clusters that are configured and have not reported since this process began. While there are any, what
    is missing may be theirs and is only warned of. Once all have been heard, what is missing is known to be absent, and
    a policy that newly asks for it raises FleetLacksError. What `before` lacked as well stays a warning: an urgent
    change must not be held up by something else that has gone since.
    """
    if not view.by_model:
        return ()
    found = list(lacking(policy, view))
    if found and not unheard:
        old = {each.about for each in lacking(before, view)}
        for each in found:
            if each.about not in old:
                raise FleetLacksError(f"policy.{each.text}")
    hint = f" (not heard from yet: {', '.join(unheard)})" if unheard else ""
    return tuple(f"policy.{each.text}{hint}" for each in found)
