"""Aliases and canaries: who is served by which model, and what an operator can do about it."""

import pytest

from gir.model.cluster import ClusterStatus, Intent
from gir.model.errors import RequestError
from gir.model.policy import (
    CanaryGuard,
    CanaryRule,
    CanaryTarget,
    ClusterPolicy,
    HeaderMatch,
    ModelPolicy,
    RuleMatch,
    TenantPolicy,
    TierPolicy,
)
from gir.model.request import Criticality
from gir.place import Rewriter
from tests.support.placing import NOW_S, TIERS, cluster, policy, pool, principal, view

BOTH = view(cluster("a", pools=[pool(), pool(model="llama-next")]))


def split(weight: int = 10, **fields) -> CanaryRule:
    known = {
        "name": "next",
        "matches": (RuleMatch(model="llama"),),
        "targets": (CanaryTarget(model="llama", weight=100 - weight), CanaryTarget(model="llama-next", weight=weight)),
    }
    return CanaryRule(**(known | fields))


def ask(rewriter: Rewriter, rule: CanaryRule | None, *, model="llama", session=None, headers=(), now_s=NOW_S, **more):
    caller = more.pop("caller", None) or principal()
    fleet = more.pop("fleet", BOTH)
    rules = more.pop("policy", None) or policy(rewrites=(rule,) if rule else ())
    return rewriter.rewrite(model, headers, caller, session, rules, fleet, now_s, **more)


def test_a_model_without_rules_is_left_alone():
    assert ask(Rewriter(), None).model == "llama"
    assert ask(Rewriter(), None).note == ""


def test_an_alias_is_another_name():
    rules = policy(models=(ModelPolicy(name="llama", aliases=("gpt-4", "default")),))
    assert ask(Rewriter(), None, model="gpt-4", policy=rules).model == "llama"
    assert ask(Rewriter(), None, model="default", policy=rules).model == "llama"
    assert ask(Rewriter(), None, model="other", policy=rules).model == "other"


def test_a_rule_on_a_model_also_catches_its_aliases():
    rules = policy(models=(ModelPolicy(name="llama", aliases=("gpt-4",)),), rewrites=(split(100),))
    assert ask(Rewriter(), None, model="gpt-4", policy=rules).model == "llama-next"


def test_a_callers_assignment_is_stable_and_says_why():
    rewriter, rules = Rewriter(), policy(rewrites=(split(50),))
    first = ask(rewriter, None, policy=rules, session="chat-1")
    assert first.note.startswith("rule=next draw=0.")
    assert first.note.endswith(f"-> {first.target}")
    for step in range(20):
        assert ask(rewriter, None, policy=rules, session="chat-1", now_s=NOW_S + step).model == first.model
    assert ask(Rewriter(), None, policy=rules, session="chat-1").model == first.model, "another replica agrees"


def test_without_a_session_the_credential_is_the_unit():
    rewriter, rules = Rewriter(), policy(rewrites=(split(50),))
    models = {ask(rewriter, None, policy=rules, caller=principal(key_id=f"k{number}")).model for number in range(40)}
    assert models == {"llama", "llama-next"}


def test_a_target_no_live_cluster_reports_gets_nothing():
    rule = split(100)
    assert ask(Rewriter(), rule, fleet=view(cluster("a"))).model == "llama"
    pools = [pool(model="llama-next")]
    dead = view(cluster("a"), cluster("b", pools=pools, status=ClusterStatus.DEAD))
    drained = view(cluster("a"), cluster("b", pools=pools, intent=Intent.DRAIN))
    for fleet in (dead, drained):
        got = ask(Rewriter(), rule, fleet=fleet)
        assert got.model == "llama"
        assert "no live cluster" in got.note
    assert ask(Rewriter(), rule, fleet=view(cluster("a"), cluster("b", pools=pools))).model == "llama-next"


