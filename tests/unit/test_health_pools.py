"""A model that fails costs its cluster that model, and no other."""

import pytest

from gir.health.events import EventKind
from gir.model.cluster import ClusterStatus
from gir.model.ids import ClusterId, ModelId
from gir.model.outcome import Attempt, AttemptResult, Phase
from gir.model.policy import HealthPolicy
from tests.support.fleet import Fleet

US = ClusterId("us-1")
SICK, WELL = ModelId("sick"), ModelId("well")
FAULT, OK = AttemptResult.UPSTREAM_FAULT, AttemptResult.OK


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet("eu-1", "us-1", models=("sick", "well"))
    fleet.run(5.0)
    return fleet


def end(fleet: Fleet, result: AttemptResult, model: ModelId = SICK, count: int = 1) -> None:
    for _ in range(count):
        now_s = fleet.now_s
        ended = Attempt(cluster=US, result=result, phase=Phase.DISPATCHED, started_s=now_s, ended_s=now_s)
        fleet.registry.attempt(ended, now_s, model)


def test_a_pool_is_left_alone_after_failures_that_other_models_successes_do_not_hide(fleet: Fleet) -> None:
    for _ in range(5):
        end(fleet, FAULT)
        end(fleet, OK, WELL, 3)
    state = fleet.state("us-1")
    assert (state.status, state.weight) == (ClusterStatus.HEALTHY, 1.0), "the cluster is not to blame"
    assert (state.pools_ejected, state.pools_on_trial) == ({SICK}, frozenset())
    assert "us-1:HEALTHY w=1.00 pool sick: breaker open 10.0s more: 5 in a row" in fleet.line()
    row = fleet.registry.rows(fleet.now_s)[1]
    assert (row["pools_ejected"], row["breaker"]["gate"]) == (["sick"], "closed")
    assert fleet.state("eu-1").pools_ejected == frozenset()


def test_half_of_a_pools_requests_failing_is_enough_with_enough_samples(fleet: Fleet) -> None:
    end(fleet, FAULT)
    for _ in range(4):
        end(fleet, OK)
        end(fleet, FAULT)
    assert fleet.state("us-1").pools_ejected == frozenset(), "nine samples prove nothing"
    end(fleet, FAULT)
    assert fleet.state("us-1").pools_ejected == {SICK}
    assert "6 of 10 in 10s" in fleet.line()


def test_after_the_ejection_one_request_tries_and_its_success_brings_the_pool_back(fleet: Fleet) -> None:
    end(fleet, FAULT, count=5)
    fleet.run(10.0)
    state = fleet.state("us-1")
    assert (state.pools_ejected, state.pools_on_trial) == (frozenset(), {SICK})
    registry = fleet.registry
    assert [registry.may_take(US, fleet.now_s, SICK) for _ in range(3)] == [True, False, False]
    assert registry.may_take(US, fleet.now_s, WELL), "other models need no probation"
    end(fleet, AttemptResult.CANCELLED)
    assert registry.may_take(US, fleet.now_s, SICK), "a probation that proved nothing is given to the next"
    end(fleet, OK)
    assert fleet.state("us-1").pools_on_trial == frozenset()
    told = [(event.before, event.after) for event in fleet.registry.take_events() if event.kind is EventKind.POOLS]
    assert told == []  # the fleet has taken them already
    assert [event.after for event in fleet.events if event.kind is EventKind.POOLS] == ["sick", ""]


def test_a_probation_that_fails_ejects_the_pool_for_longer(fleet: Fleet) -> None:
    end(fleet, FAULT, count=5)
    fleet.run(10.0)
    end(fleet, FAULT)
    assert "pool sick: breaker open 20.0s more: probation failed" in fleet.line()


def test_a_probation_that_nobody_wants_is_waived(fleet: Fleet) -> None:
    end(fleet, FAULT, count=5)
    fleet.run(10.0 + HealthPolicy().ejection_s + 1.0)
    assert fleet.state("us-1").pools_on_trial == frozenset()


def test_a_pool_that_is_well_again_is_forgotten_and_the_line_is_clean(fleet: Fleet) -> None:
    end(fleet, FAULT)
    assert fleet.registry._records[US].pool_breakers
    fleet.run(HealthPolicy().breaker_window_s + 2.0)
    assert not fleet.registry._records[US].pool_breakers
    assert fleet.line().endswith("us-1:HEALTHY w=1.00>")


def test_a_pool_that_is_gone_is_forgotten(fleet: Fleet) -> None:
    end(fleet, FAULT, count=5)
    fleet.clusters["us-1"].models = ("well",)
    fleet.run(3.0)
    assert fleet.state("us-1").pools_ejected == frozenset()


def test_faults_of_the_path_accuse_the_cluster_whatever_the_model(fleet: Fleet) -> None:
    end(fleet, AttemptResult.LOCAL_FAULT, count=2)
    end(fleet, FAULT, WELL)  # an answer: the run of path failures is over
    end(fleet, AttemptResult.LOCAL_FAULT, count=2)
    assert fleet.state("us-1").status is ClusterStatus.HEALTHY
    end(fleet, AttemptResult.LOCAL_FAULT, WELL)
    assert fleet.state("us-1").status is ClusterStatus.SUSPECT


def test_the_only_pool_of_a_cluster_stands_for_the_cluster() -> None:
    fleet = Fleet("eu-1", "us-1", models=("sick",))
    fleet.run(5.0)
    end(fleet, FAULT, count=5)
    state = fleet.state("us-1")
    assert (state.status, state.pools_ejected) == (ClusterStatus.SUSPECT, frozenset())


@pytest.mark.parametrize("model", [ModelId(""), ModelId("never-heard-of")])
def test_bad_answers_of_no_known_pool_accuse_the_cluster(fleet: Fleet, model: ModelId) -> None:
    end(fleet, FAULT, model, count=5)
    assert fleet.state("us-1").status is ClusterStatus.SUSPECT


def test_a_cluster_on_trial_is_judged_by_whatever_it_answers(fleet: Fleet) -> None:
    end(fleet, AttemptResult.LOCAL_FAULT, count=3)
    fleet.run(10.0)
    assert fleet.state("us-1").probation
    assert fleet.registry.may_take(US, fleet.now_s, SICK)
    end(fleet, FAULT)
    assert "breaker open 20.0s more: upstream_fault probation failed" in fleet.line()
