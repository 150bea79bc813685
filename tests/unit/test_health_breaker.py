"""The passive breaker: runs, rates, origins, growing ejections, and a probation of exactly one."""

import pytest

from gir.health.breaker import Breaker, Gate
from gir.model.outcome import AttemptResult
from gir.model.policy import HealthPolicy

LOCAL, UPSTREAM = AttemptResult.LOCAL_FAULT, AttemptResult.UPSTREAM_FAULT
POLICY = HealthPolicy()


def fail(breaker: Breaker, origin: AttemptResult, now_s: float, *, draw: float = 0.5) -> bool:
    return breaker.failure(origin, now_s, now_s, draw=draw)


def opened(now_s: float = 100.0) -> Breaker:
    breaker = Breaker(POLICY)
    for _ in range(3):
        fail(breaker, LOCAL, now_s)
    assert breaker.gate is Gate.OPEN
    return breaker


@pytest.mark.parametrize(("origin", "needed"), [(LOCAL, 3), (UPSTREAM, 5)])
def test_a_run_of_failures_opens_at_the_threshold_of_its_origin(origin: AttemptResult, needed: int) -> None:
    breaker = Breaker(POLICY)
    assert [fail(breaker, origin, 100.0) for _ in range(needed)] == [False] * (needed - 1) + [True]
    assert (breaker.gate, breaker.origin, breaker.detail) == (Gate.OPEN, origin, f"{needed} in a row")


def test_one_success_breaks_a_run() -> None:
    breaker = Breaker(POLICY)
    for _ in range(3):
        fail(breaker, LOCAL, 100.0)
        fail(breaker, LOCAL, 100.0)
        breaker.success(100.0, 100.0)
    assert breaker.gate is Gate.CLOSED


def test_an_answer_even_a_bad_one_ends_a_run_of_path_failures() -> None:
    breaker = Breaker(POLICY)
    for origin in (LOCAL, LOCAL, UPSTREAM, LOCAL, LOCAL):
        fail(breaker, origin, 100.0)
    assert (breaker.gate, breaker.run_local, breaker.run_upstream) == (Gate.CLOSED, 2, 1)


def test_a_rate_under_half_opens_once_there_are_ten_samples() -> None:
    breaker = Breaker(POLICY)
    results = []
    for _ in range(5):
        breaker.success(100.0, 100.0)
        results.append(fail(breaker, LOCAL, 100.0))
    results.append(fail(breaker, LOCAL, 100.0))
    assert results == [False] * 5 + [True]
    assert breaker.detail == "6 of 11 in 10s"


def test_the_two_origins_have_rates_of_their_own() -> None:
    breaker = Breaker(POLICY)
    for _ in range(4):
        breaker.success(100.0, 100.0)
        breaker.success(100.0, 100.0)
        fail(breaker, LOCAL, 100.0)
        fail(breaker, UPSTREAM, 100.0)
        fail(breaker, UPSTREAM, 100.0)
    assert breaker.gate is Gate.CLOSED  # 8 good: 4 of 12 local, 8 of 16 upstream, but 12 of 20 together


def test_failures_older_than_the_window_are_forgotten() -> None:
    breaker = Breaker(POLICY)
    for second in range(0, 120, 12):
        breaker.success(100.0 + second, 100.0 + second)
        for _ in range(2):
            assert not fail(breaker, LOCAL, 100.0 + second)


def test_the_window_slides_by_tenths() -> None:
    breaker = Breaker(POLICY)
    for _ in range(4):
        fail(breaker, UPSTREAM, 100.0)
    for _ in range(5):
        breaker.success(105.0, 105.0)
    assert not fail(breaker, UPSTREAM, 111.0)  # the four of t=100 are out
    assert sum(breaker._upstream) == 1
    assert sum(breaker._ok) == 5


@pytest.mark.parametrize(("draw", "ejection_s"), [(0.0, 8.0), (0.5, 10.0), (1.0, 12.0)])
def test_the_ejection_is_jittered_by_a_fifth_either_way(draw: float, ejection_s: float) -> None:
    breaker = Breaker(POLICY)
    for _ in range(3):
        fail(breaker, LOCAL, 100.0, draw=draw)
    assert breaker.reopen_s == pytest.approx(100.0 + ejection_s)


def test_probation_admits_exactly_one_and_a_success_closes() -> None:
    breaker = opened()
    assert not breaker.claim(109.9)
    assert breaker.claim(110.0)
    assert not breaker.claim(110.1)
    assert breaker.claimed
    assert breaker.success(110.0, 111.0)
    assert breaker.gate is Gate.CLOSED
    assert not breaker.claim(111.0)


def test_a_failed_probation_ejects_for_longer_each_time_up_to_the_cap() -> None:
    breaker = opened()
    now_s = 100.0
    lengths = []
    for _ in range(40):
        lengths.append(breaker.reopen_s - now_s)
        now_s = breaker.reopen_s
        assert breaker.claim(now_s)
        assert fail(breaker, UPSTREAM, now_s)
    assert lengths[:3] == pytest.approx([10.0, 20.0, 30.0])
    assert max(lengths) == pytest.approx(300.0)
    assert breaker.detail == "probation failed"


def test_good_conduct_for_ten_minutes_forgives_earlier_ejections() -> None:
    breaker = opened()
    breaker.claim(110.0)
    breaker.success(110.0, 110.0)
    breaker.tick(700.0)
    assert breaker.ejections == 1
    breaker.tick(710.0)
    assert breaker.ejections == 0


def test_stragglers_from_before_the_ejection_have_had_their_say() -> None:
    breaker = opened(100.0)
    breaker.tick(110.0)
    assert not breaker.failure(LOCAL, 99.0, 111.0, draw=0.5)
    assert not breaker.success(99.0, 111.0)
    assert breaker.gate is Gate.HALF_OPEN


def test_failures_while_open_do_not_prolong_the_ejection() -> None:
    breaker = opened()
    until_s = breaker.reopen_s
    assert not fail(breaker, LOCAL, 105.0)
    assert breaker.reopen_s == until_s


def test_a_success_of_the_last_resort_closes_an_open_breaker() -> None:
    breaker = opened()
    assert breaker.success(101.0, 102.0)
    assert breaker.gate is Gate.CLOSED


def test_an_inconclusive_probation_lets_the_next_request_try() -> None:
    breaker = opened()
    breaker.claim(110.0)
    breaker.inconclusive(99.0)  # not the probation
    assert breaker.claimed
    breaker.inconclusive(110.0)
    assert breaker.claim(110.5)


def test_a_probation_that_never_reports_frees_itself() -> None:
    breaker = opened()
    assert breaker.claim(110.0)
    assert not breaker.claim(119.9)
    assert breaker.claim(120.0)