@pytest.mark.parametrize(
    ("lab", "rules"),
    [
        ({"region": "us"}, {"tenants": (TenantPolicy(id="acme", regions=("eu",)),)}),
        ({}, {"clusters": (ClusterPolicy(id="lab", tenants=("else",)),)}),
        ({"pools": [pool(model="llama-next", slots_total=0, slots_free=0, pods_ready=0, pods_warming=2)]}, {}),
        ({"weight": 0.0}, {}),
    ],
    ids=["kept to another Region", "reserved for others", "still warming", "ejected"],
)
def test_a_caller_whom_no_cluster_may_serve_the_canary_stays_with_the_stable_target(lab, rules):
    fleet = view(cluster("a"), cluster("lab", **({"pools": [pool(model="llama-next")]} | lab)))
    got = ask(Rewriter(), None, fleet=fleet, policy=policy(rewrites=(split(100),), **rules))
    assert got.model == "llama"
    assert "no live cluster for this caller" in got.note


def test_a_cluster_given_to_somebody_else_is_out_of_reach_at_once():
    fleet = view(cluster("a"), cluster("lab", pools=[pool(model="llama-next")]))
    mine, theirs = [
        policy(rewrites=(split(100),), clusters=(ClusterPolicy(id="lab", tenants=(tenant,)),))
        for tenant in ("acme", "else")
    ]
    rewriter = Rewriter()
    assert ask(rewriter, None, fleet=fleet, policy=mine).model == "llama-next"
    assert ask(rewriter, None, fleet=fleet, policy=theirs).model == "llama", "with the same view, no beat between"


def test_residency_of_the_credential_keeps_a_caller_off_a_canary_elsewhere():
    fleet = view(cluster("a"), cluster("lab", region="us", pools=[pool(model="llama-next")]))
    rewriter, rules = Rewriter(), policy(rewrites=(split(100),))
    assert ask(rewriter, None, fleet=fleet, policy=rules).model == "llama-next"
    kept = principal(regions_allowed=frozenset({"eu"}))
    assert ask(rewriter, None, fleet=fleet, policy=rules, caller=kept).model == "llama"
    assert ask(rewriter, None, fleet=fleet, policy=rules).model == "llama-next"


def test_a_class_that_the_canarys_only_tier_is_closed_to_stays_with_the_stable_target():
    fleet = view(cluster("a"), cluster("lab", tier="gold", pools=[pool(model="llama-next")]))
    gold = TierPolicy(name="gold", price_per_slot_hour=9.0, criticality_min="standard")
    rewriter, rules = Rewriter(), policy(tiers=(*TIERS, gold), rewrites=(split(100),))
    got = ask(rewriter, None, fleet=fleet, policy=rules, criticality=Criticality.SHEDDABLE)
    assert got.model == "llama"
    assert "no live cluster for this caller" in got.note
    assert ask(rewriter, None, fleet=fleet, policy=rules, criticality=Criticality.STANDARD).model == "llama-next"
    cheap = principal(criticality_default=Criticality.SHEDDABLE)
    assert ask(rewriter, None, fleet=fleet, policy=rules, caller=cheap).model == "llama", "nobody said a class"


def test_an_exact_match_comes_before_one_that_matches_any_model():
    general = split(name="all", matches=(RuleMatch(),), targets=(CanaryTarget(model="other"),))
    rules = policy(rewrites=(general, split(0)))
    assert ask(Rewriter(), None, policy=rules).rule == "next"
    assert ask(Rewriter(), None, policy=rules, model="mistral").model == "other"


@pytest.mark.parametrize("model", ["llama", None], ids=["naming the model", "matching any"])
def test_of_two_rules_that_match_alike_the_earlier_one_wins(model):
    matches = (RuleMatch(model=model),)
    one = split(name="one", matches=matches, targets=(CanaryTarget(model="first"),))
    two = split(name="two", matches=matches, targets=(CanaryTarget(model="second"),))
    assert ask(Rewriter(), None, policy=policy(rewrites=(one, two))).rule == "one"
    assert ask(Rewriter(), None, policy=policy(rewrites=(two, one))).rule == "two"


def test_a_reload_that_raises_the_weight_keeps_results_and_moves_nobody_off():
    rewriter, before, after = Rewriter(), policy(rewrites=(split(10),)), policy(rewrites=(split(30),))
    first = [ask(rewriter, None, policy=before, session=f"s{number}") for number in range(2_000)]
    for each in first[:100]:
        rewriter.observe(each, True, 0.1, NOW_S)
    second = [ask(rewriter, None, policy=after, session=f"s{number}") for number in range(2_000)]
    assert all(two.arm for one, two in zip(first, second, strict=True) if one.arm)
    assert sum(each.arm for each in second) / 2_000 == pytest.approx(0.3, abs=0.03)
    assert sum(target["requests"] for target in rewriter.trial("next").row(NOW_S)["targets"]) == 100


