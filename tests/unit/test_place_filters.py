"""Who may serve a request, who may not, and which filter says so."""

import pytest

from gir.model.cluster import ClusterStatus, Intent
from gir.model.policy import ClusterPolicy, PlacementPolicy, TenantPolicy, TierPolicy
from gir.model.request import Criticality
from gir.place import Placer
from tests.support.placing import NOW_S, cluster, names, plan, policy, pool, principal, request, view, why

CASES = [
    ("model", {"pools": [pool(model="other")]}),
    ("intent", {"intent": Intent.DRAIN}),
    ("intent", {"intent": Intent.MAINTENANCE}),
    ("state", {"status": ClusterStatus.DEAD}),
    ("state", {"status": ClusterStatus.UNKNOWN}),
    ("weight", {"weight": 0.0}),
    ("capacity", {"load": {"slots_total": 0, "slots_free": 0}}),
    ("context", {"load": {"context_tokens_max": 100}}),
    ("backoff", {"backoff_until_s": NOW_S + 5.0}),
]


@pytest.mark.parametrize(("reason", "fields"), CASES)
def test_a_cluster_that_fails_a_filter_is_removed_with_its_reason(reason, fields):
    placement = plan(Placer(), view(cluster("bad", **fields), cluster("good")), explain=True)
    assert names(placement) == ["good"]
    assert why(placement) == {"bad": reason}


@pytest.mark.parametrize(("reason", "fields"), [case for case in CASES if case[0] not in ("model", "context")])
def test_when_the_only_cluster_fails_a_filter_nobody_is_named(reason, fields):
    placement = plan(Placer(), view(cluster("bad", **fields)))
    assert placement.ranked == ()
    assert why(placement) == {"bad": reason}
    assert placement.model_known
    assert not placement.forbidden


def test_a_model_nobody_ever_reported_is_unknown_rather_than_unavailable():
    placement = plan(Placer(), view(cluster("a")), request(model="nope"))
    assert not placement.model_known
    assert placement.ranked == ()


def test_back_pressure_names_the_earliest_recovery():
    fleet = view(cluster("a", backoff_until_s=NOW_S + 7.0), cluster("b", backoff_until_s=NOW_S + 3.0))
    assert plan(Placer(), fleet).retry_after_s == pytest.approx(3.0)
    assert names(plan(Placer(), fleet, now_s=NOW_S + 3.0)) == ["b"]


def test_back_pressure_takes_away_no_room_while_a_ramp_does():
    def free(**fields):
        slots = {"slots_total": 40, "slots_free": 20}
        return Placer().slots(request(), view(cluster("a", load=slots, **fields)), policy(), now_s=NOW_S)

    assert free(weight=0.1, pressure=0.1) == (40, 20), "how many are free is for the beats to say"
    assert free(weight=0.75) == (40, 10)
    assert free(weight=0.375, pressure=0.5) == (40, 10)


def test_clusters_already_tried_are_not_named_again():
    fleet = view(cluster("a"), cluster("b"))
    assert names(plan(Placer(), fleet, tried=frozenset({"a"}))) == ["b"]
    assert plan(Placer(), fleet, tried=frozenset({"a", "b"})).ranked == ()


@pytest.mark.parametrize(
    ("fields", "somewhere"),
    [
        ({}, True),
        ({"region": "us"}, False),
        ({"id": "reserved"}, False),
        ({"status": ClusterStatus.SUSPECT}, False),
        ({"status": ClusterStatus.DEAD}, False),
        ({"probation": True}, False),
        ({"backoff_until_s": NOW_S + 1.0}, False),
        ({"pools": [pool(model="other")]}, False),
    ],
)
def test_elsewhere_is_a_healthy_cluster_that_may_serve_this_request(fields, somewhere):
    fleet = view(cluster("lost", status=ClusterStatus.SUSPECT), cluster("other", **fields))
    rules = policy(clusters=(ClusterPolicy(id="reserved", tenants=("somebody-else",)),))
    asked = request(principal=principal(regions_allowed=frozenset({"eu"})))
    tried = frozenset({"lost"})
    assert Placer().elsewhere(asked, fleet, rules, now_s=NOW_S, tried=tried) is somewhere
    assert not Placer().elsewhere(asked, fleet, rules, now_s=NOW_S, tried=tried | {"other", "reserved"})


def test_residency_of_the_credential_is_a_hard_filter():
    fleet = view(cluster("eu"), cluster("us", region="us", rtt_s=0.001))
    asked = request(principal=principal(regions_allowed=frozenset({"eu"})))
    placement = plan(Placer(), fleet, asked, explain=True)
    assert names(placement) == ["eu"]
    assert why(placement) == {"us": "residency"}


def test_residency_of_the_tenant_narrows_that_of_the_credential():
    fleet = view(cluster("eu"), cluster("us", region="us"))
    rules = policy(tenants=(TenantPolicy(id="acme", regions=("eu",)),))
    asked = request(principal=principal(regions_allowed=frozenset({"us"})))
    placement = plan(Placer(), fleet, asked, policy=rules)
    assert placement.ranked == ()
    assert placement.forbidden


