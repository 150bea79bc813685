"""Decisions are kept within bounds and can be told later exactly as they were made."""

import json

import msgspec
import pytest

from gir.model.cluster import ClusterStatus
from gir.model.policy import PlacementPolicy
from gir.place import Placer, as_json
from gir.place.explain import render
from tests.support.placing import NOW_S, cluster, names, plan, policy, request, view, why

TWO = view(cluster("cheap", load={"slots_free": 2}), cluster("dear", tier="on_demand"))


def test_only_the_last_requests_are_kept():
    placer = Placer(decisions_max=10)
    for number in range(25):
        plan(placer, TWO, request(f"r{number}"))
    assert len(placer.decisions) == 10
    assert placer.decisions.latest(3) == ["r24", "r23", "r22"]
    assert placer.decisions.of("r0") == ()


def test_each_attempt_of_a_request_is_kept_up_to_a_bound():
    placer = Placer()
    plan(placer, TWO)
    plan(placer, TWO, tried=frozenset({"cheap"}))
    first, second = placer.decisions.of("r-1")
    assert set(names(first)) == {"cheap", "dear"}
    assert names(second) == ["dear"]
    for _ in range(50):
        plan(placer, TWO)
    assert len(placer.decisions.of("r-1")) <= 8


def test_a_decision_is_told_as_it_was_made_whatever_happened_since():
    placer = Placer()
    made = plan(placer, TWO)
    then = plan(placer, TWO, explain=True)
    for number in range(30):
        placer.dispatched(request(f"later-{number}"), "cheap", NOW_S)
    plan(placer, view(cluster("cheap"), version=9), request("other"))
    told = placer.decisions.of("r-1")[0]
    assert told.view_version == made.view_version == 1
    assert [(each.cluster, each.score_s, each.room) for each in told.ranked] == [
        (each.cluster, each.score_s, each.room) for each in made.ranked
    ]
    assert told.tiers == then.tiers


def test_a_refusal_is_kept_too():
    placer = Placer()
    plan(placer, TWO, request("r-9", cluster_pinned="mars"))
    told = placer.decisions.of("r-9")[0]
    assert told.forbidden
    assert "pinned to mars" in render(told)


def test_explaining_remembers_nothing():
    placer = Placer()
    plan(placer, TWO, explain=True)
    assert len(placer.decisions) == 0


def test_an_explanation_is_plain_json():
    asked = request(session_key="s", prefix_hashes=tuple(range(1, 30)))
    told = as_json(plan(Placer(), TWO, asked, explain=True, canary="rule=next draw=0.1<0.2 -> llama"))
    assert json.loads(json.dumps(told)).keys() == told.keys()
    assert told["canary"] == "rule=next draw=0.1<0.2 -> llama"
    assert {tier["tier"] for tier in told["tiers"]} == {"reserved", "on_demand"}


def test_the_text_says_what_stands_against_each_cluster():
    fleet = view(
        cluster("on-trial", probation=True),
        cluster("ramping", weight=0.01, rtt_s=0.001),
        cluster("silent", load={"waiting": None}),
        cluster("full", backoff_until_s=NOW_S + 2.0),
    )
    text = render(plan(Placer(), fleet, explain=True))
    assert "on probation" in text
    assert "held back by its weight" in text
    assert "not reported: waiting" in text
    assert "full  backoff: asked for less work; back in 2.0 s" in text


def test_whoever_waits_in_reserve_or_was_not_scored_is_told_of_too():
    members = [cluster(f"c{number}", rtt_s=0.1 + number / 1_000) for number in range(60)]
    spare = cluster("spare", status=ClusterStatus.SUSPECT, reason="no beat for 7 s")
    told = plan(Placer(), view(*members, spare), explain=True)
    assert {*names(told), *why(told)} == {*(each.id for each in members), "spare"}
    assert why(told)["spare"] == "suspect"
    assert why(told)["c59"] == "shortlist"
    assert "spare  suspect: in reserve while others can serve (no beat for 7 s)" in render(told)


def test_tracking_a_prompt_keeps_no_text_of_it():
    placer = Placer()
    plan(placer, TWO, request(prefix_hashes=(11, 22, 33), session_key="secret"))
    kept = msgspec.json.encode(as_json(placer.decisions.of("r-1")[0])).decode()
    assert "prefix_hashes" not in kept
    assert "secret" not in kept


@pytest.mark.parametrize(("waiting", "goes_to"), [(0, "holder"), (1, "holder"), (2, "other"), (8, "other")])
def test_reuse_and_load_are_traded_by_degrees(waiting, goes_to):
    placer = Placer()
    asked = request(prefix_hashes=tuple(range(1, 41)), prompt_tokens_estimate=5_000)
    placer.dispatched(asked, "holder", NOW_S - 60.0)
    busy = {"slots_free": 4, "waiting": waiting, "service_rate_per_s": 4.0}
    fleet = view(cluster("holder", load=busy), cluster("other"))
    assert names(plan(placer, fleet, asked))[0] == goes_to


def test_a_system_prompt_shared_by_everybody_does_not_draw_everybody_to_one_cluster():
    placer = Placer()
    system = tuple(range(1, 9))
    fleet = view(*(cluster(f"c{number}", load={"slots_total": 64, "slots_free": 64}) for number in range(4)))
    sent: dict[str, int] = {}
    for number in range(160):
        own = tuple(1_000 * (number + 1) + block for block in range(12))
        asked = request(f"r{number}", prefix_hashes=system + own, prompt_tokens_estimate=2_500)
        name = names(plan(placer, fleet, asked, draw=(number * 0.618) % 1.0))[0]
        placer.dispatched(asked, name, NOW_S)
        sent[name] = sent.get(name, 0) + 1
    assert len(sent) == 4
    assert max(sent.values()) <= 1.25 * 160 / 4


def test_the_index_is_resized_by_policy():
    placer = Placer()
    plan(placer, TWO, policy=policy(placement=PlacementPolicy(affinity_blocks_max=64)))
    assert placer.affinity.blocks_max == 64
