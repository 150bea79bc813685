"""Each rule of flow control by itself."""

import time

import pytest

from gir.admit.fair import QUANTUM, FairQueue
from gir.admit.flow import FlowControl
from gir.admit.ticket import Action, Reason, Room, State, Ticket, class_of, ticket_of
from gir.model.errors import ErrorKind
from gir.model.ids import TenantId
from gir.model.policy import FlowPolicy
from gir.model.request import Criticality, Principal
from tests.support.flowing import CRITICAL, SHEDDABLE, STANDARD, Slots, ticket
from tests.support.limiting import request


def go(flow: FlowControl, one: Ticket, slots: Slots) -> None:
    slots.used += 1
    flow.taken(one)


def fill(flow: FlowControl, slots: Slots, criticality: Criticality = CRITICAL) -> list[Ticket]:
    running = []
    while slots.used < slots.total:
        one = ticket(criticality, slots)
        assert flow.arrive(one, 0.0).action is Action.ADMIT
        go(flow, one, slots)
        running.append(one)
    return running


def end(flow: FlowControl, one: Ticket, slots: Slots, now_s: float) -> tuple[Ticket, ...]:
    slots.used -= 1
    return flow.leave(one, now_s).admitted


def test_with_room_everybody_goes_at_once() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(100)
    for criticality in (CRITICAL, STANDARD, SHEDDABLE):
        assert flow.arrive(ticket(criticality, slots), 0.0).action is Action.ADMIT


def test_dispatch_is_reserved_until_the_placement_counts_it() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(2)
    first, second, third = (ticket(CRITICAL, slots) for _ in range(3))
    assert flow.arrive(first, 0.0).action is Action.ADMIT
    assert flow.arrive(second, 0.0).action is Action.ADMIT
    assert flow.arrive(third, 0.0).action is Action.WAIT, "two slots are promised, though none is used yet"
    go(flow, first, slots)
    go(flow, second, slots)
    assert end(flow, first, slots, 1.0) == (third,)


def test_one_free_slot_wakes_one_waiter() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(1)
    (running,) = fill(flow, slots)
    waiters = [ticket(STANDARD, slots) for _ in range(5)]
    for one in waiters:
        assert flow.arrive(one, 0.0).action is Action.WAIT
    assert end(flow, running, slots, 1.0) == (waiters[0],)
    assert flow.tick(1.1).admitted == ()


def test_critical_goes_before_standard_and_oldest_first() -> None:
    flow, slots = FlowControl(FlowPolicy(critical_reserve=0.0)), Slots(1)
    (running,) = fill(flow, slots)
    order = [STANDARD, CRITICAL, STANDARD, CRITICAL]
    waiters = [ticket(criticality, slots) for criticality in order]
    for number, one in enumerate(waiters):
        flow.arrive(one, float(number))
    went = []
    for number in range(4):
        (running,) = end(flow, running, slots, 5.0 + number)
        go(flow, running, slots)
        went.append(waiters.index(running))
    assert went == [1, 3, 0, 2]


def test_slots_are_kept_for_critical_unless_critical_uses_them() -> None:
    flow, slots = FlowControl(FlowPolicy(critical_reserve=0.2)), Slots(10)
    running = []
    for _ in range(8):
        one = ticket(STANDARD, slots)
        assert flow.arrive(one, 0.0).action is Action.ADMIT
        go(flow, one, slots)
        running.append(one)
    assert flow.arrive(ticket(STANDARD, slots), 0.0).action is Action.WAIT
    for _ in range(2):
        one = ticket(CRITICAL, slots)
        assert flow.arrive(one, 0.0).action is Action.ADMIT
        go(flow, one, slots)
    # Critical requests hold their share now, so a slot that falls free is for the Standard one that waits.
    assert len(end(flow, running[0], slots, 1.0)) == 1


def test_a_pool_of_one_slot_serves_every_class() -> None:
    for criticality in (CRITICAL, STANDARD, SHEDDABLE):
        assert FlowControl(FlowPolicy()).arrive(ticket(criticality, Slots(1)), 0.0).action is Action.ADMIT


