"""Signals, readiness and the ordered way down.

First TERM (or Ctrl-C): not ready at once, the listener stays open `listen_s` so that load balancers can look away, then
no new connections; what runs may finish for `drain_s`. Second TERM: out within a second.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import msgspec

from gir.clock import Clock
from gir.tasks import TaskSet


class Grace(msgspec.Struct, frozen=True, kw_only=True):
    """How long an orderly stop may take, in seconds."""

    listen_s: float = 5.0
    drain_s: float = 60.0


class Lifecycle:
    """Waits for the signal, then takes the process down in order."""

    def __init__(self, clock: Clock, tasks: TaskSet) -> None:
        self._clock = clock
        self._tasks = tasks
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self.ready = False
        """What /readyz says."""

    def watch_signals(self) -> None:
        """Take TERM and INT from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        """Ask for the way down; asked twice, hurry."""
        if self._asked.is_set():
            self._hurry.set()
        self.ready = False
        self._asked.set()

    async def until_stopped(self) -> None:
        """Return when somebody asked to stop."""
        await self._asked.wait()

    async def descend(
        self, grace: Grace, *, stop_listening: Callable[[], None], drain: Callable[[float], Awaitable[bool]]
    ) -> bool:
        """The ordered part of the way down; True when everything finished by itself."""
        orderly = self._tasks.spawn(self._orderly(grace, stop_listening, drain), name="drain")
        hurried = self._tasks.spawn(self._hurry.wait(), name="second signal")
        await asyncio.wait({orderly, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if orderly.done():
            return bool(orderly.result())
        orderly.cancel()
        return False

    async def _orderly(
        self, grace: Grace, stop_listening: Callable[[], None], drain: Callable[[float], Awaitable[bool]]
    ) -> bool:
        await self._clock.sleep_s(grace.listen_s)
        stop_listening()
        return await drain(grace.drain_s)
