"""Sending requests to clusters: the calls that wait, and the budget for trying again.

What happens to one request is `walk.Walk`; here is what requests have in common.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from gir.clock import Clock
from gir.forward.answer import Answer, AttemptPlan, open_answer
from gir.forward.budget import RetryBudget
from gir.forward.job import Guide, Job, Report
from gir.forward.underway import Underway
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
        self._underway: dict[ClusterId, Underway] = {}

    def __repr__(self) -> str:
        waiting = sum(len(underway.waiting) for underway in self._underway.values())
        return f"<Dispatcher {waiting} waiting, {self.budget!r}>"

    def give_up_waiting(self, cluster: ClusterId, reason: str) -> int:
        """Fail every call that waits for its first token from `cluster` and whose request may go elsewhere now.

        Returns how many. Streams that have begun are left alone.
        """
        underway = self._underway.get(cluster)
        return 0 if underway is None else underway.give_up_waiting(reason)

    def end_silent_streams(self, cluster: ClusterId) -> int:
        """End the streams from an unreachable `cluster` in which nothing has come for too long; returns how many."""
        underway = self._underway.get(cluster)
        return 0 if underway is None else underway.end_silent(self.now_s())

    def underway(self, cluster: ClusterId) -> Underway:
        """The calls under way to `cluster`."""
        underway = self._underway.get(cluster)
        if underway is None:
            underway = self._underway[cluster] = Underway()
        return underway

    # Both hand out a coroutine without being one: a coroutine that only awaits another costs as much as a small stage.

    def run(self, exchange: Exchange, job: Job, guide: Guide) -> Coroutine[Any, Any, Report]:
        """Serve the request, or raise the RequestError the client should see."""
        return Walk(self, exchange, job, guide).to_the_end()

    def open(
        self, candidate: Candidate, job: Job, plan: AttemptPlan, may_move: Callable[[], bool]
    ) -> Coroutine[Any, Any, Answer]:
        """One attempt, up to its first token; given up when health has lost the cluster and the request `may_move`."""
        underway = self.underway(candidate.cluster)
        head = job.head_for(candidate, len(plan.body))
        return open_answer(self._pool_for(candidate), head, plan, underway, may_move)
