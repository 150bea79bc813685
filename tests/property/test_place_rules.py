"""What must hold for every fleet, policy and draw."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gir.model.cluster import ClusterState, ClusterStatus, ClusterView, Intent
from gir.model.request import Criticality, InferenceRequest
from gir.place import Placer
from gir.place.filters import lasting_reason, moment_of, moment_reason
from gir.place.roster import PolicyIndex, lasting
from tests.support.placing import NOW_S, cluster, names, plan, policy, principal, request, view

OPTIONAL = {
    "waiting": st.none() | st.integers(0, 50),
    "waiting_tokens": st.none() | st.integers(0, 200_000),
    "prefill_tokens_per_s": st.none() | st.floats(100.0, 1e5),
    "service_rate_per_s": st.none() | st.floats(0.05, 100.0),
    "error_rate": st.none() | st.floats(0.0, 1.0),
    "context_tokens_max": st.none() | st.sampled_from([2_000, 32_000, 131_072]),
}


@st.composite
def clusters(draw: st.DrawFn, name: str) -> ClusterState:
    slots = draw(st.integers(0, 64))
    load = {key: draw(values) for key, values in OPTIONAL.items()}
    load |= {
        "slots_total": slots,
        "slots_free": draw(st.integers(0, slots)),
        "adapters_resident": draw(st.sampled_from([frozenset(), frozenset({"lora"})])),
        "adapters_loadable": draw(st.sampled_from([frozenset(), frozenset({"lora"})])),
    }
    return cluster(
        name,
        load=load,
        tier=draw(st.sampled_from(["reserved", "on_demand", "spot"])),
        region=draw(st.sampled_from(["eu", "us"])),
        status=draw(st.sampled_from([ClusterStatus.HEALTHY] * 4 + list(ClusterStatus))),
        intent=draw(st.sampled_from([Intent.SERVE] * 4 + list(Intent))),
        weight=draw(st.sampled_from([1.0, 1.0, 0.5, 0.1, 0.0])),
        rtt_s=draw(st.none() | st.floats(0.0, 0.5)),
        backoff_until_s=draw(st.sampled_from([0.0, 0.0, NOW_S + 1.0])),
    )


@st.composite
def fleets(draw: st.DrawFn, size_min: int = 1) -> ClusterView:
    count = draw(st.integers(size_min, 6))
    members = [draw(clusters(f"c{number}")) for number in range(count)]
    return view(*members, fail_open=draw(st.sampled_from([False, False, False, True])))


@st.composite
def requests(draw: st.DrawFn) -> InferenceRequest:
    regions = draw(st.sampled_from([None, None, frozenset({"eu"}), frozenset({"mars"})]))
    return request(
        model=draw(st.sampled_from(["llama", "llama", "lora"])),
        criticality=draw(st.sampled_from(list(Criticality))),
        principal=principal(regions_allowed=regions),
        prompt_tokens_estimate=draw(st.integers(0, 50_000)),
        prefix_hashes=draw(st.sampled_from([(), tuple(range(1, 30))])),
        session_key=draw(st.sampled_from([None, "s"])),
        cluster_pinned=draw(st.sampled_from([None, None, None, "c0", "c1"])),
    )


pytestmark = pytest.mark.slow

DRAWS = st.floats(0.0, 1.0, exclude_max=True)


@dataclass
class History:
    """The same past for several placers: so many requests sent to each cluster."""

    sent: dict[str, int]

    def placer(self) -> Placer:
        placer = Placer()
        for name, count in self.sent.items():
            for number in range(count):
                placer.dispatched(request(f"{name}-{number}"), name, NOW_S)
        return placer


HISTORIES = st.dictionaries(st.sampled_from(["c0", "c1", "c2"]), st.integers(0, 20)).map(History)


def eligible(each: ClusterState, asked: InferenceRequest, fleet: ClusterView) -> bool:
    """Invariant I7, spelled out once more and independently of the code under test."""
    if each.intent is not Intent.SERVE:
        return False
    if each.status in (ClusterStatus.DEAD, ClusterStatus.UNKNOWN) and not fleet.fail_open:
        return False
    regions = asked.principal.regions_allowed
    return (regions is None or each.region in regions) and asked.cluster_pinned in (None, each.id)


@given(fleets(), requests(), DRAWS, HISTORIES, st.sets(st.sampled_from(["c0", "c1", "c2"])))
def test_no_ineligible_or_tried_cluster_is_ever_named(fleet, asked, draw, history, tried):
    placement = plan(history.placer(), fleet, asked, draw=draw, tried=frozenset(tried))
    by_name = {each.id: each for each in fleet.clusters}
    assert len(set(names(placement))) == len(placement.ranked)
    for name in names(placement):
        assert name not in tried
        assert eligible(by_name[name], asked, fleet)


@given(fleets(), requests(), DRAWS, HISTORIES)
def test_every_cluster_is_either_ranked_or_removed_with_a_reason(fleet, asked, draw, history):
    placement = plan(history.placer(), fleet, asked, draw=draw, explain=True)
    listed = names(placement) + [each.cluster for each in placement.removed]
    assert sorted(listed) == sorted(each.id for each in fleet.clusters)


@given(fleets(), requests(), DRAWS, HISTORIES)
def test_explaining_tells_the_same_story_as_deciding(fleet, asked, draw, history):
    decided = plan(history.placer(), fleet, asked, draw=draw)
    placer = history.placer()
    told = plan(placer, fleet, asked, draw=draw, explain=True)
    again = plan(placer, fleet, asked, draw=draw)
    assert names(decided) == names(told)[:8] == names(again)
    assert decided.reason == told.reason == again.reason
    assert decided.tier_shares == told.tier_shares == again.tier_shares
    for each in told.ranked:
        assert abs(sum(term.seconds for term in each.terms) - each.score_s) < 1e-6


@given(fleets(), requests())
def test_the_fast_filters_agree_with_those_that_give_reasons(fleet, asked):
    index = PolicyIndex(policy())
    kind, moment = index.kind_of(asked), moment_of(asked, NOW_S, frozenset())
    base = fleet.base_of.get(kind.model, kind.model)
    for state in fleet.by_model.get(kind.model, ()):
        pool = state.pools[base]
        passes = lasting(state, pool, kind, index, fleet.fail_open)
        assert passes == (lasting_reason(state, kind, index, fleet) is None)
        if passes and asked.cluster_pinned is None:
            fits = moment.tokens <= (pool.context_tokens_max or 1 << 62) and state.backoff_until_s <= NOW_S
            assert fits == (moment_reason(state, kind, fleet, moment) is None)


def longer_queue(state: ClusterState, more: int, tokens: int) -> ClusterState:
    (pool,) = state.pools.values()
    worse = msgspec.structs.replace(
        pool,
        waiting=(pool.waiting or 0) + more,
        waiting_tokens=(pool.waiting_tokens or 0) + tokens,
        slots_free=max(0, pool.slots_free - more),
    )
    return msgspec.structs.replace(state, pools={pool.model: worse})


@given(st.data(), DRAWS, HISTORIES, st.integers(1, 30), st.integers(0, 50_000))
def test_a_longer_queue_never_improves_a_clusters_rank(data, draw, history, more, tokens):
    fleet = data.draw(fleets(size_min=2))
    asked = data.draw(requests())
    victim = data.draw(st.sampled_from(fleet.clusters))
    (pool,) = victim.pools.values()
    if pool.waiting is None or pool.waiting_tokens is None:
        return  # from unknown to known is news, not a longer queue
    worse = view(
        *(longer_queue(each, more, tokens) if each is victim else each for each in fleet.clusters),
        fail_open=fleet.fail_open,
    )
    before = names(plan(history.placer(), fleet, asked, draw=draw))
    after = names(plan(history.placer(), worse, asked, draw=draw))
    if victim.id in before:
        assert after.index(victim.id) >= before.index(victim.id)


@given(fleets(size_min=2), requests(), DRAWS, HISTORIES)
def test_no_tier_is_spilled_into_while_a_cheaper_one_has_headroom(fleet, asked, draw, history):
    placement = plan(history.placer(), fleet, asked, draw=draw, explain=True)
    if placement.reason in ("objective", "pinned", "last_resort") or len(placement.tiers) < 2 or not placement.ranked:
        return
    spending = 0.0
    for tier in reversed(placement.tiers):
        if tier.headroom >= tier.spill_at:
            assert spending == 0.0, f"{tier.tier} has headroom, yet {spending} goes to dearer tiers"
        spending += tier.share


@given(st.lists(st.floats(0.05, 1.0), min_size=2, max_size=5), st.integers(0, 3))
def test_weights_apply_among_eligible_clusters_only(weights, dead_count):
    dead = [cluster(f"d{number}", status=ClusterStatus.DEAD, weight=1.0) for number in range(dead_count)]
    live = [cluster(f"c{number}", weight=weight) for number, weight in enumerate(weights)]
    alone, crowded, rules = Placer(), Placer(), policy()
    for step in range(50):
        draw = (step * 0.6180339887) % 1.0
        first = plan(alone, view(*live), draw=draw, policy=rules)
        second = plan(crowded, view(*dead, *live), draw=draw, policy=rules)
        assert names(first) == names(second)


@given(fleets(), requests(), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60), DRAWS)
def test_own_work_is_given_back_exactly(fleet, asked, steps, draw):
    placer = Placer()
    running = []
    now_s = NOW_S
    for step, (age, ends) in enumerate(steps):
        now_s += age
        moved = [msgspec.structs.replace(each, beat_at_s=now_s) for each in fleet.clusters]
        placement = plan(placer, view(*moved, version=step + 2), asked, draw=draw, now_s=now_s)
        if placement.ranked:
            running.append(placer.dispatched(asked, placement.ranked[0].cluster, now_s))
        if ends and running:
            placer.finished(running.pop(0), now_s=now_s, usage=None, ok=True)
    for dispatch in running:
        placer.finished(dispatch, now_s=now_s, usage=None, ok=True)
        placer.finished(dispatch, now_s=now_s, usage=None, ok=True)
    last = [msgspec.structs.replace(each, beat_at_s=now_s + 10.0) for each in fleet.clusters]
    plan(placer, view(*last, version=1_000), asked, draw=draw, now_s=now_s + 10.0)
    for each in fleet.clusters:
        ledger = placer.loads.of(each.id, "llama")
        assert ledger.open == 0
        assert ledger.pending_tokens == 0.0


@given(st.lists(fleets(size_min=3), min_size=2, max_size=5), requests(), DRAWS)
def test_following_the_fleet_view_by_view_ends_where_a_fresh_start_would(views, asked, draw):
    placer, rules = Placer(), policy()
    known: dict[str, ClusterState] = {}
    for number, fleet in enumerate(views):
        now_s = NOW_S + number
        beaten = [msgspec.structs.replace(each, beat_at_s=now_s) for each in fleet.clusters]
        # Every other cluster keeps the very state it had, as between two beats.
        members = [known.get(each.id, each) if place % 2 else each for place, each in enumerate(beaten)]
        known = {each.id: each for each in members}
        moved = view(*members, version=number + 1, fail_open=fleet.fail_open)
        followed = plan(placer, moved, asked, draw=draw, policy=rules, explain=True, now_s=now_s)
        fresh = plan(Placer(), moved, asked, draw=draw, policy=rules, explain=True, now_s=now_s)
        assert names(followed) == names(fresh)
        assert followed.removed == fresh.removed
        assert [each.score_s for each in followed.ranked] == [each.score_s for each in fresh.ranked]
