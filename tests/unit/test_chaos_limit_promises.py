"""Promises about shared limits and figures: kept by what keeps them, broken by the rest and by no evidence."""

import pytest

from chaos.evidence import Decision, Evidence, Facts, LogLine, Scrape
from chaos.figures import figure_at_least, figure_at_most
from chaos.history import Record
from chaos.limit_promises import (
    decided_at_once,
    degraded_seen,
    every_router_serves,
    nobody_fails_but_by_the_limit,
    one_line_an_outage,
    steady_within_limits,
    whole_again_within,
    within_the_limit,
)
from chaos.phantoms import peak_over_mean
from chaos.promises import (
    ASKED_BY_DRILL,
    Promise,
    every_request_has_one_end,
    others_unmoved,
)

MARKS = {"start": 0.0, "fault": 100.0, "heal": 200.0, "recovered": 210.0, "end": 300.0}


def ok(sent_s: float, *, lasts_s: float = 0.5, router: str = "a", **fields: object) -> Record:
    return Record(
        number=int(sent_s * 10), model="m", stream=True, sent_s=sent_s, end_s=sent_s + lasts_s, status=200, done=True,
        ended="complete", tokens=1, tokens_expected=1, router=router, request_id=f"r{sent_s}", **fields,
    )  # type: ignore[arg-type]  # fmt: skip


def limited(sent_s: float, retry_after: str = "1") -> Record:
    return Record(
        number=int(sent_s * 10), model="m", stream=True, sent_s=sent_s, end_s=sent_s, status=429, ended="complete",
        error="gir: limit", error_code="rate_limit_exceeded", retry_after=retry_after, request_id=f"r{sent_s}",
    )  # fmt: skip


def spread(make: object, start_s: float, end_s: float, count: int) -> list[Record]:
    return [make(start_s + (end_s - start_s) * n / count) for n in range(count)]  # type: ignore[operator]


def evidence(records: list[Record], scrapes: list[Scrape] | None = None, **facts: object) -> Evidence:
    made = Facts(drill="F18", scale=1.0, victims=(), marks=dict(MARKS), **facts)  # type: ignore[arg-type]
    return Evidence(made, records, [], scrapes or [Scrape(0.0, {}), Scrape(300.0, {})])


def kept(promise: Promise, data: Evidence) -> bool:
    return promise(data).kept


def test_a_limit_is_judged_over_the_worst_minute() -> None:
    figures = {"limit_per_min": 100.0}
    refused = spread(limited, 0.0, 300.0, 400)
    inside = spread(ok, 0.0, 300.0, 500)
    assert kept(within_the_limit(0.10), evidence([*inside, *refused], figures=figures))
    burst = [*inside, *spread(ok, 150.0, 151.0, 30)]
    assert not kept(within_the_limit(0.10), evidence([*burst, *refused], figures=figures))
    assert kept(within_the_limit(0.10, extra_limits=1), evidence([*burst, *refused], figures=figures))
    late = [*inside, *spread(ok, 250.0, 251.0, 30)]
    assert kept(within_the_limit(0.10, until="heal"), evidence([*late, *refused], figures=figures))


def test_a_limit_nobody_reaches_for_proves_nothing() -> None:
    figures = {"limit_per_min": 100.0}
    assert not kept(within_the_limit(0.10), evidence(spread(ok, 0.0, 300.0, 100), figures=figures))
    outside = [*spread(ok, 0.0, 90.0, 150), *spread(limited, 100.0, 200.0, 300)]
    assert not kept(within_the_limit(0.10), evidence(outside, figures=figures)), "nothing was let in during the fault"


def test_only_a_polite_refusal_is_no_failure() -> None:
    good = [*spread(ok, 0.0, 90.0, 20), *spread(limited, 110.0, 190.0, 20), *spread(ok, 220.0, 290.0, 20)]
    assert kept(steady_within_limits, evidence(good))
    assert kept(nobody_fails_but_by_the_limit, evidence(good))
    for bad in (limited(250.0, ""), Record(number=1, model="m", stream=True, sent_s=250.0, end_s=250.0, status=502)):
        assert not kept(steady_within_limits, evidence([*good, bad]))
        assert not kept(nobody_fails_but_by_the_limit, evidence([*good, bad]))
    assert not kept(nobody_fails_but_by_the_limit, evidence(spread(ok, 0.0, 290.0, 50))), "no limit was at stake"


@pytest.mark.parametrize(
    ("waits", "refusal_ms", "expected"),
    [
        ({}, 0.3, True),
        ({110.0: 52.0, 110.01: 45.0}, 0.3, True),
        ({110.0: 900.0}, 0.3, False),
        ({110.0: 52.0, 150.0: 52.0}, 0.3, False),
        ({}, 3.0, False),
    ],
    ids=["none waits", "one call", "too long", "again later", "slow refusals"],
)
def test_only_whoever_asks_at_that_moment_may_wait(
    waits: dict[float, float], refusal_ms: float, expected: bool
) -> None:
    refused = spread(limited, 111.0, 199.0, 20)
    decisions = {record.request_id: Decision(refusal_ms, 0.0) for record in refused}
    decisions |= {f"r{sent_s}": Decision(ms, ms) for sent_s, ms in waits.items()}
    data = evidence([*refused, *(ok(sent_s) for sent_s in waits)], decisions=decisions)
    assert kept(decided_at_once(0.060, 0.001), data) is expected


