"""The observer may be the sick one: pauses, everything stale at once, mass loss, last candidates."""

import pytest

from gir.health.events import Cause, EventKind
from gir.health.quorum import CALM, Judgement, Member, judge
from gir.model.cluster import ClusterStatus
from gir.model.ids import ClusterId
from gir.model.outcome import Attempt, AttemptResult, Phase
from gir.model.policy import HealthPolicy
from tests.support.fleet import Fleet

EU, US, AP = ClusterId("eu-1"), ClusterId("us-1"), ClusterId("ap-1")
POLICY = HealthPolicy()


def settled(*names: str) -> Fleet:
    fleet = Fleet(*names)
    fleet.run(30.0)
    return fleet


def member(name: str, silent_since_s: float | None = None) -> Member:
    return Member(ClusterId(name), silent_since_s)


@pytest.mark.parametrize(
    ("members", "judgement"),
    [
        pytest.param([], CALM, id="nobody"),
        pytest.param([member("a"), member("b")], CALM, id="all heard"),
        pytest.param([member("a", 5.0), member("b")], CALM, id="one of two"),
        pytest.param([member("a", 5.0), member("b", 9.0), member("c")], Judgement(recent=frozenset("ab")), id="most"),
        pytest.param([member("a", 5.0), member("b", 25.0), member("c")], CALM, id="most, but not together"),
        pytest.param([member("a", 5.0)], Judgement(fail_open=True, recent=frozenset("a")), id="the only one"),
        pytest.param([member("a", 5.0), member("b", 9.0)], Judgement(fail_open=True, recent=frozenset("ab")), id="all"),
        pytest.param(
            [member("a", 5.0), member("b", 90.0)], Judgement(fail_open=True, recent=frozenset("b")), id="the last one"
        ),
    ],
)
def test_the_silent_are_judged_against_the_heard(members: list[Member], judgement: Judgement) -> None:
    assert judge(members, POLICY) == judgement


def test_a_paused_router_ejects_nobody_and_serves_at_once_when_it_resumes() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    before = fleet.line()
    fleet.pause(40.0)
    # What piled up meanwhile comes in first: timeouts of probes and attempts, and streams given up by their agents.
    for cluster in (EU, US, AP):
        fleet.registry.probe(cluster, False, None, fleet.now_s)
        fleet.registry.stream_lost(cluster, 1, fleet.now_s)
        stuck = Attempt(
            cluster=cluster,
            result=AttemptResult.LOCAL_FAULT,
            phase=Phase.DISPATCHED,
            started_s=fleet.now_s - 41.0,
            ended_s=fleet.now_s,
        )
        for _ in range(10):
            fleet.registry.attempt(stuck, fleet.now_s)
    assert fleet.line() == before
    fleet.run(0.25)
    for name in ("eu-1", "us-1", "ap-1"):
        fleet.restart(name)
    fleet.run(60.0)
    assert fleet.line() == before
    assert all(fleet.statuses(name) == ["healthy"] for name in fleet.clusters)
    gaps = [(event.after, event.cause) for event in fleet.events if event.kind is EventKind.GAP]
    assert gaps == [("39.5s", Cause.OBSERVER)]


def test_agents_that_do_not_come_back_after_a_pause_are_noticed_after_all() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.pause(40.0)
    fleet.clusters["us-1"].beating = False
    fleet.run(14.0)
    assert fleet.state("us-1").status is ClusterStatus.HEALTHY
    fleet.run(6.0)
    assert fleet.state("us-1").status is ClusterStatus.DEAD


def test_a_cluster_that_froze_during_the_pause_is_caught_by_its_probes() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.pause(40.0)
    fleet.freeze("us-1")
    fleet.run(4.5)
    assert fleet.state("us-1").status is ClusterStatus.SUSPECT


def test_a_two_second_stall_of_the_loop_accuses_nobody_whose_agent_gave_up_on_it() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.pause(2.0)
    fleet.registry.stream_lost(US, 1, fleet.now_s)
    fleet.run(5.0)
    fleet.restart("us-1")
    fleet.run(20.0)
    assert "us-1:HEALTHY w=1.00" in fleet.line()
    fleet.registry.stream_lost(US, 2, fleet.now_s)
    assert fleet.state("us-1").status is ClusterStatus.SUSPECT


