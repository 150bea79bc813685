"""Cost tiers: stay cheap while there is room, spill what does not fit, come back when it does."""

import pytest

from gir.model.policy import ModelPolicy, PlacementPolicy, TierPolicy
from gir.model.request import Criticality
from gir.place import Placer
from gir.place.tiers import TierLoad, TierMemory, divide
from tests.support.placing import NOW_S, POLICY, TIERS, cluster, names, plan, policy, request, view

CRITICAL = Criticality.CRITICAL


def tier(free: float, total: float = 100.0, name: str = "reserved") -> TierLoad:
    return TierLoad(name, 0.15, 0.25, total, free)


def shares(memory: TierMemory, free: float, now_s: float, *, other: float = 100.0) -> list[float]:
    loads = (tier(free), tier(other, name="on_demand"))
    return [each.share for each in memory.shares(loads, now_s=now_s, return_within_s=60.0)]


@pytest.mark.parametrize(
    ("keeps", "expected"),
    [
        ([1.0, 1.0], [1.0, 0.0]),
        ([0.994, 1.0], [0.994, 0.006]),
        ([0.7, 1.0], [0.7, 0.3]),
        ([0.35, 1.0], [0.35, 0.65]),
        ([0.35, 0.35], [0.5, 0.5]),
        ([0.35, 0.35, 0.28], [0.357, 0.357, 0.286]),
        ([0.0, 1.0], [0.0, 1.0]),
        ([0.0, 0.0], [0.5, 0.5]),
    ],
)
def test_levels_divide_traffic_as_envoys_priorities_do(keeps, expected):
    assert divide(keeps, [10.0] * len(keeps)) == pytest.approx(expected, abs=1e-3)


def test_nothing_spills_while_the_cheap_tier_has_headroom():
    assert shares(TierMemory(), 16.0, 0.0) == [1.0, 0.0]


@pytest.mark.parametrize(("free", "kept"), [(15.0, 1.0), (12.0, 0.8), (7.5, 0.5), (3.0, 0.2), (0.0, 0.0)])
def test_the_spilled_share_is_the_shortfall(free, kept):
    assert shares(TierMemory(), free, 0.0) == pytest.approx([kept, 1.0 - kept])


def test_a_single_full_moment_spills_only_itself():
    memory = TierMemory()
    shares(memory, 50.0, 0.0)
    assert shares(memory, 0.0, 1.0)[0] < 0.7
    assert shares(memory, 50.0, 1.1)[0] > 0.65


def test_lasting_pressure_is_remembered_until_headroom_returns():
    memory = TierMemory()
    for step in range(100):
        shares(memory, 5.0, step * 0.2)
    held = shares(memory, 15.0, 20.1)
    assert held[1] == pytest.approx(2 / 3, abs=0.05), "between the marks the spilled share holds"
    for step in range(400):
        last = shares(memory, 30.0, 20.1 + step * 0.1)
    assert last == [1.0, 0.0]


def test_traffic_is_back_within_return_within_s_of_the_end_of_pressure():
    memory = TierMemory()
    for step in range(100):
        shares(memory, 0.0, step * 0.2)
    at_s, share = 20.0, 0.0
    while share < 1.0:
        at_s += 0.5
        share = shares(memory, 40.0, at_s)[0]
    assert 5.0 < at_s - 20.0 <= 60.0


def test_a_steep_rise_in_load_spills_before_the_tier_is_full():
    memory = TierMemory()
    for step in range(20):
        last = memory.shares((tier(60.0 - 2.2 * step), tier(100.0, name="b")), now_s=step * 1.0, return_within_s=60.0)
    assert last[0].trend > 0.02
    assert last[0].headroom < (60.0 - 2.2 * 19) / 100.0


def test_models_that_clients_make_up_do_not_wash_out_what_is_remembered_of_real_ones():
    placer = Placer()
    fleet = view(cluster("cheap", load={"slots_free": 0}), cluster("dear", tier="on_demand"))
    for step in range(40):
        plan(placer, fleet, now_s=NOW_S + step * 0.25)
    spilled = placer.tier_shares()
    assert spilled["llama", "on_demand"] > 0.9
    for number in range(600):
        assert not plan(placer, fleet, request(model=f"made-up-{number}", model_asked="x")).model_known
    assert placer.tier_shares() == spilled


def test_a_question_does_not_change_the_memory():
    memory = TierMemory()
    shares(memory, 50.0, 0.0)
    memory.shares((tier(0.0), tier(100.0, name="on_demand")), now_s=100.0, return_within_s=60.0, advance=False)
    assert shares(memory, 50.0, 0.1) == [1.0, 0.0]


def fleet(free: int, *, dear_free: int = 16, **fields):
    return view(
        cluster("cheap", load={"slots_free": free}, rtt_s=0.2),
        cluster("dear", tier="on_demand", rtt_s=0.01, load={"slots_free": dear_free}),
        **fields,
    )


def test_the_cheap_tier_wins_over_a_nearer_dear_one():
    placement = plan(Placer(), fleet(10))
    assert names(placement) == ["cheap", "dear"]
    assert placement.reason == "cheapest"
    assert dict(placement.tier_shares) == {"reserved": 1.0, "on_demand": 0.0}


