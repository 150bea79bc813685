"""The registry: losing clusters by each detector, the way back, and what operators want."""

import msgspec
import pytest

from gir.health.events import Cause, EventKind
from gir.model.cluster import ClusterStatus
from gir.model.ids import ClusterId, ModelId
from gir.model.outcome import Attempt, AttemptResult, Phase
from gir.model.policy import HealthPolicy
from tests.support.fleet import Fleet, pool

EU, US = ClusterId("eu-1"), ClusterId("us-1")


def settled(*names: str, health: HealthPolicy | None = None) -> Fleet:
    """A fleet that has served for a while, so that whoever comes later is not among the first."""
    fleet = Fleet(*names, health=health)
    fleet.run(30.0)
    return fleet


def test_the_first_clusters_after_a_start_serve_in_full_at_once() -> None:
    fleet = Fleet("eu-1", "us-1")
    assert fleet.line() == "<Registry eu-1:UNKNOWN w=0.00 no beat yet | us-1:UNKNOWN w=0.00 no beat yet>"
    fleet.run(0.5)
    assert fleet.line() == "<Registry eu-1:HEALTHY w=1.00 | us-1:HEALTHY w=1.00>"


def test_an_empty_registry_has_a_line_too() -> None:
    assert Fleet().line() == "<Registry no clusters>"


def test_a_newcomer_to_a_serving_fleet_proves_itself_and_ramps() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.join("ap-1")
    fleet.run(0.5)
    assert "ap-1:UNKNOWN w=0.00 proving: beats 1/2, probes 1/2" in fleet.line()
    fleet.run(2.0)
    assert "ap-1:RAMPING w=0.10 ramp" in fleet.line()
    fleet.run(30.0)
    assert "ap-1:HEALTHY w=1.00" in fleet.line()


def test_without_probes_beats_alone_prove_a_newcomer() -> None:
    fleet = settled("eu-1", health=HealthPolicy(probe=False))
    fleet.join("ap-1")
    fleet.run(0.5)
    assert "proving: beats 1/2" in fleet.line()
    assert "probes" not in fleet.line()
    fleet.run(2.5)
    assert fleet.state("ap-1").status is ClusterStatus.RAMPING


def test_a_frozen_cluster_is_suspected_by_its_probes_within_4s() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.freeze("us-1")
    fleet.run(3.5)
    assert "us-1:SUSPECT w=0.00 probes missed" in fleet.line()


def test_a_cluster_is_unreachable_while_its_data_path_is_what_was_lost() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.freeze("us-1")
    fleet.run(2.0)
    assert not fleet.state("us-1").unreachable, "two misses are no verdict yet"
    fleet.run(1.5)
    assert fleet.state("us-1").unreachable
    fleet.run(20.0)
    assert (fleet.state("us-1").status, fleet.state("us-1").unreachable) == (ClusterStatus.DEAD, True)
    fleet.thaw("us-1")
    fleet.run(1.5)
    assert not fleet.state("us-1").unreachable


def test_a_cluster_whose_beats_alone_are_lost_is_reachable() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.clusters["us-1"].beating = False
    fleet.run(30.0)
    assert (fleet.state("us-1").status, fleet.state("us-1").unreachable) == (ClusterStatus.DEAD, False)


def test_without_probes_only_the_death_of_its_beats_makes_a_cluster_unreachable() -> None:
    fleet = settled("eu-1", "us-1", "ap-1", health=HealthPolicy(probe=False))
    fleet.freeze("us-1")
    fleet.run(10.0)
    assert (fleet.state("us-1").status, fleet.state("us-1").unreachable) == (ClusterStatus.SUSPECT, False)
    fleet.run(8.0)
    assert fleet.state("us-1").unreachable


def test_most_of_a_fleet_lost_together_is_not_called_unreachable_before_the_bound() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.freeze("us-1", "ap-1")
    fleet.run(30.0)
    assert not fleet.state("us-1").unreachable, "the router may be the deaf one"
    fleet.run(15.0)
    assert fleet.state("us-1").unreachable


