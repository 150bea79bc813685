"""What makes one cluster better than another, and how near ties are settled."""

import pytest

from gir.model.cluster import ClusterStatus
from gir.model.policy import ModelPolicy, PlacementPolicy, ScoreWeights
from gir.place import Placer
from tests.support.placing import NOW_S, cluster, names, plan, policy, principal, request, view


def first(fleet, asked=None, **fields):
    return names(plan(Placer(), fleet, asked, **fields))[0]


def test_the_nearer_of_two_idle_clusters_wins():
    assert first(view(cluster("far", rtt_s=0.3), cluster("near", rtt_s=0.03))) == "near"


def test_a_queue_outweighs_a_round_trip():
    fleet = view(cluster("near", load={"waiting": 4, "slots_free": 0}), cluster("far", rtt_s=0.3))
    assert first(fleet) == "far"


def test_a_queue_is_measured_by_how_fast_it_moves():
    fast = cluster("fast", load={"waiting": 8, "slots_free": 0, "service_rate_per_s": 40.0})
    slow = cluster("slow", load={"waiting": 2, "slots_free": 0, "service_rate_per_s": 1.0})
    assert first(view(slow, fast)) == "fast"


def test_long_prompts_prefer_fast_prefill_and_short_ones_the_near_cluster():
    near = cluster("near", rtt_s=0.01, load={"prefill_tokens_per_s": 4_000.0})
    fast = cluster("fast", rtt_s=0.2, load={"prefill_tokens_per_s": 40_000.0})
    assert first(view(near, fast), request(prompt_tokens_estimate=100)) == "near"
    assert first(view(near, fast), request(prompt_tokens_estimate=20_000)) == "fast"


def test_queued_prompt_tokens_count_even_while_slots_are_free():
    fleet = view(cluster("a", load={"waiting_tokens": 60_000}), cluster("b", rtt_s=0.2))
    assert first(fleet) == "b"


def test_errors_cost():
    fleet = view(cluster("flaky", load={"error_rate": 0.5}), cluster("sound", rtt_s=0.1))
    assert first(fleet) == "sound"


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.10])
def test_an_error_rate_that_retries_hide_starves_nobody(rate):
    fleet = view(cluster("flaky", load={"error_rate": rate}), cluster("sound"))
    share = sum(first(fleet, draw=step / 1_000) == "flaky" for step in range(1_000)) / 1_000
    assert 0.4 < share < 0.6


def test_the_error_penalty_grows_from_what_is_tolerated_to_its_bound():
    def penalty(rate, **rules):
        each = plan(
            Placer(),
            view(cluster("a", load={"error_rate": rate})),
            policy=policy(placement=PlacementPolicy(**rules)),
            explain=True,
        ).ranked[0]
        return {term.name: term.seconds for term in each.terms}["error"]

    assert [penalty(rate) for rate in (None, 0.0, 0.1)] == [0.0, 0.0, 0.0]
    assert penalty(0.55) == pytest.approx(1.0)
    assert penalty(1.0) == pytest.approx(2.0)
    assert penalty(0.05, error_rate_tolerated=0.0) == pytest.approx(0.1)


def test_an_unknown_queue_is_not_taken_for_an_idle_one():
    fleet = view(cluster("silent", load={"waiting": None, "waiting_tokens": None}), cluster("idle"))
    assert first(fleet) == "idle"


def test_unknown_signals_are_listed_and_defaults_used():
    silent = cluster(
        "silent", rtt_s=None, load={"prefill_tokens_per_s": None, "service_rate_per_s": None, "waiting": None}
    )
    placement = plan(Placer(), view(silent, cluster("known")), explain=True)
    listed = {each.cluster: each.unknown for each in placement.ranked}
    assert listed == {"known": (), "silent": ("waiting", "prefill_tokens_per_s", "service_rate_per_s", "rtt_s")}
    terms = {term.name: term for term in placement.ranked[-1].terms}
    assert terms["rtt"].seconds == pytest.approx(PlacementPolicy().rtt_default_s)
    assert "unknown" in terms["rtt"].detail


