"""Calls under way to a lost cluster: who is taken from it, which streams are ended, and which are left alone."""

from typing import Any, cast

from gir.forward.underway import LOOK_GAP_S, ClusterLostError, StreamLostError, Underway
from gir.model.outcome import Phase
from gir.net.errors import UpstreamError
from gir.net.upstream import UpstreamCall

PATIENCE_S = 5.0
LOOK_S = 0.1


class Call:
    """What health sees of a call."""

    phase = Phase.STREAMING

    def __init__(self) -> None:
        self.body_bytes = 100
        self.held_up = False
        self.error: UpstreamError | None = None
        self.ended_s: float | None = None

    def give_up(self, error: UpstreamError) -> None:
        self.error = error


def streaming(*calls: Any) -> Underway:
    underway = Underway()
    for call in calls:
        underway.streams[cast("UpstreamCall", call)] = PATIENCE_S
    return underway


def look(underway: Underway, start_s: float, end_s: float, *calls: Call, every_s: float = LOOK_S) -> None:
    steps = round((end_s - start_s) / every_s)
    for step in range(steps + 1):
        now_s = start_s + step * every_s
        underway.end_silent(now_s)
        for call in calls:
            if call.error is not None and call.ended_s is None:
                call.ended_s = now_s
                underway.streams.pop(cast("UpstreamCall", call), None)


def test_only_those_who_can_go_elsewhere_are_taken_from_a_lost_cluster() -> None:
    underway, free, bound = Underway(), Call(), Call()
    underway.waiting[cast("UpstreamCall", free)] = lambda: True
    underway.waiting[cast("UpstreamCall", bound)] = lambda: False
    assert underway.give_up_waiting("cluster became suspect") == 1
    assert isinstance(free.error, ClusterLostError)
    assert bound.error is None


def test_a_silent_stream_is_ended_when_its_patience_is_over() -> None:
    call = Call()
    look(streaming(call), 100.0, 110.0, call)
    assert isinstance(call.error, StreamLostError)
    assert call.ended_s is not None
    assert PATIENCE_S <= call.ended_s - 100.0 <= PATIENCE_S + 2 * LOOK_S


def test_a_slow_stream_is_left_alone_as_long_as_anything_comes() -> None:
    call = Call()
    underway = streaming(call)
    for token in range(20):
        look(underway, 100.0 + 4.5 * token, 104.4 + 4.5 * token, call)
        call.body_bytes += 1
    assert call.error is None


def test_a_stream_that_its_client_holds_up_is_not_silent() -> None:
    call = Call()
    call.held_up = True
    underway = streaming(call)
    look(underway, 100.0, 130.0, call)
    assert call.error is None
    call.held_up = False
    look(underway, 130.1, 134.0, call)
    assert call.error is None, "its silence begins now"


def test_what_this_process_slept_through_is_no_silence() -> None:
    call = Call()
    underway = streaming(call)
    look(underway, 100.0, 103.0, call)
    look(underway, 103.0 + LOOK_GAP_S + 20.0, 103.0 + LOOK_GAP_S + 24.0, call)
    assert call.error is None
