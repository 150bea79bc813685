"""Promises that a fault really hit: kept by proof, broken by its absence."""

import pytest

from chaos.evidence import Evidence, Facts, Scrape
from chaos.history import Record
from chaos.hits import (
    counter_moved,
    fault_hit,
    health_never_changes,
    hidden_failures_at_most_one_each,
    late_answers_are_counted,
    nothing_sent_goes_there_after,
    victims_were_slower,
)
from chaos.promises import Promise


def evidence(
    records: list[Record] | None = None, scrapes: list[Scrape] | None = None, hits: dict[str, int] | None = None
) -> Evidence:
    marks = {"start": 0.0, "fault": 100.0, "heal": 200.0, "end": 300.0}
    facts = Facts(drill="F01", scale=0.1, victims=("eu-1",), marks=marks, hits=hits or {})
    return Evidence(facts, records or [], [], scrapes or [Scrape(0.0, {}), Scrape(300.0, {})])


def answered(sent_s: float, *, by: str = "eu-1", attempts: int = 1) -> Record:
    return Record(
        number=1, model="m", stream=True, sent_s=sent_s, status=200, ended="complete", done=True, cluster=by,
        attempts=attempts,
    )  # fmt: skip


def counted(family: str, *values: float, labels: str = "") -> list[Scrape]:
    return [Scrape(100.0 + n, {f"{family}{labels}": value}) for n, value in enumerate(values)]


@pytest.mark.parametrize(
    ("hits", "kept"), [({"cut": 2, "slow": 5}, True), ({"cut": 1, "slow": 5}, False), ({"slow": 5}, False), ({}, False)]
)
def test_every_fault_must_have_hit_often_enough(hits: dict[str, int], kept: bool) -> None:
    assert fault_hit("cut", "slow", at_least=2)(evidence(hits=hits)).kept is kept


def test_a_counter_that_stands_still_noticed_nothing() -> None:
    promise = counter_moved("gir_x_total", "it was noticed")
    assert promise(evidence(scrapes=counted("gir_x_total", 1.0, 2.0))).kept
    assert not promise(evidence(scrapes=counted("gir_x_total", 2.0, 2.0))).kept


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        (answered(100.05), True),
        (answered(100.2), False),
        (answered(100.2, by="us-1"), True),
        (answered(99.0), True),
        (answered(201.0), True),
    ],
)
def test_what_was_sent_too_late_must_not_reach_a_victim(record: Record, kept: bool) -> None:
    assert nothing_sent_goes_there_after(0.1)(evidence([record])).kept is kept


def test_each_poisoned_connection_may_cost_one_attempt() -> None:
    promise = hidden_failures_at_most_one_each("forgotten")
    failures = counted(
        "gir_attempts_total", 0.0, 3.0, labels='{cluster="eu-1",phase="dispatched",result="local_fault"}'
    )
    assert promise(evidence(scrapes=failures, hits={"forgotten": 3})).kept
    assert not promise(evidence(scrapes=failures, hits={"forgotten": 2})).kept
    assert not promise(evidence()).kept, "no connection was poisoned, so nothing is proved"


def test_whoever_was_moved_left_an_attempt_behind_that_is_counted() -> None:
    wasted = counted("gir_attempts_wasted_total", 0.0, 1.0, labels='{cluster="eu-1"}')
    assert late_answers_are_counted(evidence([answered(99.0, attempts=2)], wasted)).kept
    assert not late_answers_are_counted(evidence([answered(99.0, attempts=3)], wasted)).kept


@pytest.mark.parametrize(("gap_ms", "kept"), [(50.0, True), (20.0, False)])
def test_a_slow_victim_shows_in_its_streams(gap_ms: float, kept: bool) -> None:
    usual, slow = answered(10.0), answered(110.0)
    usual.chunk_ms, usual.end_s = [100.0, 110.0, 120.0], 11.0
    slow.chunk_ms, slow.end_s = [100.0, 100.0 + gap_ms, 100.0 + 2 * gap_ms], 112.0
    assert victims_were_slower(5.0)(evidence([usual, slow])).kept is kept
    assert not victims_were_slower(5.0)(evidence([slow])).kept, "there is nothing to compare with"
    assert not victims_were_slower(5.0)(evidence([usual])).kept, "nobody met the slow victim"


def never(*values: float) -> Evidence:
    return evidence(scrapes=counted("gir_cluster_events_total", *values, labels='{cluster="eu-1",kind="status"}'))


@pytest.mark.parametrize(("data", "kept"), [(never(4.0, 4.0), True), (never(4.0, 5.0), False)])
def test_any_change_of_health_is_one_too_many(data: Evidence, kept: bool) -> None:
    promise: Promise = health_never_changes
    assert promise(data).kept is kept


def test_without_a_look_no_health_is_known() -> None:
    assert not health_never_changes(evidence(scrapes=[Scrape(0.0, {})])).kept