def test_a_request_already_sent_counts_before_any_beat_has_seen_it():
    placer = Placer()
    fleet = view(cluster("a", load={"slots_free": 1}), cluster("b", rtt_s=0.1, load={"slots_free": 1}))
    assert names(plan(placer, fleet))[0] == "a"
    placer.dispatched(request(), "a", NOW_S)
    assert names(plan(placer, fleet))[0] == "b"


def test_terms_add_up_to_the_score():
    placer = Placer()
    asked = request(session_key="s", prefix_hashes=(1, 2, 3))
    fleet = view(cluster("a", load={"error_rate": 0.3, "waiting": 3, "slots_free": 0}), cluster("b"))
    placer.dispatched(asked, "a", NOW_S)
    for each in plan(placer, fleet, asked, explain=True).ranked:
        assert sum(term.seconds for term in each.terms) == pytest.approx(each.score_s)


def test_weights_change_the_choice():
    fleet = view(cluster("near", rtt_s=0.01, load={"waiting_tokens": 4_000}), cluster("far", rtt_s=0.15))
    assert first(fleet) == "far"
    local = PlacementPolicy(weights=ScoreWeights(queue=0.2, rtt=2.0))
    assert first(fleet, policy=policy(placement=local)) == "near"


def test_a_models_own_placement_section_overrides_the_global_one():
    fleet = view(cluster("near", rtt_s=0.01, load={"waiting_tokens": 4_000}), cluster("far", rtt_s=0.15))
    local = PlacementPolicy(weights=ScoreWeights(queue=0.2, rtt=2.0))
    rules = policy(models=(ModelPolicy(name="llama", placement=local),))
    assert first(fleet, policy=rules) == "near"


def test_equal_clusters_share_evenly_by_chance():
    fleet = view(*(cluster(f"c{number}") for number in range(4)))
    counts: dict[str, int] = {}
    for step in range(4_000):
        name = first(fleet, draw=step / 4_000)
        counts[name] = counts.get(name, 0) + 1
    assert len(counts) == 4
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_of_two_near_ties_the_less_loaded_wins():
    busy = cluster("busy", load={"slots_free": 4})
    calm = cluster("calm", load={"slots_free": 12})
    assert {first(view(busy, calm), draw=step / 50) for step in range(50)} == {"calm"}


def test_a_burst_between_two_beats_spreads_over_equal_clusters():
    placer = Placer()
    fleet = view(*(cluster(f"c{number}") for number in range(4)))
    sent: dict[str, int] = {}
    for step in range(40):
        name = names(plan(placer, fleet, request(f"r{step}"), draw=(step * 0.618) % 1.0))[0]
        placer.dispatched(request(f"r{step}"), name, NOW_S)
        sent[name] = sent.get(name, 0) + 1
    assert max(sent.values()) <= 13, sent


def test_a_ramping_cluster_gets_its_part_of_its_share():
    fleet = view(cluster("full"), cluster("ramping", weight=0.1, rtt_s=0.001))
    won = sum(first(fleet, draw=step / 2_000) == "ramping" for step in range(2_000))
    assert 0.08 <= won / 2_000 <= 0.12


def test_a_ramping_cluster_serves_when_it_is_the_only_one():
    assert first(view(cluster("ramping", weight=0.1))) == "ramping"


def test_weight_is_ignored_for_clusters_that_are_not_eligible():
    fleet = view(
        cluster("dead", status=ClusterStatus.DEAD, weight=1.0), cluster("a", weight=0.5), cluster("b", weight=0.5)
    )
    counts = {"a": 0, "b": 0}
    for step in range(2_000):
        counts[first(fleet, draw=step / 2_000)] += 1
    assert 0.45 <= counts["a"] / 2_000 <= 0.55


def test_an_adapter_goes_where_it_is_resident():
    holds = cluster("holds", rtt_s=0.3, load={"adapters_resident": frozenset({"lora"}), "slots_free": 2})
    loads = cluster("loads", load={"adapters_loadable": frozenset({"lora"})})
    assert first(view(loads, holds), request(model="lora")) == "holds"