def test_header_conditions_must_all_hold():
    rule = split(100, matches=(RuleMatch(model="llama", headers=(HeaderMatch(name="X-Beta", value="yes"),)),))
    assert ask(Rewriter(), rule).model == "llama"
    assert ask(Rewriter(), rule, headers=[(b"x-beta", b"no")]).model == "llama"
    assert ask(Rewriter(), rule, headers=[(b"x-beta", b"yes")]).model == "llama-next"


def test_a_tester_chooses_by_header_and_others_cannot():
    wish = [(b"x-gir-canary", b"llama-next")]
    rule = split(0, testers=("qa",))
    assert ask(Rewriter(), rule, headers=wish).model == "llama"
    assert ask(Rewriter(), rule, headers=wish, caller=principal(trusted=True)).model == "llama-next"
    chosen = ask(Rewriter(), rule, headers=wish, caller=principal(tenant="qa"))
    assert chosen.model == "llama-next"
    assert "override" in chosen.note


def test_a_testers_wish_for_no_target_of_the_rule_is_refused_by_name():
    with pytest.raises(RequestError, match="use one of llama, llama-next"):
        ask(Rewriter(), split(0), headers=[(b"x-gir-canary", b"typo")], caller=principal(trusted=True))


def test_a_dry_run_draws_and_serves_by_the_stable_target():
    got = ask(Rewriter(), split(100, dry_run=True))
    assert (got.model, got.target) == ("llama", "llama-next")
    assert "dry run" in got.note


def test_unweighted_targets_share_equally():
    rule = split(targets=(CanaryTarget(model="llama"), CanaryTarget(model="llama-next")))
    rewriter, rules = Rewriter(), policy(rewrites=(rule,))
    won = sum(ask(rewriter, None, policy=rules, session=f"s{number}").arm for number in range(4_000))
    assert won / 4_000 == pytest.approx(0.5, abs=0.03)


def test_promote_and_abort_move_everybody_and_are_on_record():
    rewriter, rules = Rewriter(), policy(rewrites=(split(10),))
    ask(rewriter, None, policy=rules)
    rewriter.trial("next").promote(NOW_S, "ann")
    assert {ask(rewriter, None, policy=rules, session=f"s{n}").model for n in range(50)} == {"llama-next"}
    rewriter.trial("next").abort(NOW_S + 1.0, "bob", "wrong answers")
    assert {ask(rewriter, None, policy=rules, session=f"s{n}").model for n in range(50)} == {"llama"}
    assert [(event.action, event.by) for event in rewriter.take_events()] == [("promote", "ann"), ("abort", "bob")]
    assert rewriter.take_events() == []
    rewriter.trial("next").start(NOW_S + 2.0, "ann")
    assert {ask(rewriter, None, policy=rules, session=f"s{n}").model for n in range(99)} == {"llama", "llama-next"}


def test_reloading_an_unchanged_rule_does_not_revive_an_aborted_canary():
    rewriter = Rewriter()
    ask(rewriter, split(100))
    rewriter.trial("next").abort(NOW_S, "ann")
    assert ask(rewriter, None, policy=policy(rewrites=(split(100),), version=8)).model == "llama"
    assert (
        ask(rewriter, None, policy=policy(rewrites=(split(100, guard=CanaryGuard()),), version=9)).model == "llama-next"
    )


def test_a_rule_that_left_the_policy_is_forgotten():
    rewriter = Rewriter()
    ask(rewriter, split(100))
    assert ask(rewriter, None).model == "llama"
    with pytest.raises(KeyError, match="there are: none"):
        rewriter.trial("next")


