"""Each promise is kept by evidence that keeps it, and broken by evidence that does not, or that proves nothing."""

from pathlib import Path

import pytest

from chaos.catalog import DRILLS
from chaos.engine.driver import Stats
from chaos.evidence import Evidence, Facts, Scrape, samples
from chaos.history import Record
from chaos.limit_promises import steady_within_limits
from chaos.promises import (
    ALWAYS,
    EVERYBODY_HURT,
    RUDE,
    Promise,
    as_fast_as_before_within,
    attempts_bounded,
    broken_streams_say_so,
    comes_back_for_good,
    control_unmoved,
    engines_stop_for_those_who_leave,
    every_request_has_one_end,
    judge_all,
    last_placement_within,
    never_called,
    no_error_at_all,
    no_error_before_token,
    no_lies,
    nothing_leaks,
    refusals_are_quick_and_honest,
    returns_gently,
    serving_again_within,
    settles_down,
    steady_state,
    streams_are_continued,
    tokens_settled_exactly,
    victims_share_at_most,
    waiters_moved_within,
)
from chaos.report import markdown

MARKS = {"start": 0.0, "fault": 100.0, "heal": 200.0, "recovered": 210.0, "end": 300.0}


def ok(number: int, sent_s: float, *, lasts_s: float = 1.0) -> Record:
    return Record(
        number=number, model="m", stream=True, tokens_expected=2, sent_s=sent_s, first_token_s=sent_s + lasts_s / 2,
        end_s=sent_s + lasts_s, status=200, ended="complete", done=True, tokens=2, chunk_ms=[500.0, 900.0],
    )  # fmt: skip


def failed(number: int, sent_s: float, *, status: int = 502) -> Record:
    return Record(
        number=number, model="m", stream=True, sent_s=sent_s, end_s=sent_s + 0.1, status=status, ended="complete",
        error="gir: no", error_code="upstream_failed",
    )  # fmt: skip


def broken(number: int, sent_s: float, *, after_chunk_s: float = 0.1, error: str = "gir: broke") -> Record:
    return Record(
        number=number, model="m", stream=True, tokens_expected=9, sent_s=sent_s, first_token_s=sent_s + 0.5,
        end_s=sent_s + 0.9 + after_chunk_s, status=200, ended="complete", tokens=2, chunk_ms=[500.0, 900.0],
        error=error,
    )  # fmt: skip


def steady() -> list[Record]:
    """Twenty good requests in each phase."""
    return [ok(n, start_s + n) for start_s in (10.0, 120.0, 220.0) for n in range(20)]


def scrape(at_s: float, placements: float = 0.0, **values: float) -> Scrape:
    samples_ = {'gir_placements_total{cluster="eu-1",reason="fastest"}': placements}
    return Scrape(at_s, samples_ | {f"gir_{name}": value for name, value in values.items()})


def evidence(
    records: list[Record],
    control: list[Record] | None = None,
    scrapes: list[Scrape] | None = None,
    *,
    scale: float = 1.0,
) -> Evidence:
    facts = Facts(drill="F01", scale=scale, victims=("eu-1",), marks=dict(MARKS))
    return Evidence(facts, records, steady() if control is None else control, scrapes or [scrape(0.0), scrape(300.0)])


def kept(promise: Promise, data: Evidence) -> bool:
    return promise(data).kept


@pytest.mark.parametrize(
    ("promise", "good", "bad"),
    [
        (no_error_before_token, steady(), [*steady(), failed(99, 130.0)]),
        (no_error_at_all, steady(), [*steady(), broken(99, 130.0)]),
        (no_lies, [*steady(), broken(99, 130.0)], [*steady(), broken(99, 130.0, error="")]),
        (steady_state, steady(), [*steady(), failed(99, 20.0)]),
        (steady_state, steady(), [*steady(), failed(99, 250.0)]),
        (broken_streams_say_so(1.0), [broken(1, 130.0)], [broken(1, 130.0, after_chunk_s=2.0)]),
        (broken_streams_say_so(1.0), [broken(1, 130.0)], [broken(1, 130.0, error="")]),
        (waiters_moved_within(4.5), [ok(1, 99.8, lasts_s=6.0)], [ok(1, 99.8, lasts_s=20.0)]),
    ],
)
def test_a_promise_tells_good_histories_from_bad(promise: Promise, good: list[Record], bad: list[Record]) -> None:
    assert kept(promise, evidence(good))
    assert not kept(promise, evidence(bad))


@pytest.mark.parametrize("promise", [steady_state, no_error_before_token, broken_streams_say_so(1.0)])
def test_too_little_evidence_keeps_no_promise(promise: Promise) -> None:
    assert not kept(promise, evidence([], []))


def test_the_last_placement_is_the_last_growth_of_its_counter() -> None:
    promise = last_placement_within(1.0)
    soon = [scrape(50.0), scrape(99.0, 5), scrape(100.9, 6), scrape(150.0, 6), scrape(250.0, 9)]
    assert promise(evidence([], scrapes=soon)).measured == "0.90 s after the fault"
    assert kept(promise, evidence([], scrapes=soon))
    late = [scrape(50.0), scrape(99.0, 5), scrape(102.0, 6), scrape(150.0, 6)]
    assert not kept(promise, evidence([], scrapes=late))
    idle = [scrape(50.0), scrape(99.0), scrape(150.0)]
    assert not kept(promise, evidence([], scrapes=idle)), "a victim without work proves nothing"


