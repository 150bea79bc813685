"""The beat detector: silence, order and the end of streams, by the receiver's clock."""

import pytest

from gir.health.detector import SEQ_LAST, TABLE, BeatDetector, Beats, Signal
from gir.model.policy import HealthPolicy

POLICY = HealthPolicy()


def fresh(now_s: float = 0.0) -> BeatDetector:
    detector = BeatDetector(POLICY, now_s=now_s)
    detector.hello(1, now_s)
    detector.beat(1, 0, now_s)
    return detector


def test_the_table_has_an_answer_for_every_state_and_signal() -> None:
    assert {(signal, state) for signal, row in TABLE.items() for state in row} == {
        (signal, state) for signal in Signal for state in Beats
    }


@pytest.mark.parametrize(
    ("silence_s", "state"),
    [(0.0, Beats.FRESH), (6.0, Beats.FRESH), (6.1, Beats.SUSPECT), (15.0, Beats.SUSPECT), (15.1, Beats.DEAD)],
)
def test_silence_suspects_after_6s_and_declares_dead_after_15s(silence_s: float, state: Beats) -> None:
    detector = fresh()
    detector.tick(silence_s)
    assert detector.state is state


def test_a_beat_brings_even_the_dead_back_and_counts_anew() -> None:
    detector = fresh()
    detector.tick(20.0)
    assert (detector.state, detector.streak) == (Beats.DEAD, 0)
    detector.beat(1, 1, 21.0)
    detector.beat(1, 2, 23.0)
    assert (detector.state, detector.streak) == (Beats.FRESH, 2)


def test_only_the_last_stream_of_the_epoch_that_breaks_suspects_at_once() -> None:
    detector = fresh()
    detector.hello(1, 1.0)  # the agent reconnects before the old stream is seen to break
    detector.stream_lost(1)
    assert detector.state is Beats.FRESH
    detector.stream_lost(0)
    assert detector.state is Beats.FRESH
    detector.stream_lost(1)
    assert detector.state is Beats.SUSPECT


def test_a_pardoned_break_or_silence_changes_nothing() -> None:
    detector = fresh()
    detector.stream_lost(1, pardoned=True)
    detector.tick(100.0, pardoned=True)
    assert detector.state is Beats.FRESH


@pytest.mark.parametrize(("epoch", "seq"), [(1, 0), (1, 5), (0, 99)])
def test_what_is_not_after_the_last_accepted_changes_nothing(epoch: int, seq: int) -> None:
    detector = fresh()
    detector.beat(1, 5, 1.0)
    assert "not after (1, 5)" in detector.beat(epoch, seq, 5.0)
    assert detector.silence_s(5.0) == 4.0


def test_nothing_of_an_epoch_is_believed_after_its_goodbye() -> None:
    detector = fresh()
    assert detector.goodbye(1, 1.0) == ""
    assert "not after" in detector.beat(1, 7, 1.1)
    assert "goodbye" in detector.hello(1, 1.1)
    assert (detector.state, detector.seq) == (Beats.GONE, SEQ_LAST)
    detector.stream_lost(1)
    detector.tick(100.0)
    assert detector.state is Beats.GONE


def test_a_goodbye_of_an_older_epoch_is_ignored() -> None:
    detector = fresh()
    detector.hello(2, 1.0)
    assert "2 is speaking" in detector.goodbye(1, 1.0)
    assert detector.state is Beats.UNHEARD


def test_the_higher_epoch_of_two_agents_with_one_name_wins() -> None:
    detector = fresh()
    detector.hello(2, 1.0)
    detector.beat(2, 0, 1.1)
    assert "older than 2" in detector.hello(1, 1.2)
    assert "not after (2, 0)" in detector.beat(1, 50, 1.2)
    assert detector.epoch == 2


def test_a_lower_epoch_is_believed_once_the_higher_one_has_been_silent_for_long() -> None:
    detector = fresh()
    detector.goodbye(1, 10.0)
    assert detector.hello(0, 20.0) != ""
    assert detector.hello(0, 25.0) == ""
    assert detector.beat(0, 0, 25.1) == ""
    assert detector.state is Beats.FRESH


def test_a_beat_of_a_new_epoch_needs_no_hello_before_it() -> None:
    detector = fresh()
    assert detector.beat(4, 0, 1.0) == ""
    assert (detector.epoch, detector.streams) == (4, 1)


def test_a_granted_gap_is_not_silence_and_never_reaches_into_the_future() -> None:
    detector = fresh()
    detector.grant(40.0, 42.0)
    assert detector.silence_s(42.0) == 2.0
    detector.grant(99.0, 43.0)
    assert detector.silence_s(43.0) == 0.0


def test_a_reprieve_starts_silence_anew_but_does_not_undo_a_goodbye() -> None:
    detector = fresh()
    detector.tick(100.0)
    detector.reprieve(100.0)
    assert (detector.state, detector.silence_s(100.0)) == (Beats.FRESH, 0.0)
    detector.goodbye(1, 101.0)
    detector.reprieve(102.0)
    assert detector.state is Beats.GONE