def test_a_plan_raises_the_weight_step_by_step():
    rule = split(plan=((0.0, 0), (60.0, 50), (120.0, 100)))
    rewriter, rules = Rewriter(), policy(rewrites=(rule,))

    def share(now_s: float) -> float:
        return sum(ask(rewriter, None, policy=rules, session=f"s{n}", now_s=now_s).arm for n in range(1_000)) / 1_000

    assert share(NOW_S) == 0.0
    assert share(NOW_S + 59.0) == 0.0
    assert share(NOW_S + 60.0) == pytest.approx(0.5, abs=0.05)
    assert share(NOW_S + 121.0) == 1.0
    assert [event.action for event in rewriter.take_events()] == ["stage", "stage"]


def test_a_guarded_plan_waits_for_results_before_it_goes_on():
    rule = split(plan=((0.0, 10), (60.0, 100)), guard=CanaryGuard())
    rewriter, rules = Rewriter(), policy(rewrites=(rule,))
    ask(rewriter, None, policy=rules)
    rewriter.tick(NOW_S + 100.0)
    assert rewriter.trial("next").stage == 0
    seen = 0
    for number in range(400):
        got = ask(rewriter, None, policy=rules, session=f"s{number}", now_s=NOW_S + 100.0)
        rewriter.observe(got, True, 0.2, NOW_S + 100.0)
        seen += got.arm
        if seen >= 20:
            break
    rewriter.tick(NOW_S + 101.0)
    assert rewriter.trial("next").stage == 1


def test_the_plan_of_an_aborted_canary_goes_no_further():
    rewriter, rules = Rewriter(), policy(rewrites=(split(plan=((0.0, 10), (60.0, 100))),))
    ask(rewriter, None, policy=rules)
    rewriter.trial("next").abort(NOW_S + 30.0, "ann")
    rewriter.tick(NOW_S + 120.0)
    assert {ask(rewriter, None, policy=rules, session=f"s{n}", now_s=NOW_S + 121.0).model for n in range(50)} == {
        "llama"
    }
    assert [event.action for event in rewriter.take_events()] == ["abort"]


def test_of_several_canaries_any_bad_one_ends_the_trial():
    targets = tuple(CanaryTarget(model=name, weight=10) for name in ("llama", "llama-next", "llama-third"))
    fleet = view(cluster("a", pools=[pool(model=target.model) for target in targets]))
    rewriter, rules = Rewriter(), policy(rewrites=(split(targets=targets, guard=CanaryGuard()),))
    for number in range(400):
        got = ask(rewriter, None, policy=rules, session=f"s{number}", fleet=fleet, now_s=NOW_S + number * 0.1)
        rewriter.observe(got, got.arm != 2, 0.1, NOW_S + number * 0.1)
    assert rewriter.trial("next").state.value == "aborted"


def test_a_question_counts_for_nothing_and_crowds_nobody_out():
    rewriter, rules = Rewriter(), policy(rewrites=(split(50, guard=CanaryGuard()),))
    waiting = [ask(rewriter, None, policy=rules, session=f"s{number}") for number in range(60)]
    assert sum(each.arm for each in waiting) >= 20
    for number in range(2_000):
        asked = (rewriter, "llama", [], principal(), f"q{number}", rules, BOTH, NOW_S)
        rewriter.observe(Rewriter.rewrite(*asked, explain=True), False, None, NOW_S)
    assert rewriter.trial("next").tally == {}
    for number in range(60):
        got = ask(rewriter, None, policy=rules, session=f"c{number}", now_s=NOW_S + 60.0)
        if not got.arm:
            rewriter.observe(got, True, 0.1, NOW_S + 60.0)
    rewriter.tick(NOW_S + 62.0)
    assert rewriter.trial("next").state.value == "aborted", "requests that hang are still remembered"


def test_status_rows_tell_share_requests_and_errors():
    rewriter, rules = Rewriter(), policy(rewrites=(split(25),))
    for number in range(40):
        rewriter.observe(ask(rewriter, None, policy=rules, session=f"s{number}"), number % 4 == 0, 0.1, NOW_S)
    row = rewriter.trial("next").row(NOW_S + 10.0)
    assert row["state"] == "running"
    assert [target["share"] for target in row["targets"]] == [0.75, 0.25]
    assert sum(target["requests"] for target in row["targets"]) == 40
    assert sum(target["errors"] for target in row["targets"]) == 30
