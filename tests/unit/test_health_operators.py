"""What operators and agents want of a cluster, beside its health: drain, maintenance, weights, policies."""

import msgspec
import pytest

from gir.health.events import EventKind
from gir.model.beat import Condition
from gir.model.cluster import ClusterStatus, Intent
from gir.model.ids import ClusterId
from gir.model.policy import ClusterPolicy, HealthPolicy, PolicySnapshot
from tests.support.fleet import Fleet

EU, US = ClusterId("eu-1"), ClusterId("us-1")


def settled(*names: str) -> Fleet:
    """A fleet that has served for a while."""
    fleet = Fleet(*names)
    fleet.run(30.0)
    return fleet


@pytest.mark.parametrize(("intent", "word"), [(Intent.DRAIN, "drain"), (Intent.MAINTENANCE, "maintenance")])
def test_an_operator_takes_a_healthy_cluster_out_and_it_comes_back_by_a_ramp(intent: Intent, word: str) -> None:
    fleet = settled("eu-1", "us-1")
    fleet.registry.set_intent(US, intent, fleet.now_s)
    fleet.registry.set_intent(US, intent, fleet.now_s)
    assert f"us-1:HEALTHY w=0.00 {word}>" in fleet.line()
    fleet.run(5.0)
    fleet.registry.set_intent(US, Intent.SERVE, fleet.now_s)
    assert "us-1:RAMPING w=0.10" in fleet.line()
    fleet.statuses("us-1")
    assert [(e.before, e.after) for e in fleet.events if e.kind is EventKind.INTENT] == [
        ("serve", word),
        (word, "serve"),
    ]


def test_a_cluster_in_maintenance_raises_no_alarms_and_earns_no_flaps() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.registry.set_intent(US, Intent.MAINTENANCE, fleet.now_s)
    fleet.freeze("us-1")
    fleet.run(20.0)
    assert fleet.statuses("us-1") == ["healthy"]
    assert fleet.registry.rows(fleet.now_s)[1]["flaps"] == 0


def test_the_last_cluster_may_be_drained_and_comes_back_in_full() -> None:
    fleet = settled("eu-1")
    fleet.registry.set_intent(EU, Intent.DRAIN, fleet.now_s)
    assert fleet.state("eu-1").weight == 0.0
    fleet.registry.set_intent(EU, Intent.SERVE, fleet.now_s)
    assert fleet.state("eu-1").weight == 1.0


def test_a_pinned_weight_bounds_the_share_and_zero_takes_it_out() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.registry.set_weight(US, 0.3, fleet.now_s)
    assert "us-1:HEALTHY w=0.30 weight pinned to 0.3" in fleet.line()
    fleet.registry.set_weight(US, 0.0, fleet.now_s)
    assert fleet.state("us-1").weight == 0.0
    with pytest.raises(ValueError, match=r"weight is 1\.5: must be between 0 and 1"):
        fleet.registry.set_weight(US, 1.5, fleet.now_s)
    with pytest.raises(ValueError, match="cluster 'xx' is unknown; known are eu-1, us-1"):
        fleet.registry.set_weight(ClusterId("xx"), 0.5, fleet.now_s)


@pytest.mark.parametrize("condition", [Condition.DRAINING, Condition.WARMING])
def test_an_agent_that_is_not_serving_gets_nothing_and_ramps_when_it_is(condition: Condition) -> None:
    fleet = settled("eu-1", "us-1")
    fleet.clusters["us-1"].condition = condition
    fleet.run(3.0)
    assert f"us-1:HEALTHY w=0.00 agent says {condition.value}" in fleet.line()
    fleet.clusters["us-1"].condition = Condition.SERVING
    fleet.run(2.5)
    assert fleet.state("us-1").status is ClusterStatus.RAMPING


def test_policy_pins_a_cluster_until_an_operator_says_otherwise_and_a_changed_policy_wins_again() -> None:
    fleet = settled("eu-1", "us-1")
    entry = ClusterPolicy(id=US, weight=0.5, intent="drain", tier="spot")
    policy = PolicySnapshot(health=fleet.health, clusters=(entry,))
    fleet.registry.apply_policy(policy, fleet.now_s)
    state = fleet.state("us-1")
    assert (state.intent, state.tier, state.weight) == (Intent.DRAIN, "spot", 0.0)
    fleet.registry.set_intent(US, Intent.SERVE, fleet.now_s)
    fleet.registry.apply_policy(msgspec.structs.replace(policy, version=2), fleet.now_s)
    assert fleet.state("us-1").intent is Intent.SERVE
    fleet.restart("us-1")
    assert fleet.state("us-1").tier == "spot"
    fleet.registry.apply_policy(PolicySnapshot(health=fleet.health), fleet.now_s)
    assert (fleet.state("us-1").tier, fleet.state("us-1").intent) == ("reserved", Intent.SERVE)


def test_a_policy_entry_awaits_a_cluster_that_has_not_come_yet() -> None:
    fleet = settled("eu-1")
    fleet.registry.apply_policy(PolicySnapshot(clusters=(ClusterPolicy(id=US, intent="drain"),)), fleet.now_s)
    fleet.join("us-1")
    assert fleet.state("us-1").intent is Intent.DRAIN


def test_new_timings_apply_at_once() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.clusters["us-1"].beating = False
    fleet.run(5.0)
    shorter = PolicySnapshot(health=HealthPolicy(suspect_after_s=4.0, dead_after_s=4.5))
    fleet.registry.apply_policy(shorter, fleet.now_s)
    assert fleet.state("us-1").status in (ClusterStatus.SUSPECT, ClusterStatus.DEAD)


def test_ending_a_drain_does_not_bring_a_lost_cluster_back() -> None:
    fleet = settled("eu-1", "us-1", "ap-1")
    fleet.registry.set_intent(US, Intent.DRAIN, fleet.now_s)
    fleet.freeze("us-1")
    fleet.run(5.0)
    fleet.registry.set_intent(US, Intent.SERVE, fleet.now_s)
    assert "us-1:SUSPECT w=0.00" in fleet.line()
    assert fleet.registry.policy is fleet.health
