"""The gate: places are promised once, the more important go first, and who leaves leaves nothing behind."""

import asyncio

import pytest

from gir.clock import ManualClock
from gir.model.errors import ErrorKind, RequestError
from gir.model.request import Criticality
from tests.support.agent_pool import START_S, make_pool
from tier1_agent.gate import Door, Gate, GateSettings, Waiter, WaiterState
from tier1_agent.pods import Ticket
from tier1_agent.pool import Pool

CRITICAL, STANDARD, SHEDDABLE = Criticality.CRITICAL, Criticality.STANDARD, Criticality.SHEDDABLE
FOREVER = float("inf")


def arrive(gate: Gate, criticality: Criticality = STANDARD, *, room: int = 0) -> Waiter | None:
    return gate.arrive(criticality, room=room, now_s=START_S, deadline_s=FOREVER)


def must_wait(gate: Gate, criticality: Criticality = STANDARD) -> Waiter:
    waiter = arrive(gate, criticality)
    assert waiter is not None
    return waiter


def test_with_room_and_no_queue_nobody_waits() -> None:
    gate = Gate(GateSettings())
    assert arrive(gate, room=1) is None
    assert gate.waiting == 0


def test_a_newcomer_does_not_overtake_the_queue() -> None:
    gate = Gate(GateSettings())
    first = must_wait(gate)
    second = arrive(gate, room=1)
    assert second is not None
    gate.call(1)
    assert (first.state, second.state) == (WaiterState.CALLED, WaiterState.WAITING)


def test_a_promised_place_is_not_given_twice() -> None:
    gate = Gate(GateSettings())
    waiters = [must_wait(gate) for _ in range(3)]
    gate.call(1)
    gate.call(1)
    assert [waiter.state for waiter in waiters].count(WaiterState.CALLED) == 1
    assert arrive(gate, room=1) is not None


def test_the_more_important_goes_first_and_equals_in_order_of_arrival() -> None:
    gate = Gate(GateSettings())
    waiters = [must_wait(gate, c) for c in (SHEDDABLE, STANDARD, CRITICAL, STANDARD)]
    order = []
    for index, waiter in enumerate(waiters):
        waiter.wake = lambda index=index: order.append(index)  # type: ignore[misc]
    gate.call(4)
    assert order == [2, 1, 3, 0]


def test_a_full_queue_is_said_at_once_with_the_time_it_would_take() -> None:
    gate = Gate(GateSettings(queue_max=2))
    for at_s in range(30):
        gate.drained(START_S + at_s * 2.0)
    must_wait(gate)
    must_wait(gate)
    with pytest.raises(RequestError) as refused:
        arrive(gate)
    assert refused.value.kind is ErrorKind.OVERLOADED
    assert refused.value.retry_after_s == pytest.approx(6.0, rel=0.2)
    assert "gate.queue_max" in refused.value.message


def test_a_full_queue_gives_up_its_least_important_and_newest_for_a_more_important_request() -> None:
    gate = Gate(GateSettings(queue_max=3))
    older, newer, standard = must_wait(gate, SHEDDABLE), must_wait(gate, SHEDDABLE), must_wait(gate, STANDARD)
    assert must_wait(gate, CRITICAL).state is WaiterState.WAITING
    assert (older.state, newer.state, standard.state) == (
        WaiterState.WAITING,
        WaiterState.EVICTED,
        WaiterState.WAITING,
    )
    with pytest.raises(RequestError):
        arrive(gate, SHEDDABLE)
    assert gate.waiting == 3


def test_the_overflow_answer_is_the_configured_one() -> None:
    gate = Gate(GateSettings(queue_max=0, overflow=ErrorKind.NO_CAPACITY))
    with pytest.raises(RequestError) as refused:
        arrive(gate)
    assert refused.value.kind.value.status == 503


def test_leaving_twice_gives_back_once() -> None:
    gate = Gate(GateSettings())
    waiter, other = must_wait(gate), must_wait(gate)
    gate.call(1)
    for _ in range(2):
        gate.leave(waiter)
        gate.leave(other)
    assert (gate.waiting, gate.reserved) == (0, 0)


class Site:
    """A pool of one pod with one place, its door, and a clock."""

    def __init__(self, **settings: float) -> None:
        self.clock = ManualClock(monotonic_s=START_S)
        self.pool: Pool = make_pool("a", concurrent_max_per_pod=1)
        self.door = Door(GateSettings(**settings), self.clock)  # type: ignore[arg-type]

    def occupy(self) -> Ticket:
        return self.pool.dispatched(self.pool.pods[0], START_S, tokens=1.0)

    def vacate(self, ticket: Ticket) -> None:
        self.pool.finished(ticket, START_S + 1, ok=True)
        self.door.left(self.pool)

    async def enter(self, criticality: Criticality = STANDARD, deadline_s: float = FOREVER) -> Waiter | None:
        return await self.door.enter(self.pool, criticality, deadline_s)


async def test_who_waits_is_called_when_a_request_ends() -> None:
    site = Site()
    ticket = site.occupy()
    waiting = asyncio.ensure_future(site.enter())
    await asyncio.sleep(0)
    assert not waiting.done()
    site.vacate(ticket)
    waiter = await waiting
    assert waiter is not None
    site.occupy()
    site.door.entered(site.pool, waiter)
    assert repr(site.door.gate(site.pool)) == "<Gate 0 waiting, 0 reserved>"


async def test_a_waiter_whose_client_left_gives_its_promised_place_to_the_next() -> None:
    site = Site()
    ticket = site.occupy()
    first, second = (asyncio.ensure_future(site.enter()) for _ in range(2))
    await asyncio.sleep(0)
    site.vacate(ticket)
    first.cancel()
    assert await second is not None
    with pytest.raises(asyncio.CancelledError):
        await first
    assert site.door.gate(site.pool).reserved == 1


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    site = Site()
    site.occupy()
    waiting = asyncio.ensure_future(site.enter())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert site.door.waiting(site.pool) == 0


async def test_patience_ends_in_429_and_a_deadline_in_504() -> None:
    site = Site(wait_max_s=0.02)
    site.occupy()
    with pytest.raises(RequestError) as impatient:
        await site.enter()
    assert impatient.value.kind is ErrorKind.OVERLOADED
    assert "gate.wait_max_s" in impatient.value.message
    with pytest.raises(RequestError) as late:
        await site.enter(deadline_s=START_S + 0.01)
    assert late.value.kind is ErrorKind.DEADLINE_EXCEEDED
    assert site.door.waiting(site.pool) == 0


async def test_an_evicted_waiter_is_told_why() -> None:
    site = Site(queue_max=1)
    site.occupy()
    modest = asyncio.ensure_future(site.enter(SHEDDABLE))
    await asyncio.sleep(0)
    urgent = asyncio.ensure_future(site.enter(CRITICAL))
    with pytest.raises(RequestError, match="more important"):
        await modest
    urgent.cancel()


async def test_without_a_cap_there_is_no_gate() -> None:
    door = Door(GateSettings(), ManualClock())
    assert await door.enter(make_pool("a"), STANDARD, FOREVER) is None
