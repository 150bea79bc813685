"""Hedging: a second attempt for a first token that is slow to come. Off unless policy asks for it.

The second attempt is paid for from the retry budget. The first of the two that could answer the client wins; the other
is cancelled, which closes its upstream.
"""

import asyncio
from typing import Protocol

from gir.forward.answer import AttemptPlan
from gir.forward.job import Try
from gir.model.decision import Candidate
from gir.model.outcome import AttemptResult


class Opener(Protocol):
    """What hedging needs of a walk."""

    def begin_first(self, candidate: Candidate) -> Try:
        """Start counting the first attempt."""

    def begin_hedge(self) -> Try | None:
        """Start counting a second one; None when there is no room for it."""

    async def open(self, attempt: Try, plan: AttemptPlan | None = None) -> Try:
        """Run an attempt up to its first token."""

    def drop(self, loser: Try) -> None:
        """End an attempt that has an answer nobody wants any more."""


async def first_good(walk: Opener, candidate: Candidate, after_s: float) -> Try:
    """The attempt whose answer counts. If both fail, the one that failed last; the other has been ended."""
    first = asyncio.get_running_loop().create_task(walk.open(walk.begin_first(candidate)))
    tasks, winner = {first}, None
    try:
        done, _ = await asyncio.wait(tasks, timeout=after_s)
        if not done and (second := walk.begin_hedge()) is not None:
            tasks.add(asyncio.get_running_loop().create_task(walk.open(second)))
        winner = await _race(walk, tasks)
        await _end(walk, tasks)
    except BaseException:
        # The client left, perhaps in the very turn in which an answer came: whoever has one must be ended all the same.
        if winner is not None:
            walk.drop(winner)
        await _end(walk, tasks)
        raise
    return winner


async def _race(walk: Opener, tasks: set[asyncio.Task[Try]]) -> Try:
    """The winner; `tasks` keeps those that were not looked at."""
    while True:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks -= done
        ended = [task.result() for task in done]
        good = [attempt for attempt in ended if attempt.answer and attempt.answer.result is AttemptResult.OK]
        winner = good[0] if good else (ended[-1] if not tasks else None)
        for attempt in ended:
            if attempt is not winner:
                walk.drop(attempt)
        if winner is not None:
            return winner


async def _end(walk: Opener, tasks: set[asyncio.Task[Try]]) -> None:
    """End what nobody waits for: cancelled attempts end themselves, those that have an answer are dropped."""
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Try):
            walk.drop(ended)
    tasks.clear()