def test_bounds_shrink_with_the_scale() -> None:
    late = [scrape(50.0), scrape(99.0, 5), scrape(100.9, 6), scrape(150.0, 6)]
    assert not kept(last_placement_within(1.0), evidence([], scrapes=late, scale=0.1))


def test_counters_are_compared_with_the_history() -> None:
    requests = len(steady()) * 2
    ends = [scrape(0.0), scrape(300.0, requests_total=requests, attempts_total=requests)]
    assert kept(every_request_has_one_end, evidence(steady(), scrapes=ends))
    assert kept(attempts_bounded, evidence(steady(), scrapes=ends))
    lost = [scrape(0.0), scrape(300.0, requests_total=requests - 1, attempts_total=2 * requests)]
    assert not kept(every_request_has_one_end, evidence(steady(), scrapes=lost))
    assert not kept(attempts_bounded, evidence(steady(), scrapes=lost))


def test_settled_tokens_are_those_that_arrived() -> None:
    def after(tokens: float) -> list[Scrape]:
        return [Scrape(0.0, {}), Scrape(300.0, {'gir_tokens_total{kind="completion",model="m"}': tokens})]

    assert kept(tokens_settled_exactly, evidence(steady(), [], after(120.0)))
    assert not kept(tokens_settled_exactly, evidence(steady(), [], after(121.0)))


def test_work_left_over_is_a_leak() -> None:
    assert kept(nothing_leaks, evidence([], scrapes=[scrape(300.0, requests_in_flight=0)]))
    assert not kept(nothing_leaks, evidence([], scrapes=[scrape(300.0, requests_in_flight=1)]))


def test_a_control_group_that_slows_down_or_fails_breaks_its_promise() -> None:
    assert kept(control_unmoved, evidence([]))
    slow = [ok(n, 120.0 + n, lasts_s=3.0) for n in range(20)]
    assert not kept(control_unmoved, evidence([], [*steady(), *slow]))
    assert not kept(control_unmoved, evidence([], [*steady(), failed(1, 130.0)]))
    assert not kept(control_unmoved, evidence([], []))


def test_a_drill_that_was_broken_off_has_failed() -> None:
    data = evidence(steady())
    data.facts.stopped = "the lever was engaged"
    assert judge_all((no_lies,), data)[0].kept is False


def test_evidence_survives_its_files_and_is_judged_the_same(tmp_path: Path) -> None:
    data = evidence([*steady(), broken(99, 130.0)], scrapes=[scrape(0.0), scrape(99.0, 5), scrape(300.0, 5)])
    data.save(tmp_path)
    assert judge_all(ALWAYS, Evidence.load(tmp_path)) == judge_all(ALWAYS, data)
    (tmp_path / "facts.json").write_text("{}")
    with pytest.raises(ValueError, match=r"facts\.json"):
        Evidence.load(tmp_path)


def test_a_report_shows_promised_beside_measured_and_the_scale() -> None:
    data = evidence([*steady(), failed(99, 130.0)], scale=0.5)
    text = markdown("title", "hypothesis", data, judge_all((no_error_before_token,), data))
    assert "**NOT KEPT**; victims eu-1; scale 0.5 (durations)" in text
    assert "| errors before the first token | 0 | 1 of 41 (502 upstream_failed) | **broken** |" in text


def test_only_own_families_are_kept_of_a_page() -> None:
    page = '# TYPE gir_x_total counter\ngir_x_total{a="b"} 3.0\ngir_y 1e-05\ngir_z_bucket{le="1"} 4\nprocess_x 1\n'
    assert samples(page) == {'gir_x_total{a="b"}': 3.0, "gir_y": 1e-05}


def test_every_drill_has_figures_a_victim_and_the_common_promises() -> None:
    for drill in DRILLS.values():
        common = EVERYBODY_HURT if drill.control_may_fail else ALWAYS
        if drill.rude:
            common = RUDE
        if drill.limited:
            common = (steady_within_limits, *(promise for promise in ALWAYS if promise is not steady_state))
        assert set(common) < set(drill.promises), drill.id
        assert set(drill.victims) <= {"eu-1", "eu-2", "us-1", "control"}


def statuses(at_s: float, events: float, **status: float) -> Scrape:
    samples_ = {'gir_cluster_events_total{cluster="eu-1",kind="status",to="suspect"}': events}
    return Scrape(at_s, samples_ | {f'gir_cluster_status{{cluster="eu-1",status="{n}"}}': v for n, v in status.items()})


def test_shares_are_of_the_answers_sent_in_their_span() -> None:
    def answered(by: str, count: int) -> list[Record]:
        records = [ok(n, 115.0 + n / 10) for n in range(count)]
        for record in records:
            record.cluster = by
        return records

    promise = victims_share_at_most(0.2, after_s=10.0, within_s=30.0)
    assert kept(promise, evidence([*answered("eu-1", 2), *answered("us-1", 18)]))
    assert not kept(promise, evidence([*answered("eu-1", 8), *answered("us-1", 12)]))
    assert not kept(promise, evidence(answered("us-1", 3))), "three answers prove nothing"


