"""The gate: how many requests may be in each pod at once, and who waits for the rest.

Engines queue without bound and serve their queue in order of arrival, so a queue inside an engine is a choice that can
no longer be revised. With a cap per pod the queue stays here: the best pod is chosen when a place is really free, the
more important request goes first, and a full queue is said at once (429) instead of felt minutes later.

`Gate` is the pure state machine of one pool; `Door` is its asyncio shell. A place given to a waiter is reserved until
the request is in a pod, so that waiters never race newcomers for it.
"""

import asyncio
import enum
from collections.abc import Callable

import msgspec

from gir.clock import Clock
from gir.model.errors import ErrorKind, RequestError
from gir.model.request import Criticality
from tier1_agent.pool import Pool

_BY_IMPORTANCE = (Criticality.CRITICAL, Criticality.STANDARD, Criticality.SHEDDABLE)
_FADE = 0.9
RETRY_AFTER_MAX_S = 60.0


class GateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the queue before one pool."""

    queue_max: int = 1_000
    wait_max_s: float = 60.0
    overflow: ErrorKind = ErrorKind.OVERLOADED


class WaiterState(enum.Enum):
    """Where a waiter is."""

    WAITING = "waiting"
    CALLED = "called"
    """It has a place reserved."""
    EVICTED = "evicted"
    """A more important request took its place in the full queue."""
    LEFT = "left"


class Waiter:
    """One request in the queue. `wake` is called once, when it is called or evicted."""

    __slots__ = ("criticality", "deadline_s", "patience_s", "state", "wake")

    def __init__(self, criticality: Criticality, deadline_s: float, patience_s: float) -> None:
        self.criticality = criticality
        self.deadline_s = deadline_s
        self.patience_s = patience_s
        self.state = WaiterState.WAITING
        self.wake: Callable[[], None] = _nobody


def _nobody() -> None:
    """Nobody is asleep on this waiter yet."""


class Gate:
    """Queue of one pool: by class, in order of arrival within a class. `room` is always free places over all pods."""

    __slots__ = ("_gap_s", "_left_at_s", "_queues", "reserved", "settings", "waiting")

    def __init__(self, settings: GateSettings) -> None:
        self.settings = settings
        self.waiting = 0
        self.reserved = 0
        """Places promised to waiters that are not in a pod yet."""
        self._queues: dict[Criticality, dict[Waiter, None]] = {criticality: {} for criticality in _BY_IMPORTANCE}
        self._gap_s = 0.0
        self._left_at_s: float | None = None

    def __repr__(self) -> str:
        return f"<Gate {self.waiting} waiting, {self.reserved} reserved>"

    def arrive(self, criticality: Criticality, *, room: int, now_s: float, deadline_s: float) -> Waiter | None:
        """None: go on at once. Otherwise a place in the queue; RequestError when it is full."""
        if not self.waiting and room > self.reserved:
            return None
        if self.waiting >= self.settings.queue_max and not self._evict_below(criticality):
            raise self.refusal(f"{self.waiting} requests wait already (gate.queue_max)")
        waiter = Waiter(criticality, deadline_s, now_s + self.settings.wait_max_s)
        self._queues[criticality][waiter] = None
        self.waiting += 1
        return waiter

    def call(self, room: int) -> None:
        """Free places have appeared: call waiters, the most important and oldest first, while there are places."""
        while self.waiting and room > self.reserved:
            queue = next(queue for queue in self._queues.values() if queue)
            waiter = next(iter(queue))
            self._take_out(waiter, WaiterState.CALLED)
            self.reserved += 1
            waiter.wake()

    def leave(self, waiter: Waiter) -> None:
        """The waiter gives up, or is in a pod now. Safe to call twice."""
        if waiter.state is WaiterState.CALLED:
            self.reserved -= 1
        elif waiter.state is WaiterState.WAITING:
            self._take_out(waiter, WaiterState.LEFT)
        waiter.state = WaiterState.LEFT

    def drained(self, now_s: float) -> None:
        """A request has left a pod: the pace of this pool."""
        if self._left_at_s is not None:
            self._gap_s = _FADE * self._gap_s + (1.0 - _FADE) * (now_s - self._left_at_s)
        self._left_at_s = now_s

    def refusal(self, detail: str) -> RequestError:
        """The overflow answer, with the time the queue would take at the present pace."""
        retry_after_s = min(RETRY_AFTER_MAX_S, max(1.0, (self.waiting + 1) * self._gap_s))
        message = f"every pod is at its concurrency cap and {detail}"
        return RequestError(self.settings.overflow, message, retry_after_s=retry_after_s)

    def failure(self, waiter: Waiter) -> RequestError:
        """Why a waiter that was not called must go."""
        if waiter.state is WaiterState.EVICTED:
            return self.refusal(f"the queue is full of more important requests than {waiter.criticality.label} ones")
        if waiter.deadline_s <= waiter.patience_s:
            return RequestError(ErrorKind.DEADLINE_EXCEEDED, "the request's deadline passed in the queue")
        return self.refusal(f"none came free within {self.settings.wait_max_s:g} s (gate.wait_max_s)")

    def _evict_below(self, criticality: Criticality) -> bool:
        """Make room for a more important request: the newest of the least important class goes."""
        for least in reversed(_BY_IMPORTANCE):
            if least >= criticality:
                return False
            if self._queues[least]:
                waiter = next(reversed(self._queues[least]))
                self._take_out(waiter, WaiterState.EVICTED)
                waiter.wake()
                return True
        return False

    def _take_out(self, waiter: Waiter, state: WaiterState) -> None:
        del self._queues[waiter.criticality][waiter]
        self.waiting -= 1
        waiter.state = state


class Door:
    """The gates of all pools, with sleep. Pools without a cap have no gate and nobody waits."""

    def __init__(self, settings: GateSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._gates: dict[Pool, Gate] = {}

    def gate(self, pool: Pool) -> Gate:
        """The gate before `pool`."""
        gate = self._gates.get(pool)
        if gate is None:
            gate = self._gates[pool] = Gate(self._settings)
        return gate

    def waiting(self, pool: Pool) -> int:
        """Requests waiting before `pool`."""
        gate = self._gates.get(pool)
        return gate.waiting if gate is not None else 0

    async def enter(self, pool: Pool, criticality: Criticality, deadline_s: float) -> Waiter | None:
        """Return when the request may go to a pod; give what came back to `entered` once it has.

        Raises RequestError OVERLOADED (or as configured) or DEADLINE_EXCEEDED.
        """
        room = pool.room()
        if room is None:
            return None
        gate, now_s = self.gate(pool), self._clock.monotonic_s()
        waiter = gate.arrive(criticality, room=room, now_s=now_s, deadline_s=deadline_s)
        if waiter is not None:
            await self._wait(pool, gate, waiter, min(waiter.deadline_s, waiter.patience_s) - now_s)
        return waiter

    async def _wait(self, pool: Pool, gate: Gate, waiter: Waiter, limit_s: float) -> None:
        called = asyncio.Event()
        waiter.wake = called.set
        try:
            async with asyncio.timeout(limit_s):
                await called.wait()
        except TimeoutError:
            if waiter.state is WaiterState.WAITING:
                failure = gate.failure(waiter)
                gate.leave(waiter)
                raise failure from None
        except asyncio.CancelledError:
            self.entered(pool, waiter)
            raise
        if waiter.state is WaiterState.EVICTED:
            raise gate.failure(waiter)

    def entered(self, pool: Pool, waiter: Waiter | None) -> None:
        """The request is counted in a pod now, or will never be: its reservation ends."""
        if waiter is not None:
            self.gate(pool).leave(waiter)
            self.freed(pool)

    def left(self, pool: Pool) -> None:
        """A request has left a pod."""
        gate = self._gates.get(pool)
        if gate is not None:
            gate.drained(self._clock.monotonic_s())
            self.freed(pool)

    def freed(self, pool: Pool) -> None:
        """There may be new places: an end, a scrape, a new pod."""
        gate = self._gates.get(pool)
        if gate is not None and gate.waiting:
            gate.call(pool.room() or 0)
