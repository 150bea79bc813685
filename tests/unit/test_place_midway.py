"""Policies, fleets and runs of canaries change while requests are under way: what is old must not upset what is new."""

import msgspec
import pytest

from gir.model.cluster import ClusterStatus
from gir.model.policy import CanaryGuard, CanaryRule, CanaryTarget, ModelPolicy, PlacementPolicy, RuleMatch
from gir.model.request import Usage
from gir.place import Placer, Rewriter
from gir.place.filters import lasting_reason
from gir.place.roster import PolicyIndex
from gir.place.trial import TrialState
from tests.support.placing import NOW_S, POLICY, cluster, names, plan, policy, pool, principal, request, view

BOTH = view(cluster("a", pools=[pool(), pool(model="next"), pool(model="next-2")]))
PROMPT = tuple(range(1, 13))


def rule(canary: str = "next", weight: int = 50, **fields) -> CanaryRule:
    targets = (CanaryTarget(model="llama", weight=100 - weight), CanaryTarget(model=canary, weight=weight))
    known = {"name": "r", "matches": (RuleMatch(model="llama"),), "targets": targets, "guard": CanaryGuard()}
    return CanaryRule(**(known | fields))


def ask(rewriter: Rewriter, rules, session: str = "s", now_s: float = NOW_S):
    return rewriter.rewrite("llama", [], principal(), session, rules, BOTH, now_s)


def test_a_request_from_before_a_reload_brings_back_no_old_rules():
    rewriter = Rewriter()
    old, new = policy(rewrites=(rule("next"),), version=1), policy(rewrites=(rule("next-2"),), version=2)
    ask(rewriter, old)
    ask(rewriter, new)
    rewriter.trial("r").promote(NOW_S, "ann")
    assert ask(rewriter, old).model == "next-2", "its body was slow to come, and the rules are others now"
    assert rewriter.trial("r").state is TrialState.PROMOTED
    assert ask(rewriter, policy(version=1)).model == "next-2"
    assert rewriter.policy is new


def test_what_an_earlier_run_did_is_not_held_against_the_next():
    rewriter, rules = Rewriter(), policy(rewrites=(rule(),))
    late = [ask(rewriter, rules, f"s{number}") for number in range(100)]
    trial = rewriter.trial("r")
    trial.abort(NOW_S + 5.0, "ann")
    trial.start(NOW_S + 10.0, "ann")
    for each in late:
        rewriter.observe(each, not each.arm, None, NOW_S + 20.0)
    assert trial.state is TrialState.RUNNING
    assert [target["requests"] for target in trial.row(NOW_S)["targets"]] == [0, 0]
    assert trial.tally["next", "error"] > 0, "counters of requests only grow"


def test_what_one_model_did_is_not_held_against_the_next():
    rewriter = Rewriter()
    late = [ask(rewriter, policy(rewrites=(rule("next"),)), f"s{number}") for number in range(100)]
    ask(rewriter, policy(rewrites=(rule("next-2"),), version=8), now_s=NOW_S + 10.0)
    for each in late:
        rewriter.observe(each, not each.arm, None, NOW_S + 20.0)
    assert rewriter.trial("r").state is TrialState.RUNNING


def test_two_policies_at_once_compile_each_roster_once():
    placer, fleet = Placer(), view(cluster("a"), cluster("b"))
    old, new = policy(version=1), policy(version=2)
    rosters = {id(rules): [] for rules in (old, new)}
    for rules in (old, new, old, new, old):
        plan(placer, fleet, policy=rules)
        rosters[id(rules)].append(placer.decisions._kept[-1].roster)
    for kept in rosters.values():
        assert all(each is kept[0] for each in kept)


def test_a_request_from_before_a_reload_costs_nobody_the_index():
    placer, fleet = Placer(), view(cluster("a"), cluster("b"))
    old = policy(version=1, placement=PlacementPolicy(affinity_blocks_max=1_000))
    new = policy(version=2, placement=PlacementPolicy(affinity_blocks_max=2_000))
    for rules in (old, new):
        plan(placer, fleet, policy=rules)
    placer.dispatched(request(prefix_hashes=PROMPT), "a", NOW_S)
    for rules in (old, new):
        plan(placer, fleet, policy=rules)
    assert placer.affinity.match(PROMPT) == {"a": len(PROMPT)}
    assert placer.affinity.blocks_max == 2_000


