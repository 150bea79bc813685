"""Every knob of placement, of its tiers and of a canary's guard changes where somebody goes.

An option that nothing reads is believed in by whoever sets it. So each field has a scenario here whose outcome differs
between the field's default and another value, and a field without one fails the first test.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gir.model.policy import (
    CanaryGuard,
    CanaryRule,
    CanaryTarget,
    ClusterPolicy,
    PlacementPolicy,
    PolicySnapshot,
    RuleMatch,
    ScoreWeights,
    TierPolicy,
)
from gir.model.policy.base import Section
from gir.model.request import Criticality
from gir.place import Placer, Rewriter
from tests.support.placing import NOW_S, TIERS, cluster, names, plan, policy, pool, principal, request, view

Outcome = Callable[[Any], object]
TURN = request(prefix_hashes=tuple(range(1, 45)), prompt_tokens_estimate=5_600)
HOLDS = {"adapters_resident": frozenset({"lora"})}
LOADS = {"adapters_loadable": frozenset({"lora"})}
FULL = {"slots_free": 0, "waiting": 2}


def first(rules: PlacementPolicy, *members: Any, asked: Any = None, placer: Placer | None = None) -> str:
    return names(plan(placer or Placer(), view(*members), asked, policy=policy(placement=rules)))[0]


def far_or_loaded(load: dict[str, Any], far_s: float, **near: Any) -> Outcome:
    """A cluster at hand with something against it, or one farther away without."""
    return lambda rules: first(rules, cluster("near", load=load, **near), cluster("far", rtt_s=far_s))


def to_holder(rtt_s: float, asked: Any = TURN) -> Outcome:
    """Whoever has the conversation is `rtt_s` away."""

    def outcome(rules: PlacementPolicy) -> str:
        placer = Placer()
        placer.finished(placer.dispatched(asked, "holder", NOW_S - 60.0), now_s=NOW_S - 50.0, usage=None, ok=True)
        return first(rules, cluster("near"), cluster("holder", rtt_s=rtt_s), asked=asked, placer=placer)

    return outcome


def nobody_has_room(rules: PlacementPolicy) -> str:
    """Whoever holds the adapter has the longer queue, by three quarters of a second."""
    holder = cluster("holds", load={**FULL, "waiting": 5, **HOLDS})
    return first(rules, cluster("loads", load={**FULL, **LOADS}), holder, asked=request(model="lora"))


def home_of_many(rules: PlacementPolicy) -> list[str]:
    """Where prompts nobody has seen go while the home of one of them carries a little more than the others."""
    placer = Placer()
    cold = [request(prefix_hashes=tuple(range(seed, seed + 40)), prompt_tokens_estimate=5_600) for seed in range(40)]
    for number in range(5):
        placer.dispatched(request(f"r{number}"), "a", NOW_S)
    fleet, rules_in_force = view(*(cluster(name) for name in "abc")), policy(placement=rules)
    return [names(plan(placer, fleet, each, policy=rules_in_force))[0] for each in cold]


def near_ties(*others: Any) -> Outcome:
    pair = (cluster("busy", rtt_s=0.200, load={"slots_free": 8}), cluster("calm", rtt_s=0.220, load={"slots_free": 12}))
    return lambda rules: first(rules, *pair, *others)


def crossed_two_routers(rules: PlacementPolicy) -> bool:
    return bool(plan(Placer(), view(cluster("a")), request(hops=2), policy=policy(placement=rules)).ranked)


def share_after(seconds: float, load_s: float, free: int) -> Outcome:
    """Share of the cheap tier some time after pressure on it has ended, `free` of 16 slots being free again."""

    def outcome(rules: PolicySnapshot) -> float:
        placer = Placer()
        for step in range(int(load_s + seconds)):
            room = 0 if step < load_s else free
            fleet = view(cluster("cheap", load={"slots_free": room}), cluster("dear", tier="on_demand"))
            placement = plan(placer, fleet, policy=rules, now_s=NOW_S + step)
        return round(dict(placement.tier_shares)["reserved"], 3)

    return outcome


def back_home(rules: PlacementPolicy) -> object:
    return share_after(20.0, 30.0, 14)(policy(placement=rules))


def weights(scenario: Outcome) -> Outcome:
    return lambda value: scenario(PlacementPolicy(weights=value))


def tier(scenario: Outcome) -> Outcome:
    return lambda value: scenario(policy(tiers=(value, TIERS[1])))


def spilled_at(free: int) -> Outcome:
    def outcome(rules: PolicySnapshot) -> object:
        fleet = view(cluster("cheap", load={"slots_free": free}), cluster("dear", tier="on_demand"))
        return plan(Placer(), fleet, policy=rules).tier_shares

    return outcome


def who_may(rules: PolicySnapshot) -> list[str]:
    fleet = view(cluster("cheap"), cluster("dear", tier="on_demand"))
    return names(plan(Placer(), fleet, request(criticality=Criticality.SHEDDABLE), policy=rules))


def named(rules: PolicySnapshot) -> list[str]:
    """A tier that nobody reports leaves the fleet's own behind all declared ones."""
    return names(plan(Placer(), view(cluster("cheap"), cluster("dear", tier="on_demand")), policy=rules))


def price(rules: PolicySnapshot) -> list[float]:
    """Prices are what `gir-chaos sim` and an explanation reckon with; the declared order decides."""
    fleet = view(cluster("cheap"), cluster("dear", tier="on_demand"))
    return [each.price_per_slot_hour for each in plan(Placer(), fleet, policy=rules, explain=True).tiers]