def test_sheddable_is_shed_at_once_and_told_when_to_come_back() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(4)
    running = fill(flow, slots)
    for number, one in enumerate(running):
        end(flow, one, slots, 1.0 + number)
        slots.used += 1
    verdict = flow.arrive(ticket(SHEDDABLE, slots), 5.0)
    assert verdict.action is Action.SHED
    error = verdict.refused[0].error()
    assert error.kind is ErrorKind.OVERLOADED
    assert error.reason == "shed:sheddable"
    assert "class sheddable" in error.message
    assert error.retry_after_s is not None
    assert 1.0 <= error.retry_after_s <= 60.0


def test_sheddable_stays_out_while_anybody_waits_and_for_a_second_after_a_better_one_was_shed() -> None:
    # Both classes may go anywhere, but the waiting one only to a cluster that is full.
    flow, full, roomy = FlowControl(FlowPolicy(wait_max_s=3.0)), Slots(1), Slots(100)
    fill(flow, full)
    waiting = ticket(STANDARD, full)
    assert flow.arrive(waiting, 0.0).action is Action.WAIT
    assert flow.arrive(ticket(SHEDDABLE, roomy), 1.0).action is Action.SHED
    assert [refused.reason for refused in flow.tick(3.0).refused] == [Reason.WAITED]
    assert flow.arrive(ticket(SHEDDABLE, roomy), 3.9).action is Action.SHED
    assert flow.arrive(ticket(SHEDDABLE, roomy), 4.1).action is Action.ADMIT


def test_a_full_queue_evicts_the_lowest_class_newest_first() -> None:
    flow, slots = FlowControl(FlowPolicy(queue_max=3)), Slots(1)
    fill(flow, slots)
    old, new, critical = (ticket(criticality, slots) for criticality in (STANDARD, STANDARD, CRITICAL))
    for number, one in enumerate((old, new, critical)):
        assert flow.arrive(one, float(number)).action is Action.WAIT
    verdict = flow.arrive(ticket(CRITICAL, slots), 3.0)
    assert verdict.action is Action.WAIT
    assert [(refused.ticket, refused.reason) for refused in verdict.refused] == [(new, Reason.EVICTED)]
    assert flow.arrive(ticket(CRITICAL, slots), 4.0).refused[0].ticket is old
    last = ticket(CRITICAL, slots)
    verdict = flow.arrive(last, 5.0)
    assert (verdict.action, verdict.refused[0].ticket, verdict.refused[0].reason) == (
        Action.SHED,
        last,
        Reason.QUEUE_FULL,
    )
    assert flow.waiting == 3


def test_inside_a_class_the_tenant_that_waits_with_most_makes_place() -> None:
    flow, slots = FlowControl(FlowPolicy(queue_max=4)), Slots(1)
    fill(flow, slots)
    greedy = [ticket(STANDARD, slots, tenant="greedy") for _ in range(4)]
    for one in greedy:
        flow.arrive(one, 0.0)
    assert flow.arrive(ticket(STANDARD, slots, tenant="modest"), 1.0).refused[0].ticket is greedy[-1]
    assert flow.arrive(ticket(STANDARD, slots, tenant="greedy"), 2.0).action is Action.SHED


def test_bodies_waiting_in_memory_are_bounded() -> None:
    flow, slots = FlowControl(FlowPolicy(queue_bytes_max=100)), Slots(1)
    fill(flow, slots)
    first = ticket(STANDARD, slots, body_bytes=60)
    assert flow.arrive(first, 0.0).action is Action.WAIT
    assert flow.arrive(ticket(STANDARD, slots, body_bytes=60), 0.0).action is Action.SHED
    assert flow.arrive(ticket(CRITICAL, slots, body_bytes=101), 0.0).action is Action.SHED
    assert flow.waiting_bytes == 60, "a body that can never fit evicts nobody"
    assert flow.arrive(ticket(CRITICAL, slots, body_bytes=90), 0.0).refused[0].ticket is first
    assert flow.waiting_bytes == 90


