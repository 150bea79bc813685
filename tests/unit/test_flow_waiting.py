"""The asyncio shell of flow control: waits that end, clients that leave, a door that shuts."""

import asyncio

import pytest

from gir.admit.ticket import State
from gir.admit.waiting import WaitingRoom
from gir.model.errors import ErrorKind, RequestError
from gir.model.policy import FlowPolicy
from gir.tasks import TaskSet
from tests.support.flowing import CRITICAL, STANDARD, Slots, ticket
from tests.support.limiting import LoopClock


def test_the_door_is_shut_when_too_many_are_inside() -> None:
    room = WaitingRoom(FlowPolicy(in_flight_max=2), LoopClock())
    slots = Slots(9)
    for _ in range(2):
        room.check_door()
        room.flow.arrive(ticket(STANDARD, slots), 0.0)
    with pytest.raises(RequestError) as caught:
        room.check_door()
    assert caught.value.kind is ErrorKind.OVERLOADED
    assert caught.value.retry_after_s is not None


@pytest.mark.looptime
async def test_waiting_ends_when_a_slot_falls_free() -> None:
    room, slots = WaitingRoom(FlowPolicy(), LoopClock()), Slots(1)
    running, waiting = ticket(STANDARD, slots), ticket(STANDARD, slots)
    assert room.enter_now(running, 0.0)
    slots.used = 1
    room.taken(running)
    assert not room.enter_now(waiting, 0.0)
    waits = asyncio.ensure_future(room.wait(waiting))
    await asyncio.sleep(1.0)
    assert not waits.done()
    slots.used = 0
    room.leave(running, LoopClock().monotonic_s())
    await waits
    assert waiting.state is State.RESERVED


@pytest.mark.looptime
async def test_waiting_is_ended_by_the_clock_and_by_room_in_the_fleet() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(lambda _, error: failures.append(error))
    room, slots = WaitingRoom(FlowPolicy(wait_max_s=5.0, critical_reserve=0.0), LoopClock()), Slots(1)
    slots.used = 1
    room.start(tasks)
    since_s = asyncio.get_running_loop().time()
    late, lucky = ticket(STANDARD, slots), ticket(STANDARD, slots)
    assert not room.enter_now(late, 1_000.0)
    waits = asyncio.ensure_future(room.wait(late))
    with pytest.raises(RequestError) as caught:
        await waits
    assert caught.value.kind is ErrorKind.OVERLOADED
    assert 5.0 <= asyncio.get_running_loop().time() - since_s <= 5.2
    assert not room.enter_now(lucky, 1_006.0)
    waits = asyncio.ensure_future(room.wait(lucky))
    await asyncio.sleep(1.0)
    slots.used = 0
    await waits
    await tasks.close()
    assert not failures


@pytest.mark.looptime
@pytest.mark.parametrize("woken_first", [False, True])
async def test_a_client_that_leaves_while_waiting_gives_its_place_to_the_next(woken_first: bool) -> None:
    room, slots = WaitingRoom(FlowPolicy(), LoopClock()), Slots(1)
    running, gone, next_one = (ticket(STANDARD, slots) for _ in range(3))
    assert room.enter_now(running, 0.0)
    slots.used = 1
    room.taken(running)
    waits = []
    for one in (gone, next_one):
        assert not room.enter_now(one, 0.0)
        waits.append(asyncio.ensure_future(room.wait(one)))
    await asyncio.sleep(0)
    if woken_first:
        slots.used = 0
        room.leave(running, LoopClock().monotonic_s())
        waits[0].cancel()
    else:
        waits[0].cancel()
        slots.used = 0
        room.leave(running, LoopClock().monotonic_s())
    with pytest.raises(asyncio.CancelledError):
        await waits[0]
    await waits[1]
    assert (gone.state, next_one.state) == (State.GONE, State.RESERVED)
    assert room.flow.in_flight == 1


@pytest.mark.looptime
async def test_shutting_down_turns_everybody_away() -> None:
    room, slots = WaitingRoom(FlowPolicy(), LoopClock()), Slots(0)
    one = ticket(CRITICAL, slots)
    assert not room.enter_now(one, 0.0)
    waits = asyncio.ensure_future(room.wait(one))
    await asyncio.sleep(0)
    room.close()
    with pytest.raises(RequestError) as caught:
        await waits
    assert caught.value.kind is ErrorKind.SHUTTING_DOWN
