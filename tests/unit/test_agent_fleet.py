"""Pods come, change and go; names find their pool; nobody who is gone is asked again."""

from gir.model.ids import ModelId, PodId
from tests.support.agent_pool import MODEL, START_S, signals, spec
from tier1_agent.fleet import Fleet
from tier1_agent.pods import PodState
from tier1_agent.pool import PoolSettings
from tier1_agent.scorers import PRESETS
from tier1_agent.signals import Adapters


def make_fleet(*names: str) -> Fleet:
    fleet = Fleet(PoolSettings(weights=PRESETS["weighted"]))
    fleet.apply([spec(name) for name in names], START_S)
    return fleet


def test_applying_a_list_adds_removes_and_updates() -> None:
    fleet = make_fleet("a", "b")
    change = fleet.apply([spec("b", slots=4), spec("c")], START_S)
    assert (change.added, change.removed, change.updated) == (("c",), ("a",), ("b",))
    pod = fleet.pod(PodId("b"))
    assert pod is not None
    assert pod.slots == 4
    assert fleet.pod(PodId("a")) is None


def test_the_same_name_at_another_address_is_another_pod() -> None:
    fleet = make_fleet("a")
    before = fleet.pod(PodId("a"))
    change = fleet.apply([spec("a", url="http://elsewhere:1")], START_S)
    assert (change.added, change.removed) == (("a",), ("a",))
    assert fleet.pod(PodId("a")) is not before


def test_pods_of_the_first_list_start_at_once_and_newcomers_slowly() -> None:
    fleet = make_fleet("a")
    fleet.apply([spec("a"), spec("b")], START_S + 5)
    first, second = fleet.pod(PodId("a")), fleet.pod(PodId("b"))
    assert first is not None
    assert second is not None
    assert (first.ramp_from_s, second.ramp_from_s) == (None, START_S + 5)


def test_a_model_whose_pods_have_all_gone_is_still_known() -> None:
    fleet = make_fleet("a")
    fleet.apply([], START_S)
    assert fleet.find(MODEL) is not None
    assert fleet.find("never") is None
    assert fleet.names() == {}


def test_adapters_lead_to_their_base_model() -> None:
    fleet = make_fleet()
    tuned = ModelId("tuned")
    fleet.apply([spec("a", adapters_loadable=frozenset({tuned}))], START_S)
    found = fleet.find("tuned")
    assert found is not None
    assert (found[0].model, found[1]) == (MODEL, tuned)
    assert fleet.names() == {MODEL: MODEL, tuned: MODEL}


def test_adapters_seen_in_use_or_in_the_pods_own_list_are_served() -> None:
    fleet = make_fleet("a", "b")
    fleet.scraped(PodId("a"), signals(adapters=Adapters(frozenset({"seen"}), 2)), START_S)
    fleet.listed(PodId("b"), [ModelId("listed")])
    assert fleet.find("seen") is not None
    assert fleet.find("listed") is not None
    holder = fleet.pod(PodId("b"))
    assert holder is not None
    assert holder.holds(ModelId("listed"))
    assert not holder.holds(ModelId("seen"))


def test_news_of_a_pod_that_has_gone_is_ignored() -> None:
    fleet = make_fleet("a")
    fleet.apply([], START_S)
    assert not fleet.scraped(PodId("a"), signals(), START_S)
    fleet.missed(PodId("a"), START_S)


def test_a_restarted_engine_is_followed_under_its_name() -> None:
    fleet = make_fleet("a")
    fleet.scraped(PodId("a"), signals(prompt_tokens_total=9.0), START_S)
    assert fleet.scraped(PodId("a"), signals(prompt_tokens_total=1.0), START_S + 1)
    pod = fleet.pod(PodId("a"))
    assert pod is not None
    assert (pod.incarnation, pod.state) == (1, PodState.READY)


def test_warnings_name_missing_signals_stale_pods_and_a_degraded_picker() -> None:
    fleet = make_fleet("a", "b")
    for name in ("a", "b"):
        fleet.scraped(PodId(name), signals(kv_usage=None, missing=("kv_cache",)), START_S)
    fleet.tick(START_S)
    assert fleet.warnings() == ["signal_missing:kv_cache:a", "signal_missing:kv_cache:b"]
    fleet.tick(START_S + 60)
    assert "picker_degraded:round_robin:llama" in fleet.warnings()
    assert "pod_stale:a" in fleet.warnings()
