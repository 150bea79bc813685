"""The asyncio shell of flow control: a future for each waiting request, and a clock that ends waits."""

import asyncio
from collections.abc import Iterable

from gir.admit.flow import FlowControl
from gir.admit.ticket import RETRY_S_UNKNOWN, Action, Reason, Refused, State, Ticket
from gir.clock import Clock
from gir.model.errors import RequestError
from gir.model.policy import FlowPolicy
from gir.tasks import TaskSet

TICK_S = 0.05
"""Between two looks at the fleet while somebody waits; idle otherwise."""


class WaitingRoom:
    """Lets requests through `flow` one by one. Use: `enter_now`, `wait` if told to, `taken`, and `leave` at the end."""

    def __init__(self, policy: FlowPolicy, clock: Clock) -> None:
        self.flow = FlowControl(policy)
        self._clock = clock
        self._futures: dict[Ticket, asyncio.Future[None]] = {}
        self._somebody_waits = asyncio.Event()

    def __repr__(self) -> str:
        return f"<WaitingRoom {self.flow!r}>"

    def start(self, tasks: TaskSet) -> None:
        """Begin watching the clock."""
        _ = tasks.spawn(self._run(), name="waiting room")

    def check_door(self) -> None:
        """Raise RequestError OVERLOADED when a request should be refused before its body is read."""
        if self.flow.door_shut:
            kind, text = Reason.DOOR_SHUT.value
            raise RequestError(kind, text, retry_after_s=RETRY_S_UNKNOWN, reason="door_shut")

    def enter_now(self, ticket: Ticket, now_s: float) -> bool:
        """True: `ticket` may go at once. False: `await wait(ticket)`. Raises RequestError when it is turned away."""
        verdict = self.flow.arrive(ticket, now_s)
        if verdict.admitted or verdict.refused:
            self._wake(verdict.admitted)
            for refused in verdict.refused:
                if refused.ticket is ticket:
                    raise refused.error()
            self._turn_away(verdict.refused)
        return verdict.action is Action.ADMIT

    async def wait(self, ticket: Ticket) -> None:
        """Return when `ticket` may go; raises RequestError when it is turned away. Cancelling it gives up its place."""
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        self._somebody_waits.set()
        try:
            await future
        except BaseException:
            self.leave(ticket, self._clock.monotonic_s())
            raise
        finally:
            del self._futures[ticket]

    def taken(self, ticket: Ticket) -> None:
        """The placement has counted `ticket`."""
        self.flow.taken(ticket)

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """`ticket` is over and its slot free. Safe to call again."""
        changes = self.flow.leave(ticket, now_s)
        if changes.admitted:
            self._wake(changes.admitted)

    def look(self) -> None:
        """The fleet changed (a beat came in): let go whoever fits now."""
        changes = self.flow.tick(self._clock.monotonic_s())
        self._wake(changes.admitted)
        self._turn_away(changes.refused)

    def apply(self, policy: FlowPolicy) -> None:
        """Take over a new policy."""
        self.flow.apply(policy)

    def close(self) -> None:
        """Turn everybody away who waits: this process is going down."""
        self._turn_away(self.flow.close(self._clock.monotonic_s()).refused)

    async def _run(self) -> None:
        while True:
            self._somebody_waits.clear()
            if self.flow.waiting == 0:
                await self._somebody_waits.wait()
            await self._clock.sleep_s(TICK_S)
            self.look()

    def _wake(self, admitted: Iterable[Ticket]) -> None:
        for ticket in admitted:
            future = self._futures.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)
            elif ticket.state is State.RESERVED and future is not None:
                self.leave(ticket, self._clock.monotonic_s())

    def _turn_away(self, refused: Iterable[Refused]) -> None:
        for one in refused:
            future = self._futures.get(one.ticket)
            if future is not None and not future.done():
                future.set_exception(one.error())