def test_a_status_seen_once_is_a_status_called() -> None:
    good = [statuses(t, 1, healthy=1, dead=0) for t in (90.0, 110.0, 150.0)]
    bad = [*good, statuses(160.0, 2, dead=1)]
    for whom in ("victims", "all"):
        assert kept(never_called("suspect", "dead", whom=whom), evidence([], scrapes=good))
        assert not kept(never_called("suspect", "dead", whom=whom), evidence([], scrapes=bad))


def test_refusals_must_be_quick_and_say_when_to_come_back() -> None:
    def refused(takes_s: float = 0.01, retry_after: str = "1") -> list[Record]:
        records = [failed(n, 110.0 + n, status=503) for n in range(20)]
        for record in records:
            record.end_s, record.retry_after = record.sent_s + takes_s, retry_after
        return records

    promise = refusals_are_quick_and_honest(0.1)
    assert kept(promise, evidence(refused()))
    assert not kept(promise, evidence(refused(takes_s=0.5)))
    assert not kept(promise, evidence(refused(retry_after="")))
    assert not kept(promise, evidence(steady())), "nobody was refused: the fault did not hit"


def test_service_must_return_in_time_and_stay() -> None:
    promise = serving_again_within(1.0)
    assert kept(promise, evidence([ok(1, 200.1)]))
    assert not kept(promise, evidence([ok(1, 203.0)]))
    assert not kept(promise, evidence([ok(1, 200.1), failed(2, 205.0)]))
    assert not kept(promise, evidence([]))
    assert kept(as_fast_as_before_within(5.0), evidence([ok(1, 20.0), ok(2, 206.0)]))
    assert not kept(as_fast_as_before_within(5.0), evidence([ok(1, 20.0), ok(2, 206.0, lasts_s=4.0)]))


def test_a_return_is_gentle_from_the_first_placement_on() -> None:
    scrapes = [scrape(90.0, 5), scrape(150.0, 5), scrape(201.0, 5), scrape(204.0, 6), scrape(208.0, 9)]
    records = [ok(n, 204.0 + n / 10) for n in range(40)]
    for number, record in enumerate(records):
        record.cluster = "eu-1" if number % 10 == 0 else "us-1"
    assert kept(returns_gently(0.25, 5.0), evidence(records, scrapes=scrapes))
    for record in records:
        record.cluster = "eu-1"
    assert not kept(returns_gently(0.25, 5.0), evidence(records, scrapes=scrapes))


def test_a_return_must_last_and_only_grow() -> None:
    def weights(*values: tuple[float, float]) -> list[Scrape]:
        return [Scrape(at_s, {'gir_cluster_weight_ratio{cluster="eu-1"}': weight}) for at_s, weight in values]

    promise = comes_back_for_good(45.0)
    assert kept(promise, evidence([], scrapes=weights((150.0, 0.0), (211.0, 0.1), (225.0, 0.5), (240.0, 1.0))))
    assert not kept(promise, evidence([], scrapes=weights((211.0, 0.1), (225.0, 0.5), (260.0, 1.0)))), "too late"
    lost = weights((211.0, 0.1), (225.0, 1.0), (230.0, 0.0), (240.0, 1.0))
    assert not kept(promise, evidence([], scrapes=lost))
    assert not kept(promise, evidence([], scrapes=weights((150.0, 1.0)))), "nothing was seen after the return"


def test_flapping_is_counted_a_minute() -> None:
    def changes(total: float) -> list[Scrape]:
        return [statuses(100.0 + n * 10, 3 if n < 6 else total) for n in range(11)]

    data = evidence([], scrapes=changes(3))
    data.facts.marks["flapping"] = 100.0
    assert kept(settles_down(2.0, since="flapping"), data)
    data.scrapes = changes(20)
    assert not kept(settles_down(2.0, since="flapping"), data)
    assert not kept(settles_down(2.0, since="never set"), data)


def test_engines_must_stop_for_those_who_leave() -> None:
    records = steady()
    for record in records[:20]:
        record.leaves, record.ended, record.done = True, "timeout", False
    data = evidence(records)
    data.facts.engines = {"eu-1-1": Stats(aborted=18)}
    assert kept(engines_stop_for_those_who_leave, data)
    data.facts.engines = {"eu-1-1": Stats(aborted=18, active=1)}
    assert not kept(engines_stop_for_those_who_leave, data)
    data.facts.engines = {"eu-1-1": Stats(aborted=1)}
    assert not kept(engines_stop_for_those_who_leave, data)


def test_continued_streams_are_counted() -> None:
    def resumed(count: float) -> list[Scrape]:
        return [Scrape(0.0, {}), Scrape(300.0, {'gir_streams_resumed_total{result="ok"}': count})]

    assert kept(streams_are_continued, evidence([], scrapes=resumed(2)))
    assert not kept(streams_are_continued, evidence([], scrapes=resumed(0)))