@pytest.mark.parametrize(
    ("deadline_s", "total", "reason", "kind"),
    [
        (2.0, 1, Reason.DEADLINE, ErrorKind.DEADLINE_EXCEEDED),
        (99.0, 1, Reason.WAITED, ErrorKind.OVERLOADED),
        (99.0, 0, Reason.NO_CAPACITY, ErrorKind.NO_CAPACITY),
    ],
)
def test_a_wait_ends_with_its_reason(deadline_s: float, total: int, reason: Reason, kind: ErrorKind) -> None:
    flow, slots = FlowControl(FlowPolicy(wait_max_s=10.0)), Slots(total)
    slots.used = total
    one = ticket(STANDARD, slots, deadline_s=deadline_s)
    assert flow.arrive(one, 0.0).action is Action.WAIT
    assert flow.tick(min(deadline_s, 10.0) - 0.1).refused == ()
    (refused,) = flow.tick(min(deadline_s, 10.0)).refused
    assert (refused.ticket, refused.reason, refused.error().kind) == (one, reason, kind)
    assert flow.in_flight == 0


@pytest.mark.parametrize("criticality", [CRITICAL, STANDARD])
def test_who_has_nobody_to_wait_for_is_told_within_a_second(criticality: Criticality) -> None:
    flow, gone, full = FlowControl(FlowPolicy()), Slots(4), Slots(4)
    gone.used = full.used = 4
    waiters = [ticket(criticality, gone) for _ in range(3)]
    patient = ticket(criticality, full, tenant="elsewhere")
    for one in (*waiters, patient):
        assert flow.arrive(one, 0.0).action is Action.WAIT
    gone.total = gone.used = 0
    assert not flow.tick(10.0).refused
    assert not flow.tick(10.9).refused
    refused = flow.tick(11.0).refused
    assert [each.ticket for each in refused] == waiters
    assert {each.reason for each in refused} == {Reason.NO_CAPACITY}
    assert patient.state is State.WAITING, "its clusters are full, which passes"
    assert flow.waiting == 1


def test_a_fleet_that_is_back_within_a_second_was_worth_waiting_for() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(4)
    slots.used = 4
    waiter = ticket(STANDARD, slots)
    flow.arrive(waiter, 0.0)
    for second in range(10):
        slots.total = 0
        assert not flow.tick(second + 0.0).refused
        slots.total = 4
        assert not flow.tick(second + 0.9).refused
    assert waiter.state is State.WAITING


def test_a_request_that_is_late_already_does_not_wait() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(0)
    assert flow.arrive(ticket(CRITICAL, slots, deadline_s=4.0), 5.0).refused[0].reason is Reason.DEADLINE


def test_an_aged_standard_goes_before_critical_but_only_once_in_a_while() -> None:
    flow, slots = FlowControl(FlowPolicy(aging_s=5.0)), Slots(1)
    (running,) = fill(flow, slots)
    aged = [ticket(STANDARD, slots) for _ in range(2)]
    for one in aged:
        flow.arrive(one, 0.0)
    for number in range(6):
        flow.arrive(ticket(CRITICAL, slots), 0.1 + number)
    went = []
    for now_s in (4.0, 5.0, 6.0, 7.0):
        (running,) = end(flow, running, slots, now_s)
        go(flow, running, slots)
        went.append(running.criticality)
    assert went == [CRITICAL, STANDARD, CRITICAL, CRITICAL]


def test_beats_that_bring_room_wake_waiters() -> None:
    flow, slots = FlowControl(FlowPolicy(critical_reserve=0.0)), Slots(1)
    fill(flow, slots)
    waiters = [ticket(STANDARD, slots) for _ in range(3)]
    for one in waiters:
        flow.arrive(one, 0.0)
    slots.total = 3
    assert flow.tick(1.0).admitted == tuple(waiters[:2])


def test_leaving_twice_counts_once() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(1)
    (running,) = fill(flow, slots)
    waiting = ticket(STANDARD, slots)
    flow.arrive(waiting, 0.0)
    for _ in range(2):
        flow.leave(waiting, 1.0)
    for _ in range(2):
        flow.leave(running, 1.0)
    assert (flow.in_flight, flow.waiting, flow.waiting_bytes) == (0, 0, 0)
    assert repr(flow) == "<FlowControl 0 in flight, waiting 0 critical 0 standard>"


