"""Promises about bad canaries: kept by evidence that keeps them, broken by all other, and by none."""

from typing import Any

import pytest

from chaos.canary_promises import Split, aborted_within, canary_failed, canary_was_slower, stable_users_untouched
from chaos.catalog.canary import SPLIT, USERS
from chaos.evidence import Evidence, Facts, Scrape
from chaos.history import Record
from chaos.promises import Promise

NEXT = Split("next", "m-next", frozenset({"bold"}))
START_S, ABORT_S = 101.0, 109.0
MARKS = {"start": 0.0, "fault": 100.0, "heal": 120.0, "recovered": 121.0, "end": 140.0}


def record(sent_s: float, user: str, **fields: Any) -> Record:
    known: dict[str, Any] = {
        "number": 1, "model": "m", "stream": True, "user": user, "sent_s": sent_s, "first_token_s": sent_s + 0.1,
        "end_s": sent_s + 0.5, "status": 200, "ended": "complete", "done": True, "attempts": 1,
        "served": "m-next" if user == "bold" and START_S <= sent_s < ABORT_S else "m",
    }  # fmt: skip
    return Record(**(known | fields))


def failed(sent_s: float, user: str) -> Record:
    return record(sent_s, user, status=502, done=False, error="no", first_token_s=None, served="", end_s=sent_s + 0.1)


def sound(step_s: float = 0.25) -> list[Record]:
    """Everybody asks four times a second, all run long."""
    return [record(80.0 + n * step_s, user) for n in range(int(60 / step_s)) for user in ("bold", "meek")]


def evidence(records: list[Record], *, until_s: float = ABORT_S, aborts: float = 1.0, begins: bool = True) -> Evidence:
    share, count = 'gir_canary_weight_ratio{rule="next",target="m-next"}', 'gir_canary_aborts_total{rule="next"}'
    scrapes = [
        Scrape(90.0 + n * 0.5, {share: 0.2 * (begins and START_S <= 90.0 + n * 0.5 < until_s)}) for n in range(100)
    ]
    scrapes.append(Scrape(140.0, {share: 0.2 * (until_s > 140.0), count: aborts}))
    return Evidence(Facts(drill="F42", scale=0.1, victims=("eu-1",), marks=MARKS), records, [], scrapes)


def test_a_canary_that_is_soon_gone_keeps_the_promise_and_says_how_soon() -> None:
    verdict = aborted_within(NEXT, 30.0, 50)(evidence(sound()))
    assert verdict.kept
    assert verdict.measured.startswith("after 8.0 s, 31 requests ended and 1 under way; guards' aborts 1, ")


@pytest.mark.parametrize(
    "data",
    [
        evidence(sound(), until_s=133.0),
        evidence(sound(0.125)),
        evidence(sound(), until_s=1_000.0),
        evidence(sound(), aborts=0.0),
        evidence([*sound(), record(115.0, "bold", served="m-next")]),
        evidence([r for r in sound() if r.user == "meek"]),
        evidence(sound(), begins=False),
    ],
    ids=["late", "too many", "never", "not by the guard", "still used", "nobody drawn", "never begun"],
)
def test_a_canary_that_stays_too_long_or_proves_nothing_breaks_it(data: Evidence) -> None:
    assert not aborted_within(NEXT, 30.0, 50)(data).kept


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ([], True),
        ([failed(105.0, "bold")], True),
        ([failed(105.0, "meek")], False),
        ([record(105.0, "meek", served="m-next")], False),
        ([record(105.0 + n / 10, "meek", end_s=108.0) for n in range(10)], False),
    ],
    ids=["nothing", "a drawn user fails", "another fails", "another strays", "others are slow"],
)
def test_only_drawn_users_may_notice(more: list[Record], kept: bool) -> None:
    assert stable_users_untouched(NEXT)(evidence([*sound(), *more])).kept is kept


def test_a_canary_that_did_not_fail_proves_nothing() -> None:
    hidden = [record(102.0 + n / 10, "bold", attempts=2) for n in range(20)]
    seen = [failed(102.0 + n / 10, "bold") for n in range(20)]
    promise: Promise = canary_failed(NEXT, 0.3)
    assert promise(evidence([*sound(), *hidden])).kept
    assert promise(evidence([*sound(), *seen])).kept
    assert not promise(evidence([*sound(), *hidden[:5]])).kept
    assert not promise(evidence(hidden[:5])).kept


def test_a_canary_that_was_not_slow_proves_nothing() -> None:
    slow = [record(r.sent_s, r.user, first_token_s=r.sent_s + (0.3 if r.served == "m-next" else 0.1)) for r in sound()]
    promise = canary_was_slower(NEXT, 2.0)
    assert promise(evidence(slow)).kept
    assert not promise(evidence(sound())).kept
    assert not promise(evidence([r for r in slow if r.user == "meek"])).kept


def test_the_drills_rule_draws_about_a_fifth_of_the_users() -> None:
    assert 0.15 * USERS <= len(SPLIT.drawn) <= 0.25 * USERS