def test_a_new_price_reorders_tiers_that_no_policy_declares():
    def fleet(price: float, version: int):
        return view(
            cluster("a", tier="x", price_per_slot_hour=price),
            cluster("b", tier="y", price_per_slot_hour=2.0),
            version=version,
        )

    placer, rules = Placer(), policy(tiers=())
    assert [name for name, _ in plan(placer, fleet(1.0, 1), policy=rules).tier_shares] == ["x", "y"]
    assert [name for name, _ in plan(placer, fleet(3.0, 2), policy=rules).tier_shares] == ["y", "x"]


def test_trust_leaves_with_its_cluster_whatever_the_index_has_lost():
    placer = Placer()
    plan(placer, view(cluster("a"), cluster("b")))
    running = placer.dispatched(request(prefix_hashes=PROMPT), "b", NOW_S)
    placer.finished(running, now_s=NOW_S, usage=Usage(prompt_tokens=500, cached_tokens=100), ok=True)
    placer.affinity.clear()
    plan(placer, view(cluster("a"), version=2))
    assert [row["cluster"] for row in placer.status()["clusters"]] == ["a"]


def test_ledgers_of_a_fleet_with_many_pools_are_not_searched_with_every_beat(monkeypatch):
    models = [f"m{number}" for number in range(200)]
    members = [cluster("a", pools=[pool(model=model) for model in models])]
    placer, searched = Placer(), []
    for model in models:
        plan(placer, view(*members), request(model=model))
    forget = placer.loads.forget
    monkeypatch.setattr(type(placer.loads), "forget", lambda _, known: (searched.append(known), forget(known)))
    for version in range(2, 50):
        plan(placer, view(*members, version=version), request(model="m0"))
    assert len(searched) <= 1


def test_the_terms_of_a_cached_prompt_add_up_when_everybody_queues():
    busy = {"slots_free": 0, "waiting": 20}
    placer, fleet = Placer(), view(cluster("a", load=busy), cluster("b", load=busy))
    asked = request(prefix_hashes=PROMPT, prompt_tokens_estimate=6_000)
    placer.dispatched(asked, "a", NOW_S)
    told = plan(placer, fleet, asked, explain=True)
    for each in told.ranked:
        assert sum(term.seconds for term in each.terms) == pytest.approx(each.score_s)
    (affinity,) = [term for each in told.ranked for term in each.terms if term.name == "affinity"]
    assert "more while the others queue" in affinity.detail


def test_an_adapter_of_another_pool_is_not_asked_of_the_one_with_the_other_base():
    fleet = view(
        cluster("a", pools=[pool(adapters_resident=frozenset({"lora"}))]),
        cluster("b", pools=[pool(), pool(model="mistral", adapters_resident=frozenset({"lora"}))]),
    )
    asked = request(model="lora")
    index = PolicyIndex(POLICY)
    assert names(plan(Placer(), fleet, asked)) == ["a"]
    assert lasting_reason(fleet.clusters[1], index.kind_of(asked), index, fleet) is not None


@pytest.mark.parametrize("pinned", [None, "narrow"])
def test_a_prompt_that_seems_too_long_goes_to_the_only_cluster_there_is(pinned):
    status = ClusterStatus.HEALTHY if pinned else ClusterStatus.SUSPECT
    members = [cluster("narrow", load={"context_tokens_max": 2_000}, status=status)]
    if pinned:
        members.append(cluster("wide"))
    placement = plan(Placer(), view(*members), request(prompt_tokens_estimate=9_000, cluster_pinned=pinned))
    assert names(placement) == ["narrow"]
    assert placement.reason == "longest_context"


def test_meeting_the_objective_nowhere_moves_nobody_for_its_sake():
    rules = policy(models=(ModelPolicy(name="llama", ttft_objective_s=0.001),))
    fleet = view(cluster("near", rtt_s=0.03), cluster("far", tier="on_demand", rtt_s=0.3))
    asked = msgspec.structs.replace(request(), criticality=1)
    assert plan(Placer(), fleet, asked, policy=rules).reason == "cheapest"
