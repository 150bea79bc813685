"""A policy that contradicts itself is refused, with field, value and fix."""

import msgspec
import pytest

from gir.model.policy import (
    CanaryGuard,
    CanaryRule,
    CanaryTarget,
    ClusterPolicy,
    ModelPolicy,
    PolicySnapshot,
    RuleMatch,
    TenantPolicy,
    TierPolicy,
)
from gir.place.check import check_placement
from tests.support.placing import policy


def rule(*targets: tuple[str, int | None], name: str = "r", model: str | None = "llama", **fields) -> CanaryRule:
    listed = tuple(CanaryTarget(model=target, weight=weight) for target, weight in targets)
    return CanaryRule(name=name, matches=(RuleMatch(model=model),), targets=listed, **fields)


GOOD = rule(("llama", 90), ("next", 10), guard=CanaryGuard(), plan=((0.0, 5), (60.0, 50)))


def test_a_sound_policy_passes():
    check_placement(policy(rewrites=(GOOD,), models=(ModelPolicy(name="llama", aliases=("gpt",)),)))


def alias(name: str, *others: str) -> ModelPolicy:
    return ModelPolicy(name=name, aliases=others)


BAD = [
    (r"tiers\[1\].*listed twice", {"tiers": (TierPolicy(name="a", price_per_slot_hour=1.0),) * 2}),
    (r"tiers\[0\].return_at is 0.1", {"tiers": (TierPolicy(name="a", price_per_slot_hour=1.0, return_at=0.1),)}),
    (r"tiers\[0\].spill_at is 0", {"tiers": (TierPolicy(name="a", price_per_slot_hour=1.0, spill_at=0.0),)}),
    (r"tenants\[0\].regions is empty", {"tenants": (TenantPolicy(id="t", regions=()),)}),
    (r"clusters\[0\].tenants is empty", {"clusters": (ClusterPolicy(id="c", tenants=()),)}),
    (r"models\[1\].aliases\[0\] is 'x'", {"models": (alias("a", "x"), alias("b", "x"))}),
    (r"aliases\[0\] is 'b'.*cyclic", {"models": (alias("a", "b"), alias("b", "a"))}),
    (r"targets\[1\].weight is missing", {"rewrites": (rule(("a", 1), ("b", None)),)}),
    (r"all weights are 0", {"rewrites": (rule(("a", 0), ("b", 0)),)}),
    (r"guard needs a second target", {"rewrites": (rule(("a", 1), guard=CanaryGuard()),)}),
    (r"plan\[1\] starts at 5 s", {"rewrites": (rule(("a", 1), ("b", 1), plan=((5.0, 1), (5.0, 2))),)}),
    (r"plan\[0\] has weight 200 of 100", {"rewrites": (rule(("a", 90), ("b", 10), plan=((0.0, 200),)),)}),
    (r"rewrites\[1\]\.name is 'r', which is listed twice", {"rewrites": (rule(("a", 1)), rule(("b", 1), model="z"))}),
    (r"llama -> b -> llama is a cycle", {"rewrites": (rule(("b", 1)), rule(("llama", 1), name="s", model="b"))}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "fields"), BAD, ids=[message for message, _ in BAD])
def test_contradictions_are_refused_by_field(message, fields):
    with pytest.raises(ValueError, match=message):
        check_placement(policy(**fields))


SPOT = {"name": "spot", "price_per_slot_hour": 1}
NEGATIVE = {"name": "r", "matches": [{}], "targets": [{"model": "a", "weight": -1}]}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (r"\$\.rewrites\[0\]\.targets\[0\]\.weight", {"rewrites": [NEGATIVE]}),
        (r"\$\.placement\.weights\.queue", {"placement": {"weights": {"queue": 0.0}}}),
        (r"\$\.placement\.bounded_load", {"placement": {"bounded_load": 0.5}}),
        (r"price_per_slot_hour", {"tiers": [{"name": "spot"}]}),
        (r"\$\.tiers\[0\]\.spill_at", {"tiers": [SPOT | {"spill_at": 2}]}),
        (r"\$\.tiers\[0\]\.criticality_min", {"tiers": [SPOT | {"criticality_min": "urgent"}]}),
        (r"unknown field `wieghts`", {"placement": {"wieghts": {}}}),
    ],
)
def test_values_out_of_range_are_refused_with_their_path(path, source):
    with pytest.raises(msgspec.ValidationError, match=path):
        msgspec.convert(source, PolicySnapshot)