def aborted_after(*, error_rate: float = 0.0, slower: float = 1.0, every_s: float = 0.05, sound: int = 0) -> Outcome:
    """Canary requests until the guard ends the trial; 0 when it never does. The first `sound` are well served."""

    def outcome(guard: CanaryGuard) -> int:
        targets = (CanaryTarget(model="llama", weight=50), CanaryTarget(model="next", weight=50))
        rule = CanaryRule(name="r", matches=(RuleMatch(model="llama"),), targets=targets, guard=guard)
        rules, fleet = policy(rewrites=(rule,)), view(cluster("a", pools=[pool(), pool(model="next")]))
        rewriter, chance, canary = Rewriter(), random.Random(5), 0
        for number in range(400):
            now_s = NOW_S + number * every_s
            got = rewriter.rewrite("llama", [], principal(), f"s{number}", rules, fleet, now_s)
            canary += got.arm
            bad = got.arm and canary > sound
            ok = chance.random() >= (error_rate if bad else 0.0)
            ttft_s = chance.lognormvariate(-1.0, 0.3) * (slower if bad else 1.0)
            rewriter.observe(got, ok, ttft_s if ok else None, now_s)
            if rewriter.trial("r").state.value == "aborted":
                return canary
        return 0

    return outcome


KNOBS: dict[type[Section], dict[str, tuple[Any, Outcome]]] = {
    PlacementPolicy: {
        "weights": (ScoreWeights(rtt=0.0), far_or_loaded({"waiting": 1, "slots_free": 0}, 0.8)),
        "prefill_tokens_per_s_default": (500.0, far_or_loaded({"prefill_tokens_per_s": None}, 0.3)),
        "service_rate_per_s_default": (
            100.0,
            far_or_loaded({"waiting": 3, "slots_free": 0, "service_rate_per_s": None}, 0.3),
        ),
        "rtt_default_s": (0.4, far_or_loaded({}, 0.2, rtt_s=None)),
        "bounded_load": (10.0, home_of_many),
        "affinity_blocks_max": (0, to_holder(0.25)),
        "affinity_max_s": (0.01, to_holder(0.25)),
        "session_bonus_s": (0.0, to_holder(0.2, request(session_key="s"))),
        "error_rate_tolerated": (0.6, far_or_loaded({"error_rate": 0.5}, 0.1)),
        "error_penalty_s": (0.0, far_or_loaded({"error_rate": 0.5}, 0.1)),
        "adapter_load_s": (0.1, nobody_has_room),
        "tie_share": (0.3, near_ties()),
        "hops_max": (3, crossed_two_routers),
        "return_within_s": (10.0, back_home),
    },
    ScoreWeights: {
        "rtt": (0.0, weights(far_or_loaded({"waiting": 1, "slots_free": 0}, 0.8))),
        "queue": (0.2, weights(far_or_loaded({"waiting": 1, "slots_free": 0}, 0.4))),
        "prefill": (5.0, weights(far_or_loaded({"prefill_tokens_per_s": 5_000.0}, 0.3))),
        "error": (0.0, weights(far_or_loaded({"error_rate": 0.5}, 0.1))),
        "affinity": (0.0, weights(to_holder(0.25))),
        "session": (0.0, weights(to_holder(0.2, request(session_key="s")))),
        "adapter": (0.0, weights(nobody_has_room)),
    },
    TierPolicy: {
        "name": ("spot", tier(named)),
        "price_per_slot_hour": (9.0, tier(price)),
        "spill_at": (0.24, tier(spilled_at(3))),
        "return_at": (0.9, tier(share_after(12.0, 30.0, 10))),
        "criticality_min": ("standard", tier(who_may)),
    },
    CanaryGuard: {
        "error_rate_over_control_max": (0.4, aborted_after(error_rate=0.3)),
        "ttft_p95_ratio_max": (4.0, aborted_after(slower=3.0)),
        "samples_min": (50, aborted_after(error_rate=0.5)),
        "window_s": (1.0, aborted_after(error_rate=0.15, sound=110)),
    },
}
BASE: dict[type[Section], dict[str, Any]] = {TierPolicy: {"name": "reserved", "price_per_slot_hour": 1.0}}
CASES = [(section, name) for section, knobs in KNOBS.items() for name in knobs]


@pytest.mark.parametrize("section", KNOBS, ids=lambda section: section.__name__)
def test_no_knob_is_forgotten(section: type[Section]) -> None:
    assert set(KNOBS[section]) == set(section.__struct_fields__)


@pytest.mark.parametrize(("section", "name"), CASES, ids=[f"{section.__name__}.{name}" for section, name in CASES])
def test_the_knob_changes_where_somebody_goes(section: type[Section], name: str) -> None:
    other, scenario = KNOBS[section][name]
    usual = section(**BASE.get(section, {}))
    assert scenario(usual) != scenario(msgspec.structs.replace(usual, **{name: other}))


def test_near_ties_are_settled_alike_when_there_are_dearer_tiers() -> None:
    scenario = near_ties(cluster("dear", tier="on_demand"))
    assert [scenario(PlacementPolicy(tie_share=share)) for share in (0.05, 0.3)] == ["busy", "calm"]


def test_the_word_of_the_operator_on_a_cluster_changes_where_somebody_goes() -> None:
    """Weight and intent act through the registry; what placement reads itself is the tier and the tenants."""
    fleet = view(cluster("a"), cluster("b", rtt_s=0.1))
    assert names(plan(Placer(), fleet))[0] == "a"
    moved = policy(clusters=(ClusterPolicy(id="a", tier="on_demand"),))
    assert names(plan(Placer(), fleet, policy=moved))[0] == "b"
    kept = policy(clusters=(ClusterPolicy(id="a", tenants=("else",)),))
    assert names(plan(Placer(), fleet, policy=kept)) == ["b"]
