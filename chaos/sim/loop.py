"""An event loop without sockets and without waiting: time jumps to the next thing that happens.

Callbacks belong to *nodes*, the simulated processes. Which node a callback belongs to travels in its context variables,
as asyncio already carries those from task to task, so a whole process can be stopped (its callbacks pile up, as after
SIGSTOP) or killed (they never run) without its code knowing.

Order is decided by time and then by the order of asking, so one seed gives one history.
"""

import asyncio
import heapq
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast

from gir.clock import Clock

_NODE: ContextVar["Node | None"] = ContextVar("node", default=None)
Dial = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Coroutine[Any, Any, tuple[Any, Any]]]


class Call:
    """Something to be done at some time, for some process."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(self, context: Context, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._context = context
        self._callback = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        """Not to be done after all."""
        self._cancelled = True


class SimLoop:
    """Runs callbacks in order of virtual time. It has what asyncio's tasks, futures and timeouts ask of a loop."""

    def __init__(self, *, start_s: float = 1_000.0) -> None:
        self._now_s = start_s
        self._ready: deque[asyncio.Handle | Call] = deque()
        self._timers: list[tuple[float, int, Any]] = []
        self._asked = 0
        self.events = 0
        """Callbacks that have run."""
        self.failures: list[str] = []
        """What no task or callback should have raised."""
        self.dial: Dial | None = None
        """How connections are made: the network."""

    def __repr__(self) -> str:
        return f"<SimLoop t={self._now_s:.3f} {len(self._timers)} timers, {self.events} events>"

    # Time

    def time(self) -> float:
        return self._now_s

    def run_until(self, until_s: float) -> None:
        """Run everything that happens up to `until_s`."""
        asyncio._set_running_loop(cast("Any", self))
        ready, timers = self._ready, self._timers
        try:
            while True:
                while ready:
                    self._run(ready.popleft())
                if not timers or timers[0][0] > until_s:
                    break
                when_s, _, handle = heapq.heappop(timers)
                self._now_s = max(self._now_s, when_s)
                if not handle._cancelled:
                    self._run(handle)
            self._now_s = until_s
        finally:
            asyncio._set_running_loop(None)

    def _run(self, handle: Any) -> None:
        if handle._cancelled:
            return
        node: Node | None = handle._context.get(_NODE)
        if node is not None and not node.running:
            node.hold(handle)
            return
        self.events += 1
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a callback raises is a finding, not the end of the run
            self.call_exception_handler({"message": "callback failed", "exception": error})

    def call_in(
        self, context: Context, when_s: float, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> "Call":
        """As `call_at`, without the ceremony of asyncio's handles."""
        call = Call(context, callback, args)
        self._asked += 1
        heapq.heappush(self._timers, (when_s, self._asked, call))
        return call

    # What asyncio asks for

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, cast("Any", self), context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, cast("Any", self), context)
        self._asked += 1
        heapq.heappush(self._timers, (when, self._asked, handle))
        return handle

    def call_later(
        self, delay_s: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay_s, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: a cancelled handle is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("Any", self))

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=cast("Any", self), name=name, context=context)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        assert self.dial is not None, "no network"
        return await self.dial(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """A name is its own address here."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what went wrong; the end of a killed process is none."""
        node = _NODE.get()
        if node is not None and not node.alive:
            return
        error = context.get("exception")
        self.failures.append(f"{context['message']}: {error!r}" if error else context["message"])


class Node:
    """One simulated process. `paused` stands for SIGSTOP."""

    __slots__ = ("_held", "alive", "context", "loop", "name", "paused", "silent")

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.paused = False
        self.silent = False
        """Dead without a word: its host is gone, so nobody answers for it either."""
        self._held: list[asyncio.Handle | Call] = []
        self.context = copy_context()
        self.context.run(_NODE.set, self)

    def __repr__(self) -> str:
        state = "paused" if self.paused else "running" if self.alive else "dead"
        return f"<Node {self.name} {state}>"

    @property
    def running(self) -> bool:
        """Its callbacks run."""
        return self.alive and not self.paused

    def hold(self, handle: asyncio.Handle | Call) -> None:
        """Keep what came for it while it is stopped; a dead process keeps nothing."""
        if self.alive:
            self._held.append(handle)

    def pause(self) -> None:
        """Stop it where it stands."""
        self.paused = True

    def resume(self) -> None:
        """Go on: what piled up runs now, in its order."""
        self.paused = False
        held, self._held = self._held, []
        self.loop._ready.extend(held)

    def kill(self, *, silent: bool = False) -> None:
        """End it. Its callbacks never run again."""
        self.alive = False
        self.silent = silent
        self._held.clear()

    def soon(self, callback: Callable[..., object], *args: object) -> None:
        """Run `callback` as this process."""
        self.loop._ready.append(Call(self.context, callback, args))

    def at(self, when_s: float, callback: Callable[..., object], *args: object) -> Call:
        """Run `callback` as this process at `when_s`."""
        return self.loop.call_in(self.context, when_s, callback, args)

    def later(self, delay_s: float, callback: Callable[..., object], *args: object) -> Call:
        """Run `callback` as this process `delay_s` from now."""
        return self.loop.call_in(self.context, self.loop._now_s + delay_s, callback, args)


def current_node() -> Node | None:
    """The process whose callback is running."""
    return _NODE.get()


class SimClock(Clock):
    """A process's clock: the loop's time, and a wall clock that may be wrong by `skew_s`."""

    def __init__(self, loop: SimLoop, chance: Any, *, skew_s: float = 0.0) -> None:
        self._loop = loop
        self._chance = chance
        self.skew_s = skew_s

    @property
    def random(self) -> Any:
        return self._chance

    def monotonic_s(self) -> float:
        return self._loop._now_s

    def wall_s(self) -> float:
        return 1_800_000_000.0 + self._loop._now_s + self.skew_s

    async def sleep_s(self, duration_s: float) -> None:
        await asyncio.sleep(max(0.0, duration_s))