def test_a_spill_follows_the_draw_and_says_so():
    placer = Placer()
    spilled = 0
    for step in range(1_000):
        placement = plan(placer, fleet(3), request(f"r{step}"), draw=step / 1_000)
        spilled += names(placement)[0] == "dear"
    share = dict(placement.tier_shares)["on_demand"]
    assert 0.3 < share < 0.8
    assert spilled / 1_000 == pytest.approx(share, abs=0.01)
    assert placement.reason == "spill"
    assert placement.tier_drawn == "on_demand"


def test_own_dispatches_spill_before_the_next_beat():
    placer = Placer()
    cheap = fleet(16)
    sent = {"cheap": 0, "dear": 0}
    for step in range(24):
        name = names(plan(placer, cheap, request(f"r{step}"), draw=(step * 0.618) % 1.0))[0]
        placer.dispatched(request(f"r{step}"), name, NOW_S)
        sent[name] += 1
    assert 12 <= sent["cheap"] <= 16, sent
    assert sent["dear"] == 24 - sent["cheap"]


def test_the_critical_reserve_is_there_for_critical_requests_alone():
    tight = fleet(3)
    assert names(plan(Placer(), tight, draw=0.9))[0] == "dear"
    assert names(plan(Placer(), tight, request(criticality=CRITICAL), draw=0.9))[0] == "cheap"


@pytest.mark.parametrize(("full", "spilled"), [("big", True), ("small", False)])
def test_headroom_is_a_matter_of_slots_and_not_of_clusters(full, spilled):
    """Half of the clusters are full either way: with levels of unequal clusters a head count says the wrong thing."""
    sizes = {"big": 96, "small": 8}
    cheap = [
        cluster(name, load={"slots_total": slots, "slots_free": 0 if name == full else slots})
        for name, slots in sizes.items()
    ]
    placement = plan(Placer(), view(*cheap, cluster("dear", tier="on_demand")))
    assert (dict(placement.tier_shares)["on_demand"] > 0.0) is spilled


def test_nothing_spills_into_a_tier_that_is_fuller_still():
    placement = plan(Placer(), fleet(3, dear_free=0), draw=0.999)
    assert names(placement)[0] == "cheap"


def test_with_every_tier_full_the_expected_first_token_decides():
    full = view(
        cluster("cheap", load={"slots_free": 0, "waiting": 40}),
        cluster("dear", tier="on_demand", load={"slots_free": 0, "waiting": 2}),
    )
    placement = plan(Placer(), full)
    assert names(placement)[0] == "dear"
    assert placement.reason == "saturated"


def test_a_critical_request_leaves_a_tier_that_would_miss_the_objective():
    rules = policy(models=(ModelPolicy(name="llama", ttft_objective_s=0.1),))
    assert names(plan(Placer(), fleet(10), policy=rules))[0] == "cheap"
    placement = plan(Placer(), fleet(10), request(criticality=CRITICAL), policy=rules)
    assert names(placement)[0] == "dear"
    assert placement.reason == "objective"


def test_a_critical_request_stays_when_no_tier_is_fast_enough_but_the_cheap_one_is_fastest():
    rules = policy(models=(ModelPolicy(name="llama", ttft_objective_s=0.001),))
    near = view(cluster("cheap", rtt_s=0.01), cluster("dear", tier="on_demand", rtt_s=0.2))
    assert names(plan(Placer(), near, request(criticality=CRITICAL), policy=rules))[0] == "cheap"


def test_a_critical_request_leaves_a_tier_that_would_have_to_load_its_adapter_first():
    cheap = cluster("cheap", load={"adapters_loadable": frozenset({"lora"})})
    dear = cluster("dear", tier="on_demand", load={"adapters_resident": frozenset({"lora"})})
    rules = policy(models=(ModelPolicy(name="lora", ttft_objective_s=0.5),))
    standard = plan(Placer(), view(cheap, dear), request(model="lora"), policy=rules)
    assert names(standard)[0] == "cheap"
    critical = plan(Placer(), view(cheap, dear), request(model="lora", criticality=CRITICAL), policy=rules)
    assert (names(critical)[0], critical.reason) == ("dear", "objective")


def test_sheddable_requests_are_confined_to_tiers_that_take_them():
    tiers = (TIERS[0], TierPolicy(name="on_demand", price_per_slot_hour=3.0, criticality_min="standard"))
    asked = request(criticality=Criticality.SHEDDABLE)
    for step in range(20):
        placement = plan(Placer(), fleet(0), asked, policy=policy(tiers=tiers), draw=step / 20)
        assert names(placement) == ["cheap"]


def test_undeclared_tiers_come_last_by_reported_price():
    mixed = view(
        cluster("x", tier="exotic", price_per_slot_hour=9.0, rtt_s=0.001),
        cluster("y", tier="spare", price_per_slot_hour=0.1, rtt_s=0.001),
        cluster("z"),
    )
    assert [name for name, _ in plan(Placer(), mixed).tier_shares] == ["reserved", "spare", "exotic"]
    assert [name for name, _ in plan(Placer(), mixed, policy=policy(tiers=())).tier_shares] == [
        "reserved",
        "spare",
        "exotic",
    ]