def test_silent_beats_over_a_working_path_fade_then_suspect_then_kill() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.clusters["us-1"].beating = False
    fleet.run(4.0)
    state = fleet.state("us-1")
    assert (state.status, 0.8 < state.weight < 1.0) == (ClusterStatus.HEALTHY, True)
    fleet.run(4.0)
    state = fleet.state("us-1")
    assert (state.status, 0.1 < state.weight < 0.8) == (ClusterStatus.SUSPECT, True)
    fleet.run(9.0)
    assert "us-1:DEAD w=0.00 beats silent" in fleet.line()


def test_a_crashed_agent_is_suspected_before_any_timer() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.crash("us-1")
    assert "us-1:SUSPECT w=" in fleet.line()
    assert "beat stream lost, silent" in fleet.line()
    fleet.run(1.0)
    assert "us-1:SUSPECT w=0.00 probe refused" in fleet.line()
    event = next(event for event in fleet.events if event.cluster == US and event.after == "suspect")
    assert (event.cause, event.redispatch) == (Cause.BEATS, True)


def test_a_goodbye_takes_no_new_work_and_leaves_waiting_requests_alone() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.clusters["us-1"].beating = False
    fleet.registry.goodbye(US, 1, fleet.now_s)
    assert "us-1:DEAD w=0.00 said goodbye" in fleet.line()
    fleet.statuses("us-1")
    assert [event.redispatch for event in fleet.events if event.after == "dead"] == [False]
    fleet.restart("us-1")
    fleet.run(3.0)
    assert "us-1:SUSPECT w=0.10 hold-down" in fleet.line()
    assert "(flap 0)" in fleet.line()


def test_requests_that_fail_because_their_cluster_was_lost_are_not_held_against_it_twice() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    started_s = fleet.now_s
    fleet.freeze("us-1")
    fleet.run(4.0)
    moved = Attempt(
        cluster=US,
        result=AttemptResult.LOCAL_FAULT,
        phase=Phase.DISPATCHED,
        started_s=started_s,
        ended_s=fleet.now_s,
    )
    for _ in range(10):
        fleet.registry.attempt(moved, fleet.now_s)
    assert fleet.registry.rows(fleet.now_s)[2]["breaker"]["gate"] == "closed"


def test_failing_attempts_open_the_breaker_and_one_probation_leads_back_through_a_ramp() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.attempts("us-1", AttemptResult.LOCAL_FAULT, 3)
    assert "us-1:SUSPECT w=0.00 breaker open 10.0s more: local_fault 3 in a row" in fleet.line()
    assert fleet.state("us-1").backoff_until_s == fleet.now_s + 10.0
    fleet.run(10.0)
    state = fleet.state("us-1")
    assert (state.status, state.probation, state.weight) == (ClusterStatus.RAMPING, True, 0.1)
    assert "breaker half open" in fleet.line()
    assert fleet.registry.may_take(US, fleet.now_s)
    assert not fleet.registry.may_take(US, fleet.now_s)
    assert fleet.registry.may_take(EU, fleet.now_s)
    fleet.attempts("us-1", AttemptResult.OK)
    assert "us-1:RAMPING w=0.10 ramp 0.0s of 30s" in fleet.line()
    assert not fleet.state("us-1").probation


def test_a_probation_that_no_request_wants_is_waived_and_the_ramp_is_the_test() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.attempts("us-1", AttemptResult.LOCAL_FAULT, 3)
    fleet.run(19.5)
    assert fleet.state("us-1").probation
    fleet.run(1.0)
    assert "us-1:RAMPING w=0.10 ramp" in fleet.line()


def test_an_upstream_origin_ejection_leaves_waiting_requests_alone() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.attempts("us-1", AttemptResult.UPSTREAM_FAULT, 5)
    assert [event.redispatch for event in fleet.events if event.after == "suspect"] == [False]


