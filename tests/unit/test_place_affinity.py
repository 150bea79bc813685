"""Prefix affinity: what the index predicts, how it is bounded, and how far it is believed."""

import pytest

from gir.model.policy import PlacementPolicy
from gir.model.prefix import prefix_hashes
from gir.model.request import Usage
from gir.place import Placer
from gir.place.affinity import AffinityIndex, Trust
from tests.support.placing import NOW_S, cluster, names, plan, policy, request, view

SYSTEM = bytes(range(256)) * 8  # 4 blocks everybody shares


def hashes(*parts: bytes) -> tuple[int, ...]:
    return prefix_hashes("llama", b"".join(parts))


def user(name: str, blocks: int = 8) -> bytes:
    return (name * 512).encode()[: 512 * blocks].ljust(512 * blocks, b".")


def test_the_longest_contiguous_match_of_each_cluster_is_found():
    index = AffinityIndex(1_000)
    index.learn("a", hashes(SYSTEM, user("ann")))
    index.learn("b", hashes(SYSTEM, user("bob")))
    assert index.match(hashes(SYSTEM, user("ann"), user("more"))) == {"a": 12, "b": 4}
    assert index.match(hashes(SYSTEM)) == {"a": 4, "b": 4}
    assert index.match(hashes(user("stranger"))) == {}
    assert index.match(()) == {}


def test_equal_text_for_two_models_never_matches():
    index = AffinityIndex(1_000)
    index.learn("a", prefix_hashes("llama", SYSTEM))
    assert index.match(prefix_hashes("qwen", SYSTEM)) == {}


def test_the_index_stays_within_its_bound_and_keeps_what_is_used():
    index = AffinityIndex(200)
    hot = hashes(SYSTEM, user("hot"))
    for number in range(500):
        index.learn("a", hashes(user(f"cold-{number}")))
        index.learn("b", hot)
        assert len(index) <= 200
    assert index.match(hot) == {"b": 12}
    assert index.match(hashes(user("cold-0"))) == {}


def test_heads_outlive_tails():
    index = AffinityIndex(100)
    for number in range(60):
        index.learn("a", hashes(SYSTEM, user(f"u{number}", 4)))
    for number in range(60):
        matched = index.match(hashes(SYSTEM, user(f"u{number}", 4))).get("a", 0)
        assert matched >= 4, "the shared head is gone before the tails"


def test_a_cluster_that_left_owns_nothing_and_may_come_back():
    index = AffinityIndex(1_000)
    index.learn("a", hashes(SYSTEM))
    index.forget("a")
    assert index.match(hashes(SYSTEM)) == {}
    index.learn("a", hashes(user("new")))
    assert index.match(hashes(SYSTEM)) == {}
    assert index.match(hashes(user("new"))) == {"a": 8}


def test_a_size_of_zero_turns_the_index_off():
    index = AffinityIndex(0)
    index.learn("a", hashes(SYSTEM))
    assert index.match(hashes(SYSTEM)) == {}
    assert len(index) == 0


def test_a_prompt_longer_than_the_index_does_not_break_its_bound():
    index = AffinityIndex(64)
    index.learn("a", tuple(range(1, 1_025)))
    assert len(index) <= 64


def test_a_conversation_follows_its_prefix_to_a_farther_cluster():
    placer = Placer()
    fleet = view(cluster("near"), cluster("far", rtt_s=0.1))
    turn = request(prefix_hashes=hashes(SYSTEM, user("ann", 40)), prompt_tokens_estimate=5_600)
    placer.dispatched(turn, "far", NOW_S - 60.0)
    placement = plan(placer, fleet, turn)
    assert names(placement)[0] == "far"
    assert placement.reason == "affinity"


def test_a_match_is_not_worth_a_long_queue():
    placer = Placer()
    fleet = view(cluster("busy", load={"slots_free": 0, "waiting": 12}), cluster("idle", rtt_s=0.1))
    turn = request(prefix_hashes=hashes(SYSTEM, user("ann", 40)), prompt_tokens_estimate=5_600)
    placer.dispatched(turn, "busy", NOW_S - 60.0)
    assert names(plan(placer, fleet, turn))[0] == "idle"


def test_the_bonus_of_a_match_is_capped():
    rules = policy(placement=PlacementPolicy(affinity_max_s=0.01))
    placer = Placer()
    fleet = view(cluster("near"), cluster("far", rtt_s=0.1))
    turn = request(prefix_hashes=hashes(SYSTEM, user("ann", 40)), prompt_tokens_estimate=5_600)
    placer.dispatched(turn, "far", NOW_S - 60.0)
    assert names(plan(placer, fleet, turn, policy=rules))[0] == "near"


def test_reports_below_prediction_lower_the_trust_and_the_divergence_is_exported():
    trust = Trust()
    for _ in range(40):
        trust.observe(1_000.0, 250)
    assert trust.value == pytest.approx(0.25, abs=0.01)
    assert trust.divergence == pytest.approx(0.75, abs=0.01)


def test_a_cluster_that_never_reports_hits_is_believed_by_half_and_its_divergence_is_unknown():
    trust = Trust()
    for _ in range(40):
        trust.observe(1_000.0, 0)
    assert trust.value == 0.5
    assert trust.divergence is None


