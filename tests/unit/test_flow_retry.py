"""When a request that was turned away may come back: as soon as what goes before it has been worked off."""

import pytest

from gir.admit.flow import FlowControl
from gir.admit.ticket import Action, Ticket
from gir.model.policy import FlowPolicy
from tests.support.flowing import CRITICAL, SHEDDABLE, STANDARD, Slots, ticket


def busy(flow: FlowControl, slots: Slots, per_s: float, *, seconds: int = 60) -> float:
    """Keep every slot busy and end `per_s` requests a second; the time it is then."""
    running: list[Ticket] = []

    def begin(now_s: float) -> None:
        one = ticket(CRITICAL, slots)
        assert flow.arrive(one, now_s).action is Action.ADMIT
        slots.used += 1
        flow.taken(one)
        running.append(one)

    for _ in range(slots.total):
        begin(0.0)
    for number in range(int(seconds * per_s)):
        now_s = number / per_s
        slots.used -= 1
        flow.leave(running.pop(0), now_s)
        begin(now_s)
    return float(seconds)


@pytest.mark.parametrize("per_s", [0.5, 4.0])
def test_retry_after_is_the_queue_ahead_at_the_rate_it_drains(per_s: float) -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(5)
    now_s = busy(flow, slots, per_s)
    for _ in range(11):
        assert flow.arrive(ticket(STANDARD, slots), now_s).action is Action.WAIT
    (refused,) = flow.arrive(ticket(SHEDDABLE, slots), now_s).refused
    assert refused.retry_after_s == pytest.approx(12 / per_s, rel=0.15)


def test_retry_after_of_a_fast_fleet_is_a_second_and_of_a_stuck_one_is_bounded() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(5)
    now_s = busy(flow, slots, 50.0)
    (refused,) = flow.arrive(ticket(SHEDDABLE, slots), now_s).refused
    assert refused.retry_after_s == 1.0
    (refused,) = flow.arrive(ticket(SHEDDABLE, slots), now_s + 300.0).refused
    assert refused.retry_after_s == 60.0