@pytest.mark.parametrize("result", [AttemptResult.CLIENT_ERROR, AttemptResult.CANCELLED])
def test_client_errors_and_cancelled_attempts_never_count(result: AttemptResult) -> None:
    fleet = settled("eu-1", "us-1")
    fleet.attempts("us-1", result, 1_000)
    assert "us-1:HEALTHY w=1.00" in fleet.line()


def test_back_pressure_lowers_the_weight_and_honours_retry_after_but_never_ejects() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.attempts("us-1", AttemptResult.BACKPRESSURE, 1_000, retry_after_s=7.0)
    state = fleet.state("us-1")
    assert (state.status, state.weight, state.backoff_until_s) == (ClusterStatus.HEALTHY, 0.5, fleet.now_s + 7.0)
    assert state.pressure == 0.5
    assert "back-pressure x0.50, asked for none for 7.0s" in fleet.line()
    fleet.run(20.0)
    assert "us-1:HEALTHY w=1.00>" in fleet.line()


def test_a_probation_answered_with_back_pressure_or_client_error_may_be_tried_again() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.attempts("us-1", AttemptResult.LOCAL_FAULT, 3)
    fleet.run(10.0)
    for result in (AttemptResult.BACKPRESSURE, AttemptResult.CLIENT_ERROR):
        assert fleet.registry.may_take(US, fleet.now_s)
        fleet.attempts("us-1", result)
    assert fleet.registry.may_take(US, fleet.now_s)


def test_full_share_is_back_within_45s_of_health_monotone_and_small_at_first() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.freeze("us-1")
    fleet.run(30.0)
    fleet.thaw("us-1")
    healed_s = fleet.now_s
    fleet.run(45.0)
    assert fleet.statuses("us-1")[-3:] == ["suspect", "ramping", "healthy"]
    weights = [(at_s, weight) for at_s, weight in fleet.weights["us-1"] if at_s > healed_s + 4.0 and weight > 0]
    ramp = [weight for _, weight in weights]
    assert ramp == sorted(ramp)
    start_s = weights[0][0]
    assert all(weight <= 0.25 for at_s, weight in weights if at_s <= start_s + 5.0)
    assert ramp[-1] == 1.0


def test_a_flapping_cluster_is_kept_out_longer_each_time() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    for _ in range(10):
        fleet.freeze("us-1")
        fleet.run(10.0)
        fleet.thaw("us-1")
        fleet.run(10.0)
    fleet.statuses("us-1")
    changes = [event for event in fleet.events if event.cluster == US and event.kind is EventKind.STATUS]
    falls = [event.at_s for event in changes if event.before in ("healthy", "ramping") and event.after == "suspect"]
    assert len(falls) >= 3
    later = [event.at_s for event in changes if event.at_s > falls[2]]
    assert all(sum(at_s <= other_s < at_s + 60.0 for other_s in later) <= 2 for at_s in later)


def test_flaps_are_forgiven_after_ten_good_minutes() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.freeze("us-1")
    fleet.run(5.0)
    fleet.thaw("us-1")
    fleet.run(640.0)
    assert fleet.registry.rows(fleet.now_s)[1]["flaps"] == 0


def test_failing_again_on_the_way_back_starts_the_way_anew_without_a_new_flap() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.freeze("us-1")
    fleet.run(8.0)
    fleet.thaw("us-1")
    fleet.run(3.0)
    assert "us-1:SUSPECT w=0.10 hold-down" in fleet.line()
    fleet.crash("us-1")
    fleet.run(2.0)
    fleet.restart("us-1")
    fleet.run(3.0)
    assert "(flap 1)" in fleet.line()


def test_an_epoch_change_without_a_broken_stream_keeps_the_cluster_serving() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.restart("us-1")
    fleet.run(5.0)
    assert "us-1:HEALTHY w=1.00" in fleet.line()
    assert (EventKind.EPOCH, "1", "2") in [(e.kind, e.before, e.after) for e in fleet.events if e.cluster == US]