def test_an_adapter_nobody_holds_goes_to_the_most_spare_capacity():
    can = {"adapters_loadable": frozenset({"lora"})}
    near = cluster("near", load={**can, "slots_free": 3})
    roomy = cluster("roomy", rtt_s=0.3, load={**can, "slots_free": 12})
    never = cluster("never", load={"slots_free": 16})
    placement = plan(Placer(), view(near, roomy, never), request(model="lora"), explain=True)
    assert names(placement) == ["roomy", "near"]
    assert [each.cluster for each in placement.removed] == ["never"]


def test_a_resident_cluster_without_room_yields_to_one_that_can_load():
    holds = cluster("holds", load={"adapters_resident": frozenset({"lora"}), "slots_free": 0, "waiting": 5})
    loads = cluster("loads", load={"adapters_loadable": frozenset({"lora"})})
    assert first(view(loads, holds), request(model="lora")) == "loads"


def test_with_no_room_anywhere_the_time_to_load_an_adapter_counts_like_any_other():
    full = {"slots_free": 0, "waiting": 2}
    holds = cluster("holds", load={**full, "adapters_resident": frozenset({"lora"})})
    loads = cluster("loads", load={**full, "adapters_loadable": frozenset({"lora"}), "service_rate_per_s": 4.4})
    assert first(view(loads, holds), request(model="lora")) == "holds"
    longer = cluster("holds", load={**full, "waiting": 20, "adapters_resident": frozenset({"lora"})})
    assert first(view(loads, longer), request(model="lora")) == "loads"


@pytest.mark.parametrize("tiers", [("reserved",), ("reserved", "on_demand")])
def test_a_large_fleet_hides_no_holder_of_an_adapter_and_no_spare_capacity(tiers):
    can = {"adapters_loadable": frozenset({"lora"}), "slots_free": 4}
    near = [cluster(f"c{number}", rtt_s=0.001, load=can, tier=tiers[number % len(tiers)]) for number in range(80)]
    roomy = cluster("roomy", rtt_s=0.4, load={**can, "slots_free": 12})
    assert first(view(*near, roomy), request(model="lora"), draw=0.0) == "roomy"
    holds = cluster("holds", rtt_s=0.4, load={"adapters_resident": frozenset({"lora"})})
    eager = PlacementPolicy(weights=ScoreWeights(adapter=0.0))
    assert first(view(*near, roomy, holds), request(model="lora"), policy=policy(placement=eager), draw=0.0) == "holds"


def test_a_session_stays_unless_its_cluster_is_gone():
    placer = Placer()
    asked = request(session_key="chat-1")
    here, there = cluster("a"), cluster("b", rtt_s=0.1)
    placer.dispatched(asked, "b", NOW_S)
    stays = plan(placer, view(here, there), asked)
    assert names(stays)[0] == "b"
    assert stays.reason == "session"
    gone = view(here, cluster("b", status=ClusterStatus.DEAD), version=2)
    assert names(plan(placer, gone, asked)) == ["a"]


def test_sessions_of_two_tenants_do_not_meet():
    placer = Placer()
    placer.dispatched(request(session_key="1"), "b", NOW_S)
    other = request(session_key="1", principal=principal(tenant="else"))
    fleet = view(cluster("a"), cluster("b", rtt_s=0.1))
    assert plan(placer, fleet, other, explain=True).reason != "session"


@pytest.mark.parametrize("count", [40, 200])
def test_a_large_fleet_is_searched_by_shortlist_and_still_finds_the_best(count):
    far = [cluster(f"c{number}", rtt_s=0.2) for number in range(count)]
    fleet = view(*far[: count // 2], cluster("near", rtt_s=0.005), *far[count // 2 :])
    assert first(fleet) == "near"


def test_the_shortlist_follows_own_dispatches():
    placer = Placer()
    near = [cluster(f"n{number}", rtt_s=0.005, load={"slots_total": 1, "slots_free": 1}) for number in range(12)]
    far = [cluster(f"f{number}", rtt_s=0.1) for number in range(60)]
    fleet = view(*near, *far)
    for step in range(200):
        name = names(plan(placer, fleet, request(f"r{step}"), draw=(step * 0.618) % 1.0))[0]
        placer.dispatched(request(f"r{step}"), name, NOW_S)
    assert placer.loads.open("f0") + placer.loads.open("f1") + placer.loads.open("f2") > 0