def test_hits_the_index_did_not_predict_are_no_merit():
    trust = Trust()
    for _ in range(40):
        trust.observe(100.0, 5_000)
    assert trust.value == pytest.approx(1.0)


def test_what_is_believed_of_a_prediction_is_not_what_it_is_judged_by():
    """Else each step down would make the next prediction look better, and trust settle at the root of the truth."""
    placer = Placer()
    asked = request(prompt_tokens_estimate=1_000, prefix_hashes=(1, 2, 3, 4))
    usage = Usage(prompt_tokens=1_000, cached_tokens=100)
    plan(placer, view(cluster("a")), asked)
    for number in range(300):
        dispatch = placer.dispatched(asked, "a", NOW_S + number)
        placer.finished(dispatch, now_s=NOW_S + number + 0.5, usage=usage, ok=True)
    assert placer.trust["a"].value == pytest.approx(0.1, abs=0.01)
    assert placer.trust["a"].divergence == pytest.approx(0.9, abs=0.01)
    assert placer.dispatched(asked, "a", NOW_S).cached_tokens == pytest.approx(100, abs=10)


def test_trust_comes_back_when_predictions_come_true_again():
    trust = Trust()
    for _ in range(100):
        trust.observe(1_000.0, 100)
    low = trust.value
    for _ in range(100):
        trust.observe(1_000.0, 1_000)
    assert low < 0.2
    assert trust.value > 0.9


def test_a_cluster_whose_cache_was_lost_loses_its_pull():
    placer = Placer()
    fleet = view(cluster("near"), cluster("far", rtt_s=0.1))
    turn = request(prefix_hashes=hashes(SYSTEM, user("ann", 40)), prompt_tokens_estimate=5_600)
    for number in range(60):
        dispatch = placer.dispatched(turn, "far", NOW_S)
        cached = 5_600 if number == 0 else 0
        placer.finished(dispatch, now_s=NOW_S, usage=Usage(prompt_tokens=5_600, cached_tokens=cached), ok=True)
    assert placer.trust["far"].value < 0.3
    assert names(plan(placer, fleet, turn))[0] == "near"


@pytest.mark.parametrize(
    ("first_token", "ok", "believed"),
    [(False, False, 0), (False, True, 44), (True, False, 44), (True, True, 44)],
    ids=["refused, lost or full", "whole answer", "broken stream", "stream"],
)
def test_the_index_believes_in_prompts_that_got_there(first_token, ok, believed):
    placer = Placer()
    turn = request(prefix_hashes=hashes(SYSTEM, user("ann", 40)), prompt_tokens_estimate=5_600)
    dispatch = placer.dispatched(turn, "far", NOW_S)
    assert placer.affinity.match(turn.prefix_hashes) == {"far": 44}, "the next turn can follow at once"
    if first_token:
        placer.first_token(dispatch, NOW_S + 1.0)
    placer.finished(dispatch, now_s=NOW_S + 2.0, usage=None, ok=ok)
    assert placer.affinity.match(turn.prefix_hashes).get("far", 0) == believed


def test_what_was_there_before_a_failed_attempt_is_still_believed():
    placer = Placer()
    first = request(prefix_hashes=hashes(SYSTEM, user("ann", 20)), prompt_tokens_estimate=3_000)
    placer.finished(placer.dispatched(first, "a", NOW_S), now_s=NOW_S + 1.0, usage=None, ok=True)
    longer = request(prefix_hashes=hashes(SYSTEM, user("ann", 20), user("more", 16)), prompt_tokens_estimate=5_000)
    failed = placer.dispatched(longer, "a", NOW_S + 2.0)
    placer.dispatched(longer, "b", NOW_S + 2.0)
    placer.finished(failed, now_s=NOW_S + 3.0, usage=None, ok=False)
    placer.finished(failed, now_s=NOW_S + 4.0, usage=None, ok=False)
    assert placer.affinity.match(longer.prefix_hashes) == {"a": 24, "b": 40}


def test_losing_the_index_costs_affinity_and_nothing_else():
    placer = Placer()
    fleet = view(cluster("a"), cluster("b"))
    turn = request(prefix_hashes=hashes(SYSTEM, user("ann", 40)))
    placer.dispatched(turn, "b", NOW_S)
    placer.affinity.clear()
    assert sorted(names(plan(placer, fleet, turn))) == ["a", "b"]


def test_when_everybody_queues_a_cached_prefix_is_worth_a_somewhat_longer_queue():
    placer = Placer()
    turn = request(prefix_hashes=hashes(SYSTEM, user("ann", 40)), prompt_tokens_estimate=5_600)
    placer.dispatched(turn, "holder", NOW_S - 60.0)

    def goes_to(holder_waits: int, others_wait: int) -> str:
        loads = [{"slots_free": 0, "waiting": waiting} for waiting in (holder_waits, others_wait)]
        return names(plan(placer, view(cluster("holder", load=loads[0]), cluster("other", load=loads[1])), turn))[0]

    assert goes_to(12, 8) == "holder"
    assert goes_to(12, 0) == "other", "with nobody waiting elsewhere only the saved prefill counts"
    assert goes_to(80, 8) == "other", "patience has a bound"