def test_a_late_sweep_alone_is_no_pause() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.pause(1.4)
    fleet.registry.stream_lost(US, 1, fleet.now_s)
    assert fleet.state("us-1").status is ClusterStatus.SUSPECT


def test_a_ramp_does_not_run_on_while_the_router_is_paused() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.join("ap-1")
    fleet.run(8.0)
    weight = fleet.state("ap-1").weight
    fleet.pause(25.0)
    fleet.run(0.25)
    assert fleet.state("ap-1").weight == pytest.approx(weight, abs=0.03)


def test_everything_stale_at_once_keeps_the_last_good_view_and_ends_when_somebody_is_heard() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    for cluster in fleet.clusters.values():
        cluster.beating = False
    fleet.run(60.0)
    assert fleet.registry.view.fail_open
    assert fleet.line().startswith("<Registry FAIL OPEN ap-1:HEALTHY w=1.00 fail open: beats silent")
    assert fleet.statuses("eu-1")[-1] == "healthy"
    fleet.clusters["us-1"].beating = True
    fleet.run(2.5)
    assert not fleet.registry.view.fail_open
    assert all(fleet.state(name).status is ClusterStatus.HEALTHY for name in fleet.clusters)
    assert [event.after for event in fleet.events if event.kind is EventKind.FAIL_OPEN] == ["open", "closed"]
    fleet.run(16.0)
    assert fleet.state("us-1").status is ClusterStatus.HEALTHY
    assert fleet.state("eu-1").status in (ClusterStatus.SUSPECT, ClusterStatus.DEAD)


def test_a_whole_fleet_that_freezes_stays_usable_but_breakers_keep_their_say() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.freeze("eu-1", "us-1")
    fleet.run(8.0)
    assert fleet.registry.view.fail_open
    fleet.attempts("us-1", AttemptResult.LOCAL_FAULT, 3)
    assert fleet.state("eu-1").weight == 1.0
    assert "us-1:SUSPECT w=0.00 breaker open" in fleet.line()
    fleet.thaw("eu-1", "us-1")
    fleet.run(5.0)
    assert "eu-1:HEALTHY w=1.00" in fleet.line()
    assert "us-1:SUSPECT w=0.00 breaker open" in fleet.line()


def test_what_was_out_before_everybody_fell_silent_is_given_back_its_old_standing_only() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.attempts("ap-1", AttemptResult.LOCAL_FAULT, 3)
    fleet.freeze("us-1")
    fleet.run(8.0)
    fleet.thaw("us-1")
    fleet.run(3.5)
    assert "us-1:SUSPECT w=0.10 hold-down" in fleet.line()
    fleet.run(0.5)
    fleet.freeze("eu-1", "us-1", "ap-1")
    fleet.run(8.0)
    assert fleet.registry.view.fail_open
    assert "ap-1:RAMPING w=0.10 breaker half open" in fleet.line()
    assert "us-1:RAMPING" in fleet.line()
    fleet.thaw("eu-1", "us-1", "ap-1")
    fleet.run(2.5)
    assert "eu-1:HEALTHY w=1.00" in fleet.line()
    assert fleet.registry.rows(fleet.now_s)[2]["flaps"] == 1


def test_a_fleet_that_is_really_gone_by_its_own_word_is_not_kept_open() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.crash("eu-1")
    fleet.crash("us-1")
    assert fleet.registry.view.fail_open
    fleet.run(1.0)
    assert not fleet.registry.view.fail_open
    assert all(state.weight == 0.0 for state in fleet.registry.view.clusters)
    fleet.run(30.0)
    fleet.restart("us-1")
    healed_s = fleet.now_s
    while fleet.state("us-1").weight == 0.0:
        fleet.run(0.25)
    assert fleet.now_s - healed_s <= 5.0