def test_a_ramping_cluster_offers_only_its_ramped_capacity():
    ramping = view(cluster("cheap", weight=0.25), cluster("dear", tier="on_demand"))
    placer = Placer()
    placement = plan(placer, ramping, explain=True)
    assert placement.tiers[0].slots_total == pytest.approx(4.0)
    for step in range(4):
        placer.dispatched(request(f"r{step}"), "cheap", NOW_S)
    assert dict(plan(placer, ramping).tier_shares)["on_demand"] == pytest.approx(1.0)


def test_a_ramping_cluster_offers_one_slot_however_few_it_has():
    placer = Placer()
    asked, fleet = request(), view(cluster("back", weight=0.1, load={"slots_total": 4, "slots_free": 4}))
    assert placer.slots(asked, fleet, POLICY, now_s=NOW_S) == (4, 1)
    placer.dispatched(asked, "back", NOW_S)
    assert placer.slots(asked, fleet, POLICY, now_s=NOW_S) == (4, 0)


def test_a_retry_does_not_count_as_pressure():
    placer = Placer()
    for step in range(200):
        placement = plan(placer, fleet(16), request(f"r{step}"), tried=frozenset({"cheap"}), now_s=NOW_S + step)
        assert names(placement) == ["dear"]
    assert dict(plan(placer, fleet(16), now_s=NOW_S + 200).tier_shares)["reserved"] == 1.0


def test_the_return_time_is_the_policys():
    quick = policy(placement=PlacementPolicy(return_within_s=2.0))
    placer = Placer()
    for step in range(100):
        plan(placer, fleet(0), policy=quick, now_s=NOW_S + step * 0.2)
    plan(placer, fleet(16, version=2), policy=quick, now_s=NOW_S + 20.0)
    after = plan(placer, fleet(16, version=2), policy=quick, now_s=NOW_S + 21.5)
    assert dict(after.tier_shares)["reserved"] == 1.0


def test_slots_count_what_own_dispatches_leave_free_of_those_who_may_serve():
    placer = Placer()
    both = view(cluster("a", load={"slots_free": 10}), cluster("b", load={"slots_free": 6}, region="us"))
    assert placer.slots(request(), both, policy(), now_s=NOW_S) == (32, 16)
    placer.dispatched(request(), "a", NOW_S)
    assert placer.slots(request(), both, policy(), now_s=NOW_S) == (32, 15)
    pinned = request(cluster_pinned="b")
    assert placer.slots(pinned, both, policy(), now_s=NOW_S) == (16, 6)
    assert placer.slots(request(cluster_pinned="c"), both, policy(), now_s=NOW_S) == (0, 0)


def test_a_conversation_keeps_its_tier_while_others_spill():
    placer = Placer()
    turns = {"cheap": 0, "dear": 0}
    asked = request("chat", prefix_hashes=tuple(range(1, 33)), prompt_tokens_estimate=4_000)
    placer.dispatched(asked, "dear", NOW_S - 60.0)
    for step in range(400):
        name = names(plan(placer, fleet(3), asked, draw=step / 400, now_s=NOW_S + 0.001 * step))[0]
        turns[name] += 1
    assert turns["dear"] > 330, turns  # drawn blindly it would be 168
    back = plan(placer, fleet(16, version=2), asked, draw=0.999, now_s=NOW_S + 200.0)
    back = plan(placer, fleet(16, version=2), asked, draw=0.999, now_s=NOW_S + 260.0)
    assert names(back)[0] == "cheap", "with headroom back in the cheap tier nothing holds it in the dear one"


def test_free_slots_behind_a_long_prefill_backlog_are_no_headroom():
    backlog = view(cluster("cheap", load={"waiting_tokens": 60_000}), cluster("dear", tier="on_demand"))
    assert dict(plan(Placer(), backlog).tier_shares)["on_demand"] == 1.0
    patient = policy(models=(ModelPolicy(name="llama", ttft_objective_s=30.0),))
    assert dict(plan(Placer(), backlog, policy=patient).tier_shares)["reserved"] == 1.0


def test_requests_that_wait_beside_free_slots_count_against_them():
    stuck = fleet(6, dear_free=16)
    assert dict(plan(Placer(), stuck).tier_shares)["reserved"] == 1.0
    waiting = view(
        cluster("cheap", load={"slots_free": 6, "waiting": 6}, rtt_s=0.2), cluster("dear", tier="on_demand", rtt_s=0.01)
    )
    assert dict(plan(Placer(), waiting).tier_shares)["on_demand"] == 1.0


def test_a_cluster_that_changes_its_tier_between_two_beats_is_placed_in_the_new_one():
    placer = Placer()
    both = [cluster("a"), cluster("b", rtt_s=0.001)]
    assert names(plan(placer, view(*both)))[0] == "b"
    both[1] = cluster("b", tier="on_demand", rtt_s=0.001)
    assert names(plan(placer, view(*both, version=2)))[0] == "a"