def test_decisions_nobody_logged_are_not_taken_for_quick() -> None:
    assert not kept(decided_at_once(0.060, 0.001), evidence(spread(limited, 111.0, 199.0, 20)))


def line(router: str, at_s: float, *, up: bool = False, event: str = "limit store", level: str = "error") -> LogLine:
    return LogLine(router, at_s, event, level, f'{{"event":"{event}","up":{str(up).lower()}}}')


def test_an_outage_is_said_once_by_each_router() -> None:
    promise = one_line_an_outage(routers=2)
    both = [line("a", 100.1), line("b", 100.4), line("a", 205.0, up=True, level="info")]
    assert kept(promise, evidence([], log=both))
    assert not kept(promise, evidence([], log=[*both, line("a", 150.0)])), "said again"
    assert not kept(promise, evidence([], log=both[:1])), "one of them said nothing"
    early = [line("a", 99.0), line("b", 50.0), line("b", 60.0, up=True), line("b", 100.2)]
    assert kept(promise, evidence([], log=early)), "what was over before does not count, what lasts does"
    assert not kept(promise, evidence([], log=[*both, line("a", 5.0, event="handler failed")]))


def degraded(*values: tuple[float, float]) -> list[Scrape]:
    return [Scrape(at_s, {"gir_limits_degraded": value}) for at_s, value in values]


def test_the_gauge_must_rise_on_each_router_and_fall_again() -> None:
    seen = degraded((90.0, 0), (110.0, 2), (150.0, 2), (250.0, 0))
    assert kept(degraded_seen(2), evidence([], seen))
    assert not kept(degraded_seen(2), evidence([], degraded((110.0, 1), (250.0, 0))))
    assert not kept(degraded_seen(2), evidence([], degraded((110.0, 2), (250.0, 2))))
    assert kept(whole_again_within(5.0), evidence([], degraded((101.0, 2), (104.0, 1), (106.0, 0))))
    assert not kept(whole_again_within(5.0), evidence([], degraded((101.0, 2), (107.0, 1), (109.0, 0))))
    assert not kept(whole_again_within(5.0), evidence([], degraded((101.0, 0)))), "it was never gone"


def test_each_router_must_have_answered() -> None:
    first = [ok(110.0 + n) for n in range(20)]
    assert not kept(every_router_serves(2), evidence(first))
    assert kept(every_router_serves(2), evidence([*first, *(ok(110.5 + n, router="b") for n in range(20))]))


def test_a_figure_that_was_not_taken_keeps_no_promise() -> None:
    data = evidence([], figures={"held up": 1.2, "sent": 20.0})
    assert kept(figure_at_most("held up", 1.0), data), "within a timer's tolerance"
    assert not kept(figure_at_most("held up", 0.9), data)
    assert not kept(figure_at_most("sent", 19.0, unit=""), data), "counts have no tolerance"
    assert kept(figure_at_least("sent", 20.0), data)
    assert not kept(figure_at_least("sent", 21.0), data)
    assert not kept(figure_at_most("other", 1.0), data)
    assert not kept(figure_at_least("other", 0.0), data)


def test_others_are_compared_with_themselves() -> None:
    before = [ok(50.0 + n) for n in range(20)]
    assert kept(others_unmoved, evidence([*before, *(ok(110.0 + n) for n in range(20))]))
    assert not kept(others_unmoved, evidence([*before, *(ok(110.0 + n, lasts_s=2.0) for n in range(20))]))
    assert not kept(others_unmoved, evidence(before))


def test_requests_to_a_router_that_ended_are_counted_in_the_logs() -> None:
    records = [ok(110.0 + n) for n in range(20)]
    refused = Record(number=99, model="m", stream=True, sent_s=150.0, ended="refused")
    seen = {"router_ended": True, "figures": {ASKED_BY_DRILL: 1.0}}
    assert kept(every_request_has_one_end, evidence([*records, refused], requests_logged=21, **seen))
    assert not kept(every_request_has_one_end, evidence([*records, refused], requests_logged=20, **seen))


def test_a_herd_is_its_busiest_second_against_its_mean() -> None:
    assert peak_over_mean([n / 10 for n in range(100)]) == pytest.approx(1.0, abs=0.1)
    assert peak_over_mean([*(n / 10 for n in range(50)), *([5.0] * 50), 10.0]) > 4.9
    assert peak_over_mean([1.0, 1.0, 1.0]) == 1.0
