"""Background tasks that cannot be lost.

A bare `asyncio.create_task` may be collected mid-flight and swallows its exception. A `TaskSet` keeps each task,
reports a failure through one callback and cancels what is left when it closes.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

FailureHandler = Callable[[str, BaseException], None]


async def in_turns(steps: Iterator[None]) -> None:
    """Take all of `steps`, with a turn of the event loop for everybody else after each."""
    for _ in steps:
        await asyncio.sleep(0)


class TaskSet:
    """Owns the background tasks of one component.

    `on_failure(name, error)` is called once for each task that ends with an exception other than cancellation.
    """

    def __init__(self, on_failure: FailureHandler) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start `coroutine` now and keep it until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(task.get_name(), error)

    async def close(self) -> None:
        """Cancel every task and wait until each has ended. Safe to call twice."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
