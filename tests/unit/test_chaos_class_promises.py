"""Who is served when room is short: each promise kept by evidence that keeps it, broken by any other."""

import pytest

from chaos.class_promises import critical_succeed, room_was_short, sheddable_are_shed_first
from chaos.evidence import Evidence, Facts
from chaos.history import Record
from chaos.promises import Promise

CRITICAL_SERVED = critical_succeed(0.999, slots=4)


def served(key: str, sent_s: float, *, lasts_s: float = 1.0) -> Record:
    return Record(
        number=1, model="m", stream=True, key=key, sent_s=sent_s, end_s=sent_s + lasts_s, status=200, ended="complete",
        done=True, tokens=2,
    )  # fmt: skip


def shed(key: str, sent_s: float, *, waited_s: float = 0.1) -> Record:
    return Record(
        number=1, model="m", stream=True, key=key, sent_s=sent_s, end_s=sent_s + waited_s, status=429,
        ended="complete", error="gir: busy", error_code="overloaded",
    )  # fmt: skip


def overloaded() -> list[Record]:
    """Before the fault all are served; during it a Standard and, half a second later, a Sheddable one are shed."""
    before = [served(key, float(second)) for key in ("critical", "standard", "sheddable") for second in range(20)]
    during = [served("critical", 110.0 + second) for second in range(20)]
    during += [shed("standard", 110.0 + 2 * second) for second in range(20)]
    return before + during + [shed("sheddable", 110.5 + 2 * second) for second in range(20)]


def evidence(*records: Record) -> Evidence:
    facts = Facts(drill="F29b", scale=0.1, victims=("eu-1",), marks={"start": 0.0, "fault": 100.0, "heal": 200.0})
    return Evidence(facts, records, [], [])


def broken_by_the_fault() -> Record:
    return Record(
        number=1, model="m", stream=True, key="critical", sent_s=99.0, end_s=101.0, status=200, ended="complete",
        tokens=1, error="gir: lost",
    )  # fmt: skip


@pytest.mark.parametrize("promise", [room_was_short, sheddable_are_shed_first, CRITICAL_SERVED])
def test_an_overload_that_hits_the_right_ones_keeps_every_promise_and_no_evidence_none(promise: Promise) -> None:
    assert promise(evidence(*overloaded(), broken_by_the_fault())).kept
    assert not promise(evidence()).kept


@pytest.mark.parametrize(
    ("promise", "record"),
    [
        (room_was_short, shed("sheddable", 50.0)),
        (sheddable_are_shed_first, served("sheddable", 110.6)),
        (CRITICAL_SERVED, shed("critical", 150.0)),
    ],
)
def test_one_request_is_enough_to_break_a_promise(promise: Promise, record: Record) -> None:
    assert not promise(evidence(*overloaded(), record)).kept


def test_one_sheddable_let_in_long_after_or_before_a_shed_breaks_nothing() -> None:
    assert sheddable_are_shed_first(evidence(*overloaded(), served("sheddable", 111.5))).kept
    assert sheddable_are_shed_first(evidence(*overloaded(), served("sheddable", 109.9))).kept


def test_a_fleet_with_room_for_all_but_one_class_proves_nothing() -> None:
    roomy = [record for record in overloaded() if not (record.key == "standard" and record.status == 429)]
    assert not room_was_short(evidence(*roomy)).kept
    assert not sheddable_are_shed_first(evidence(*roomy)).kept


def test_critical_requests_that_need_more_than_all_slots_prove_nothing() -> None:
    many = [served("critical", 100.0, lasts_s=100.0) for _ in range(5)]
    assert not CRITICAL_SERVED(evidence(*overloaded(), *many)).kept
