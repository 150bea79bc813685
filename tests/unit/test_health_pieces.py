"""Probe state, ramp, hold-down, freshness, back-pressure and the timing ladder."""

import msgspec
import pytest

from gir.health.ladder import check_ladder, rungs, worst_case
from gir.health.pressure import Pressure
from gir.health.probe import Probes, ProbeState
from gir.health.ramp import freshness, holddown_s, ramp_share
from gir.model.policy import HealthPolicy

POLICY = HealthPolicy()


def test_three_misses_in_a_row_are_needed_and_one_answer_clears_them() -> None:
    probes = ProbeState(POLICY)
    probes.missed()
    probes.missed()
    probes.ok(0.01)
    probes.missed()
    probes.missed()
    assert probes.state is Probes.OK
    probes.missed()
    assert (probes.state, probes.streak) == (Probes.MISSED, 0)
    probes.ok(None)
    assert (probes.state, probes.streak, probes.misses) == (Probes.OK, 1, 0)


def test_a_refused_probe_is_believed_at_once_and_outlives_a_reprieve() -> None:
    probes = ProbeState(POLICY)
    probes.refused()
    probes.reprieve()
    assert (probes.state, probes.misses) == (Probes.REFUSED, 0)


def test_a_reprieve_forgets_misses() -> None:
    probes = ProbeState(POLICY)
    for _ in range(3):
        probes.missed()
    probes.reprieve()
    assert (probes.state, probes.misses) == (Probes.UNPROVEN, 0)


def test_the_round_trip_is_smoothed_and_its_least_is_kept() -> None:
    probes = ProbeState(POLICY)
    for rtt_s in (0.010, 0.020, 0.005):
        probes.ok(rtt_s)
    assert probes.rtt_s == pytest.approx(0.0106)
    assert probes.rtt_min_s == 0.005


@pytest.mark.parametrize(
    ("since_s", "aggression", "share"),
    [(-1.0, 1.0, 0.1), (0.0, 1.0, 0.1), (3.0, 1.0, 0.1), (15.0, 1.0, 0.5), (30.0, 1.0, 1.0), (7.5, 2.0, 0.5)],
)
def test_the_ramp_follows_the_slow_start_formula(since_s: float, aggression: float, share: float) -> None:
    assert ramp_share(since_s, msgspec.structs.replace(POLICY, ramp_aggression=aggression)) == pytest.approx(share)


def test_hold_down_doubles_with_each_flap_up_to_the_cap() -> None:
    assert [holddown_s(flaps, POLICY) for flaps in (0, 1, 2, 3, 4)] == [2.0, 2.0, 4.0, 8.0, 16.0]
    assert holddown_s(10_000, POLICY) == 300.0


@pytest.mark.parametrize(("age_s", "trust"), [(0.0, 1.0), (4.0, 1.0), (9.5, 0.5), (15.0, 0.1), (99.0, 0.1)])
def test_numbers_of_old_beats_are_trusted_less_with_age(age_s: float, trust: float) -> None:
    assert freshness(age_s, POLICY) == pytest.approx(trust)


def test_freshness_needs_room_to_fall_in() -> None:
    assert freshness(99.0, msgspec.structs.replace(POLICY, beat_interval_s=10.0)) == 1.0


def test_a_burst_of_refusals_halves_once_and_the_weight_grows_back() -> None:
    pressure = Pressure()
    for _ in range(50):
        pressure.push(1.0, 100.0)
    assert pressure.factor(100.0) == 0.5
    assert pressure.factor(106.0) == pytest.approx(0.75)
    assert pressure.factor(111.0) == 1.0
    assert pressure.factor(100.0) == 1.0  # forgotten, not recomputed


def test_refusals_in_a_row_that_name_no_time_earn_a_pause() -> None:
    pressure = Pressure()
    pressure.push(None, 100.0)
    pressure.push(None, 100.1)
    assert pressure.until_s == 0.0, "one in a hundred may be refused by a busy cluster"
    pressure.push(None, 100.2)
    assert pressure.until_s == pytest.approx(101.2)
    pressure.push(None, 101.3)
    assert pressure.until_s == pytest.approx(102.3), "still refusing"


def test_a_request_served_since_ends_the_run_of_refusals_and_an_older_one_does_not() -> None:
    pressure = Pressure()
    for at_s in (100.0, 100.1):
        pressure.push(None, at_s)
    pressure.accepted(99.0)
    pressure.push(None, 100.2)
    assert pressure.until_s == pytest.approx(101.2), "what was accepted before the refusals says nothing about now"
    pressure.accepted(101.5)
    pressure.push(None, 101.6)
    assert pressure.until_s == pytest.approx(101.2)


def test_lasting_pressure_never_takes_the_whole_weight() -> None:
    pressure = Pressure()
    for second in range(100):
        pressure.push(None, 100.0 + second)
    assert pressure.factor(199.0) == pytest.approx(0.1)


def test_retry_after_is_honoured_up_to_five_minutes_and_growth_waits_for_it() -> None:
    pressure = Pressure()
    pressure.push(20.0, 100.0)
    pressure.push(5.0, 101.0)
    assert pressure.until_s == 120.0
    assert pressure.factor(120.0) < 0.5
    pressure.push(1e9, 130.0)
    assert pressure.until_s == 430.0


def test_the_default_ladder_keeps_its_promise_with_room_to_spare() -> None:
    check_ladder(POLICY)
    assert worst_case(POLICY) == (15.5, "beats: dead_after_s 15 + sweep_interval_s 0.5 = 15.5s")
    assert [(signal, worst_s) for signal, worst_s, _ in rungs(POLICY)] == [("probes", 3.5), ("beats", 15.5)]
    assert len(rungs(msgspec.structs.replace(POLICY, probe=False))) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dead_after_s": 34.9}, r"35\.4s by its beats \(dead_after_s 34\.9 \+ sweep_interval_s 0\.5 = 35\.4s\)"),
        ({"probe_misses": 40}, r"40\.5s by its probes \(probe_misses 40 x probe_interval_s 1 \+ probe_timeout_s 0\.5"),
        ({"failover_bound_s": 10.0}, r"breaks failover_bound_s 10s; lower the terms or raise the bound"),
        ({"beat_interval_s": 3.5}, r"suspect_after_s is 6: .* use at least 2 x beat_interval_s = 7"),
        ({"dead_after_s": 6.0}, r"dead_after_s is 6: must be greater than suspect_after_s 6"),
        ({"probe_timeout_s": 1.5}, r"probe_timeout_s is 1\.5: must not exceed probe_interval_s 1"),
        ({"holddown_s": 400.0}, r"holddown_s is 400: must not exceed holddown_max_s 300"),
        ({"ejection_s": 400.0}, r"ejection_s is 400: must not exceed ejection_max_s 300"),
    ],
)
def test_a_ladder_that_breaks_a_promise_is_refused_with_the_sum(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_ladder(msgspec.structs.replace(POLICY, **changes))