def test_a_region_that_falls_silent_gives_its_work_away_at_once_but_is_written_off_later() -> None:
    fleet = settled("eu-1", "us-1", "us-2")
    fleet.freeze("us-1", "us-2")
    fleet.run(4.0)
    assert fleet.line().count("SUSPECT") == 2
    assert not fleet.registry.view.fail_open
    assert "lost with too many others to be written off" in fleet.line()
    fleet.run(20.0)
    assert 0.0 < fleet.state("us-1").weight < 0.5
    fleet.run(20.0)
    assert [fleet.state(name).status for name in ("us-1", "us-2")] == [ClusterStatus.DEAD] * 2


def test_the_last_candidate_for_a_model_is_never_ejected() -> None:
    fleet = Fleet("eu-1", "us-1")
    fleet.join("ap-1", models=("qwen",))
    fleet.run(30.0)
    fleet.attempts("ap-1", AttemptResult.LOCAL_FAULT, 3)
    assert "ap-1:SUSPECT w=1.00 breaker open 10.0s more: local_fault 3 in a row, last resort" in fleet.line()
    assert fleet.state("ap-1").backoff_until_s == 0.0
    fleet.run(15.0)
    assert fleet.registry.may_take(AP, fleet.now_s)
    assert fleet.registry.may_take(AP, fleet.now_s)
    fleet.attempts("ap-1", AttemptResult.OK)
    assert "ap-1:RAMPING" in fleet.line()


def test_silence_never_ejects_the_last_candidate_either() -> None:
    fleet = Fleet("eu-1", "us-1")
    fleet.join("ap-1", models=("qwen",))
    fleet.run(30.0)
    fleet.clusters["ap-1"].beating = False
    fleet.run(60.0)
    assert "ap-1:SUSPECT w=1.00 beats silent 61.8s, last resort |" in fleet.line()


def test_of_several_last_candidates_only_those_heard_of_lately_are_kept() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.join("ap-1", models=("qwen",))
    fleet.join("ap-2", models=("qwen",))
    fleet.run(40.0)
    fleet.freeze("ap-1")
    fleet.run(60.0)
    fleet.attempts("ap-2", AttemptResult.LOCAL_FAULT, 3)
    assert fleet.state("ap-1").status is ClusterStatus.DEAD
    assert "ap-2:SUSPECT w=1.00" in fleet.line()


def test_when_every_cluster_fails_alike_all_of_them_stay_usable() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    for name in fleet.clusters:
        fleet.attempts(name, AttemptResult.UPSTREAM_FAULT, 5)
    assert fleet.line().count("last resort") == 3


def test_clusters_that_neither_probes_nor_requests_reach_are_no_last_resort_until_one_does() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.freeze("eu-1", "us-1")
    fleet.run(4.0)
    for name in fleet.clusters:
        fleet.attempts(name, AttemptResult.LOCAL_FAULT, 3)
    fleet.run(0.5)
    assert "last resort" not in fleet.line()
    assert [fleet.state(name).weight for name in fleet.clusters] == [0.0, 0.0]
    fleet.thaw("us-1")
    fleet.run(1.5)
    assert fleet.state("us-1").weight > 0.0, "a probe has reached it"
    assert fleet.state("eu-1").weight == 0.0


def test_a_newcomer_tried_as_the_last_resort_that_fails_gets_a_probation() -> None:
    fleet = settled("eu-1")
    fleet.join("us-1", models=("llama", "qwen"))
    fleet.run(0.25)
    assert "us-1:SUSPECT w=1.00 proving: beats 1/2, probes 1/2, last resort" in fleet.line()
    fleet.attempts("us-1", AttemptResult.LOCAL_FAULT, 3)
    assert "us-1:SUSPECT w=1.00 breaker open" in fleet.line()


def test_a_newcomer_that_brings_a_model_nobody_served_starts_in_full() -> None:
    fleet = settled("eu-1")
    fleet.join("us-1", models=("qwen",))
    fleet.run(0.25)
    assert "us-1:HEALTHY w=1.00" in fleet.line()