def test_a_new_epoch_that_never_beats_is_suspected() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.restart("us-1")
    fleet.clusters["us-1"].beating = False
    fleet.run(7.0)
    assert fleet.state("us-1").status is ClusterStatus.SUSPECT


def test_what_an_unknown_or_outdated_sender_says_is_ignored_with_a_reason() -> None:
    fleet = settled("eu-1")
    stranger = Fleet("xx-1").clusters["xx-1"]
    assert fleet.registry.beat(stranger.report(), fleet.now_s) == "no hello before the beat"
    fleet.registry.goodbye(stranger.id, 1, fleet.now_s)
    fleet.registry.stream_lost(stranger.id, 1, fleet.now_s)
    fleet.registry.probe(stranger.id, False, None, fleet.now_s)
    fleet.attempts("xx-1", AttemptResult.LOCAL_FAULT, 3)
    assert not fleet.registry.may_take(stranger.id, fleet.now_s)
    fleet.restart("eu-1")
    old = fleet.clusters["eu-1"]
    old.epoch = 1
    assert "older than 2" in fleet.registry.hello(old.hello(), fleet.now_s)
    assert "not after" in fleet.registry.beat(old.report(), fleet.now_s)
    fleet.registry.goodbye(EU, 1, fleet.now_s)
    assert "eu-1:HEALTHY" in fleet.line()


def test_the_view_is_rebuilt_only_when_something_changed() -> None:
    fleet = settled("eu-1", "us-1")
    view = fleet.registry.view
    fleet.attempts("eu-1", AttemptResult.OK, 10)
    fleet.registry.probe(EU, True, 0.0101, fleet.now_s)
    assert fleet.registry.reconcile(fleet.now_s) is view
    fleet.registry.probe(EU, True, 0.5, fleet.now_s)
    assert fleet.registry.view.version == view.version + 1
    assert fleet.state("eu-1").rtt_s == pytest.approx(0.108, abs=0.001)


def test_adapters_that_come_and_go_change_the_index() -> None:
    fleet = settled("eu-1")
    cluster = fleet.clusters["eu-1"]
    cluster.models = ("llama", "qwen")
    fleet.run(2.0)
    assert set(fleet.registry.view.by_model) == {"llama", "qwen"}
    cluster.models = ("qwen",)
    fleet.run(2.0)
    assert set(fleet.registry.view.by_model) == {"qwen"}
    assert pool("qwen") == fleet.state("eu-1").pools[ModelId("qwen")]


def test_rows_are_plain_json_with_ages_instead_of_times() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.registry.goodbye(US, 1, fleet.now_s)
    rows = msgspec.json.decode(msgspec.json.encode(fleet.registry.rows(fleet.now_s)))
    assert [row["cluster"] for row in rows] == ["eu-1", "us-1"]
    assert (rows[0]["status"], rows[0]["weight"], rows[0]["slots_total"]) == ("healthy", 1.0, 8)
    assert rows[0]["probes"]["rtt_ms"] == 10.0
    assert (rows[1]["beats"]["state"], rows[1]["beats"]["seq"]) == ("gone", None)


def test_a_newcomer_without_slots_waits_and_ramps_when_it_has_some() -> None:
    fleet = settled("eu-1")
    cluster = fleet.join("us-1", models=())
    fleet.run(40.0)
    assert "us-1:UNKNOWN w=0.00 no slots yet" in fleet.line()
    cluster.models = ("llama",)
    fleet.run(2.5)
    assert fleet.state("us-1").status is ClusterStatus.RAMPING


def test_news_that_comes_just_when_a_sweep_is_due_is_not_lost() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    at_s = fleet.now_s + fleet.health.sweep_interval_s
    for _ in range(3):
        at_s += fleet.health.sweep_interval_s
        fleet.registry.probe(US, False, None, at_s)
    assert "us-1:SUSPECT" in fleet.line()