def test_a_request_is_refused_rather_than_moved_out_of_its_region_when_the_region_is_down():
    fleet = view(cluster("eu", status=ClusterStatus.DEAD), cluster("us", region="us"), fail_open=False)
    asked = request(principal=principal(regions_allowed=frozenset({"eu"})))
    placement = plan(Placer(), fleet, asked)
    assert placement.ranked == ()
    assert why(placement) == {"eu": "state", "us": "residency"}
    assert not placement.forbidden, "its own Region is down: that is 503, not 403"


def test_a_cluster_reserved_for_tenants_serves_only_them():
    fleet = view(cluster("a"), cluster("b"))
    rules = policy(clusters=(ClusterPolicy(id="b", tenants=("other",)),))
    assert why(plan(Placer(), fleet, policy=rules, explain=True)) == {"b": "tenant"}
    asked = request(principal=principal(tenant="other"))
    assert sorted(names(plan(Placer(), fleet, asked, policy=rules))) == ["a", "b"]


def test_a_tier_may_be_closed_to_lower_classes():
    fleet = view(cluster("cheap"), cluster("dear", tier="on_demand"))
    tiers = (
        TierPolicy(name="reserved", price_per_slot_hour=1.0),
        TierPolicy(name="on_demand", price_per_slot_hour=3.0, criticality_min="standard"),
    )
    shed = plan(Placer(), fleet, request(criticality=Criticality.SHEDDABLE), policy=policy(tiers=tiers), explain=True)
    assert why(shed) == {"dear": "tier"}
    assert len(plan(Placer(), fleet, policy=policy(tiers=tiers)).ranked) == 2


def test_the_operators_tier_overrides_the_reported_one():
    fleet = view(cluster("a"), cluster("b"))
    rules = policy(clusters=(ClusterPolicy(id="a", tier="on_demand"),))
    placement = plan(Placer(), fleet, policy=rules)
    assert {each.cluster: each.tier for each in placement.ranked} == {"a": "on_demand", "b": "reserved"}
    assert names(placement)[0] == "b"


def test_a_pinned_request_goes_there_or_nowhere():
    fleet = view(cluster("a"), cluster("b", status=ClusterStatus.DEAD))
    there = plan(Placer(), fleet, request(cluster_pinned="a"))
    assert names(there) == ["a"]
    assert there.reason == "pinned"
    dead = plan(Placer(), fleet, request(cluster_pinned="b"))
    assert dead.ranked == ()
    assert why(dead) == {"a": "pin", "b": "state"}
    assert not dead.forbidden
    nobody = plan(Placer(), fleet, request(cluster_pinned="c"))
    assert nobody.forbidden


def test_a_pin_outside_the_allowed_regions_is_forbidden():
    fleet = view(cluster("eu"), cluster("us", region="us"))
    asked = request(cluster_pinned="us", principal=principal(regions_allowed=frozenset({"eu"})))
    placement = plan(Placer(), fleet, asked)
    assert placement.ranked == ()
    assert placement.forbidden


def test_a_request_that_crossed_too_many_routers_is_a_loop():
    placement = plan(Placer(), view(cluster("a")), request(hops=2))
    assert placement.ranked == ()
    assert placement.reason.startswith("loop")
    assert names(plan(Placer(), view(cluster("a")), request(hops=1))) == ["a"]


def test_suspect_clusters_serve_only_when_nobody_else_can():
    fleet = view(cluster("near", status=ClusterStatus.SUSPECT, rtt_s=0.001), cluster("far", rtt_s=0.3))
    assert names(plan(Placer(), fleet)) == ["far"]
    last = plan(Placer(), fleet, tried=frozenset({"far"}))
    assert names(last) == ["near"]
    assert last.reason == "last_resort"


def test_a_view_that_fails_open_excludes_nobody_for_health_but_obeys_operators_and_residency():
    fleet = view(
        cluster("dead", status=ClusterStatus.DEAD),
        cluster("suspect", status=ClusterStatus.SUSPECT),
        cluster("drained", status=ClusterStatus.DEAD, intent=Intent.DRAIN),
        cluster("abroad", status=ClusterStatus.DEAD, region="us"),
        fail_open=True,
    )
    asked = request(principal=principal(regions_allowed=frozenset({"eu"})))
    placement = plan(Placer(), fleet, asked)
    assert sorted(names(placement)) == ["dead", "suspect"]
    assert placement.reason == "fail_open"


def test_the_longest_context_judges_a_request_that_seems_to_fit_nowhere():
    fleet = view(cluster("a", load={"context_tokens_max": 8_000}), cluster("b", load={"context_tokens_max": 32_000}))
    placement = plan(Placer(), fleet, request(prompt_tokens_estimate=50_000))
    assert names(placement) == ["b"]
    assert placement.reason == "longest_context"


def test_the_output_cap_counts_against_the_context():
    fleet = view(cluster("a", load={"context_tokens_max": 8_000}), cluster("b"))
    asked = request(prompt_tokens_estimate=7_000, output_tokens_max=2_000)
    assert names(plan(Placer(), fleet, asked)) == ["b"]


def test_probation_is_flagged_on_the_candidate():
    placement = plan(Placer(), view(cluster("a", probation=True), cluster("b")))
    assert {each.cluster: each.probation for each in placement.ranked} == {"a": True, "b": False}


def test_hop_limit_is_the_policys():
    rules = policy(placement=PlacementPolicy(hops_max=1))
    assert plan(Placer(), view(cluster("a")), request(hops=1), policy=rules).ranked == ()
