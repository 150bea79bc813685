"""Own dispatches between two beats: counted at once, never twice, given back exactly once."""

import sys

import pytest

from gir.model.request import Usage
from gir.place import Placer
from gir.place.loads import Dispatch, Ledger, Loads
from gir.place.sessions import Sessions
from tests.support.placing import MODEL, NOW_S, cluster, names, plan, request, view


def send(ledger: Ledger, at_s: float, *, tokens: int = 100, stream: bool = True) -> Dispatch:
    dispatch = Dispatch(
        cluster="a", model=MODEL, ledger=ledger, at_s=at_s, prompt_tokens=tokens, cached_tokens=0.0, stream=stream
    )
    ledger.add(dispatch)
    return dispatch


def test_a_dispatch_counts_until_a_beat_must_have_seen_it():
    ledger = Ledger()
    send(ledger, 10.0)
    ledger.reconcile(10.05, 0.1, 0.0, 0.0)
    assert ledger.delta == 1, "the beat left the cluster before the request arrived there"
    ledger.reconcile(10.2, 0.1, 0.0, 0.0)
    assert ledger.delta == 0


def test_a_request_that_ends_before_any_beat_leaves_no_trace():
    ledger = Ledger()
    ledger.finish(send(ledger, 10.0), 10.5)
    assert (ledger.delta, ledger.open, ledger.pending_tokens, ledger.unseen_tokens) == (0, 0, 0.0, 0.0)


def test_a_request_that_has_ended_is_not_held_until_the_next_beat():
    ledger = Ledger()
    first, second = send(ledger, 10.0), send(ledger, 10.1)
    ledger.finish(second, 10.5)
    ledger.finish(first, 10.6)
    mine, my_argument = 1, 1
    assert [sys.getrefcount(first), sys.getrefcount(second)] == [mine + my_argument] * 2


def test_a_request_that_ends_after_its_beat_is_credited_until_the_next():
    ledger = Ledger()
    dispatch = send(ledger, 10.0)
    ledger.reconcile(12.0, 0.1, 0.0, 0.0)
    ledger.finish(dispatch, 12.5)
    assert ledger.delta == -1
    ledger.reconcile(14.0, 0.1, 0.0, 0.0)
    assert ledger.delta == 0


def test_finishing_twice_changes_nothing():
    ledger = Ledger()
    dispatch = send(ledger, 10.0)
    assert ledger.finish(dispatch, 10.5)
    assert not ledger.finish(dispatch, 10.6)
    assert ledger.open == 0


def test_prefill_work_ends_with_the_first_token():
    ledger = Ledger()
    dispatch = send(ledger, 10.0, tokens=4_000)
    assert ledger.pending_tokens == 4_000.0
    ledger.first_token(dispatch)
    ledger.first_token(dispatch)
    assert (ledger.pending_tokens, ledger.delta) == (0.0, 1)


def test_prefill_work_of_a_whole_answer_is_left_to_the_beat_that_sees_it():
    ledger = Ledger()
    send(ledger, 10.0, tokens=4_000, stream=False)
    send(ledger, 10.0, tokens=4_000, stream=True)
    ledger.reconcile(12.0, 0.1, 0.0, 0.0)
    assert ledger.pending_tokens == 4_000.0
    assert ledger.unseen_tokens == 0.0


def test_an_out_of_order_end_does_not_hide_older_dispatches():
    ledger = Ledger()
    old, young = send(ledger, 10.0), send(ledger, 10.5)
    ledger.finish(young, 10.6)
    assert ledger.delta == 1
    ledger.reconcile(10.3, 0.1, 0.0, 0.0)
    assert ledger.delta == 0
    ledger.finish(old, 11.0)
    assert (ledger.delta, ledger.open) == (-1, 0)


def test_ledgers_of_departed_clusters_go_once_they_are_idle():
    loads = Loads()
    dispatch = send(loads.of("gone", MODEL), 1.0)
    loads.of("kept", MODEL)
    loads.forget(frozenset({"kept"}))
    assert len(loads) == 2, "a request still runs there"
    dispatch.ledger.finish(dispatch, 2.0)
    loads.forget(frozenset({"kept"}))
    assert len(loads) == 1


def test_a_new_beat_reconciles_through_the_placer():
    placer = Placer()
    small = {"slots_total": 2, "slots_free": 2}
    old = view(cluster("a", load=small), cluster("b", rtt_s=0.1, load=small))
    for step in range(2):
        placer.dispatched(request(f"r{step}"), "a", NOW_S)
    assert names(plan(placer, old))[0] == "b"
    still_free = view(cluster("a", load=small, beat_at_s=NOW_S + 2.0), cluster("b", rtt_s=0.1, load=small), version=2)
    assert names(plan(placer, still_free, now_s=NOW_S + 2.0))[0] == "a"


def test_everything_is_given_back_at_quiescence():
    placer = Placer()
    fleet = view(cluster("a"), cluster("b"))
    running = []
    for step in range(50):
        asked = request(f"r{step}")
        name = names(plan(placer, fleet, asked, draw=(step * 0.618) % 1.0))[0]
        running.append(placer.dispatched(asked, name, NOW_S + step * 0.01))
    for place, dispatch in enumerate(running):
        if place % 3:
            placer.first_token(dispatch, NOW_S + 1.0)
        placer.finished(dispatch, now_s=NOW_S + 1.0, usage=None, ok=place % 2 == 0)
    for name in ("a", "b"):
        ledger = placer.loads.of(name, MODEL)
        assert (ledger.open, ledger.delta, ledger.pending_tokens, ledger.unseen_tokens) == (0, 0, 0.0, 0.0)


def test_a_report_of_cached_tokens_is_counted_once_per_request():
    placer = Placer()
    asked = request(prefix_hashes=(1, 2, 3, 4))
    plan(placer, view(cluster("a")), asked)
    placer.dispatched(asked, "a", NOW_S)
    again = placer.dispatched(asked, "a", NOW_S)
    assert again.cached_tokens == pytest.approx(500.0)
    for _ in range(2):
        placer.finished(again, now_s=NOW_S, usage=Usage(prompt_tokens=500, cached_tokens=250), ok=True)
    assert placer.trust["a"].samples == 1
    assert placer.trust["a"].divergence == pytest.approx(0.5)


def test_own_requests_that_have_started_since_the_beat_no_longer_wait():
    placer = Placer()
    running = [placer.dispatched(request(f"r{number}", stream=True), "a", NOW_S) for number in range(3)]
    full = {"slots_total": 4, "slots_free": 0, "waiting": 3}
    fleet = view(cluster("a", load=full, beat_at_s=NOW_S + 2.0), cluster("b", rtt_s=0.4))
    assert names(plan(placer, fleet, now_s=NOW_S + 2.0))[0] == "b"
    for dispatch in running:
        placer.first_token(dispatch, NOW_S + 2.5)
    assert names(plan(placer, fleet, now_s=NOW_S + 2.5))[0] == "a"


def test_sessions_are_bounded_and_the_used_ones_stay():
    sessions = Sessions(100)
    for number in range(1_000):
        sessions.put(number, "a")
        sessions.put(-1, "b")
        assert len(sessions) <= 100
    assert sessions.get(-1) == "b"
    assert sessions.get(0) is None
