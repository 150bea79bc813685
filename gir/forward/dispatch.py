"""Sending requests to clusters: the calls that wait, and the budget for trying again.

What happens to one request is `walk.Walk`; here is what requests have in common.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from gir.clock import Clock
from gir.forward.answer import Answer, AttemptPlan, ClusterLostError, Waiting, open_answer
from gir.forward.budget import RetryBudget
from gir.forward.job import Guide, Job, Report
from gir.forward.walk import Walk
from gir.model.decision import Candidate
from gir.model.ids import ClusterId
from gir.net.exchange import Exchange
from gir.net.pool import UpstreamPool


class Dispatcher:
    """Owns the use of the pools, the retry budget and the list of waiting calls."""

    def __init__(self, clock: Clock, pool_for: Callable[[Candidate], UpstreamPool], budget: RetryBudget) -> None:
        self.now_s = clock.monotonic_s
        self._pool_for = pool_for
        self.budget = budget
        self._waiting: dict[ClusterId, Waiting] = {}

    def __repr__(self) -> str:
        waiting = sum(len(waiting.calls) for waiting in self._waiting.values())
        return f"<Dispatcher {waiting} waiting, {self.budget!r}>"

    def give_up_waiting(self, cluster: ClusterId, reason: str) -> int:
        """Fail every call that still waits for its first token from `cluster`; its request goes elsewhere.

        Returns how many. Streams that have begun are left alone.
        """
        waiting = self._waiting.get(cluster)
        if waiting is None:
            return 0
        waiting.verdicts += 1
        calls = list(waiting.calls)
        for call in calls:
            call.give_up(ClusterLostError(call.phase, reason))
        return len(calls)

    # Both hand out a coroutine without being one: a coroutine that only awaits another costs as much as a small stage.

    def run(self, exchange: Exchange, job: Job, guide: Guide) -> Coroutine[Any, Any, Report]:
        """Serve the request, or raise the RequestError the client should see."""
        return Walk(self, exchange, job, guide).to_the_end()

    def open(self, candidate: Candidate, job: Job, plan: AttemptPlan) -> Coroutine[Any, Any, Answer]:
        """One attempt, up to its first token."""
        waiting = self._waiting.get(candidate.cluster)
        if waiting is None:
            waiting = self._waiting[candidate.cluster] = Waiting()
        head = job.head_for(candidate, len(plan.body))
        return open_answer(self._pool_for(candidate), head, plan, waiting)