def test_pools_do_not_hold_each_other_up_and_are_forgotten() -> None:
    flow, full = FlowControl(FlowPolicy()), Slots(1)
    fill(flow, full)
    assert flow.arrive(ticket(STANDARD, full), 0.0).action is Action.WAIT
    other = ticket(STANDARD, Slots(5), pool="qwen")
    assert flow.arrive(other, 0.0).action is Action.ADMIT
    flow.taken(other)
    flow.leave(other, 1.0)
    flow.tick(200.0)
    assert set(flow._pools) == {"llama"}


def test_round_robin_is_by_tokens_and_long_prompts_go_in_the_end() -> None:
    queue = FairQueue()
    for _ in range(3):
        queue.push(ticket(tenant="long", tokens=40 * QUANTUM))
        for _ in range(20):
            queue.push(ticket(tenant="short", tokens=QUANTUM))
    order = [queue.pop(lambda one: True) for _ in range(50)]
    names = "".join("L" if one is not None and one.tenant == "long" else "s" for one in order)
    assert names.index("L") == 39, "a prompt of 40 quanta goes in the fortieth round"
    assert len(queue) == 13


def test_a_tenant_that_fits_nowhere_holds_nobody_up() -> None:
    queue = FairQueue()
    stuck, free = ticket(tenant="stuck"), ticket(tenant="free")
    queue.push(stuck)
    queue.push(free)
    assert queue.pop(lambda one: one.tenant == "free") is free
    assert queue.pop(lambda one: one.tenant == "free") is None
    assert queue.pop(lambda one: True) is stuck
    assert queue.pop(lambda one: True) is None


def test_more_stuck_tenants_than_are_tried_at_once_hide_nobody_for_long() -> None:
    queue = FairQueue()
    for number in range(100):
        queue.push(ticket(tenant=f"stuck-{number}"))
    free = ticket(tenant="free")
    queue.push(free)
    tries = [queue.pop(lambda one: one is free) for _ in range(8)]
    assert free in tries


@pytest.mark.parametrize(
    ("claimed", "trusted", "expected"),
    [
        (None, True, STANDARD),
        (b"critical", True, CRITICAL),
        (b"Sheddable", True, SHEDDABLE),
        (b"critical", False, STANDARD),
        (b"-5", True, SHEDDABLE),
        (b"10", True, CRITICAL),
        (b"0", True, STANDARD),
        (b"urgent!", True, STANDARD),
        (b"9" * 5_000, True, STANDARD),
    ],
)
def test_the_class_comes_from_the_principal_unless_the_caller_is_trusted(
    claimed: bytes | None, trusted: bool, expected: Criticality
) -> None:
    assert class_of(Principal(tenant=TenantId("t"), key_id="k", trusted=trusted), claimed) is expected


def test_no_claim_goes_above_the_ceiling() -> None:
    capped = Principal(tenant=TenantId("t"), key_id="k", trusted=True, criticality_max=STANDARD)
    assert class_of(capped, b"critical") is STANDARD
    low = Principal(tenant=TenantId("t"), key_id="k", criticality_max=SHEDDABLE)
    assert class_of(low, None) is SHEDDABLE


def test_a_ticket_carries_the_request() -> None:
    made = ticket_of(request(7, tenant="acme"), lambda: Room(1, 1), output_tokens=50, share=2.0)
    assert (made.request_id, made.tenant, made.pool, made.tokens, made.share) == ("r-7", "acme", "llama", 50, 2.0)
    assert made.state is State.NEW


def test_a_request_with_room_costs_microseconds() -> None:
    flow, slots = FlowControl(FlowPolicy()), Slots(1_000_000)
    best_us = float("inf")
    for _ in range(5):
        tickets = [ticket(STANDARD, slots) for _ in range(500)]
        since_s = time.perf_counter()
        for one in tickets:
            flow.arrive(one, 0.0)
            flow.taken(one)
            flow.leave(one, 0.0)
        best_us = min(best_us, (time.perf_counter() - since_s) / len(tickets) * 1e6)
    assert best_us <= 15.0, f"{best_us:.1f} us; 3 us on a quiet machine"
