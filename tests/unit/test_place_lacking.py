"""What a policy asks of the fleet: refused when known to be absent, warned of while it may still turn up."""

import pytest

from gir.model.cluster import ClusterStatus
from gir.model.policy import CanaryRule, CanaryTarget, ModelPolicy, PolicySnapshot, RuleMatch, TenantPolicy
from gir.place.lacking import FleetLacksError, lacking, review
from tests.support.placing import cluster, policy, pool, view

FLEET = view(cluster("a"), cluster("b"))


def canary(target: str = "next", name: str = "r") -> CanaryRule:
    targets = (CanaryTarget(model="llama", weight=90), CanaryTarget(model=target, weight=10))
    return CanaryRule(name=name, matches=(RuleMatch(model="llama"),), targets=targets)


WITH_CANARY = policy(rewrites=(canary(),))
IN_MARS = policy(tenants=(TenantPolicy(id="t", regions=("mars",)),))
PLAIN = policy()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (WITH_CANARY, r"policy.rewrites\[0\].targets\[1\].model is 'next', which no cluster serves; deploy it first"),
        (IN_MARS, r"policy.tenants\[0\].regions is mars: no cluster is there.*clusters are in eu"),
    ],
)
def test_what_every_cluster_was_heard_not_to_have_is_refused_by_field(wanted: PolicySnapshot, message: str):
    with pytest.raises(FleetLacksError, match=message):
        review(wanted, PLAIN, FLEET, unheard=())


def test_what_a_cluster_not_heard_yet_may_have_is_a_warning_that_names_the_cluster():
    (warning,) = review(WITH_CANARY, PLAIN, view(cluster("a")), unheard=("b",))
    assert "targets[1].model is 'next'" in warning
    assert warning.endswith("(not heard from yet: b)")


def test_before_anybody_has_reported_nothing_is_held_against_a_policy():
    assert review(WITH_CANARY, PLAIN, view(), unheard=("a",)) == ()
    assert review(WITH_CANARY, PLAIN, view(), unheard=()) == ()


def test_a_change_elsewhere_is_not_held_up_by_a_target_that_has_gone_since():
    moved = policy(rewrites=(canary(name="first", target="llama-2"), canary(name="r")))
    with pytest.raises(FleetLacksError, match="'llama-2'"):
        review(moved, WITH_CANARY, FLEET, unheard=())
    (warning,) = review(policy(rewrites=(canary(name="renamed"),)), WITH_CANARY, FLEET, unheard=())
    assert "'next'" in warning


@pytest.mark.parametrize("status", list(ClusterStatus))
def test_a_target_is_known_whatever_the_health_of_the_cluster_that_has_it(status: ClusterStatus):
    fleet = view(cluster("a"), cluster("b", pools=[pool(model="next")], status=status))
    assert review(WITH_CANARY, PLAIN, fleet, unheard=()) == ()


def test_adapters_and_aliases_are_targets_like_others():
    fleet = view(cluster("a", pools=[pool(adapters_loadable=frozenset({"lora"}), model="llama"), pool(model="b")]))
    assert not list(lacking(policy(rewrites=(canary("lora"),)), fleet))
    named = policy(rewrites=(canary("newest"),), models=(ModelPolicy(name="b", aliases=("newest",)),))
    assert not list(lacking(named, fleet))
    assert list(lacking(policy(rewrites=(canary("newest"),)), fleet))


def test_a_tenant_with_one_region_left_is_served():
    assert not list(lacking(policy(tenants=(TenantPolicy(id="t", regions=("mars", "eu")),)), FLEET))
