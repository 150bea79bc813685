"""Walk the ranked clusters until the client has an answer.

Each try goes to another cluster; `phases.after` says whether there may be a next one, the retry budget whether the
fleet can afford it, the deadline whether there is time. Which cluster comes next, and who learns from an attempt's
end, is the business of the `Guide` the pipeline passes in.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from gir.clock import Clock
from gir.forward.answer import Answer, AttemptPlan, open_answer
from gir.forward.budget import RetryBudget
from gir.forward.deliver import Delivery, deliver
from gir.forward.phases import Next, after
from gir.model.decision import Candidate
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ClusterId
from gir.model.outcome import Attempt, AttemptResult, Outcome, Phase
from gir.model.policy import ForwardPolicy
from gir.model.request import Usage
from gir.net.errors import FirstTokenTimeout
from gir.net.exchange import Exchange
from gir.net.message import Headers
from gir.net.pool import UpstreamPool
from gir.net.upstream import UpstreamCall


class Guide(Protocol):
    """Where to go next, and who is told how it went. One per request."""

    def next(self, tried: frozenset[ClusterId]) -> Candidate | None:
        """Best cluster not yet tried; None when there is none."""

    def started(self, candidate: Candidate) -> None:
        """An attempt on `candidate` begins."""

    def first_token(self, candidate: Candidate) -> None:
        """The client can be answered."""

    def ended(self, attempt: Attempt, usage: Usage | None) -> None:
        """The attempt is over; called exactly once for each `started`."""

    def no_candidate(self, attempts: list[Attempt]) -> RequestError:
        """Error to answer when nobody (else) can take the request."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One admitted request, ready to be sent."""

    plan: AttemptPlan
    policy: ForwardPolicy
    deadline_s: float
    head_for: Callable[[Candidate], bytes]
    """Request head for a cluster."""
    headers_for: Callable[[Candidate, int, Answer], Headers]
    """Response headers for the client."""


class Report(msgspec.Struct, kw_only=True):
    """What became of the request."""

    outcome: Outcome
    attempts: list[Attempt]
    usage: Usage | None = None
    status: int = 0
    first_token_s: float | None = None


class Dispatcher:
    """Sends requests to clusters; owns the pools' use, the retry budget and the list of waiting calls."""

    def __init__(self, clock: Clock, pool_for: Callable[[Candidate], UpstreamPool], budget: RetryBudget) -> None:
        self._clock = clock
        self._pool_for = pool_for
        self.budget = budget
        self._waiting: dict[ClusterId, set[UpstreamCall]] = {}

    def __repr__(self) -> str:
        waiting = sum(len(calls) for calls in self._waiting.values())
        return f"<Dispatcher {waiting} waiting, {self.budget!r}>"

    def give_up_waiting(self, cluster: ClusterId, reason: str) -> int:
        """Fail every call that still waits for its first token from `cluster`; its request goes elsewhere.

        Returns how many. Streams that have begun are left alone.
        """
        calls = list(self._waiting.get(cluster, ()))
        for call in calls:
            call.give_up(FirstTokenTimeout(call.phase, reason))
        return len(calls)

    async def run(self, exchange: Exchange, job: Job, guide: Guide) -> Report:
        """Serve the request, or raise the RequestError the client should see.

        Cancellation (the client left) closes the upstream, ends the attempt and passes on.
        """
        walk = _Walk(self, exchange, job, guide)
        self.budget.active += 1
        try:
            return await walk.to_the_end()
        finally:
            self.budget.active -= 1
            self.budget.give_back(walk.retries)

    async def open(self, candidate: Candidate, job: Job) -> Answer:
        """One attempt, up to its first token."""
        waiting = self._waiting.get(candidate.cluster)
        if waiting is None:
            waiting = self._waiting[candidate.cluster] = set()
        return await open_answer(self._pool_for(candidate), job.head_for(candidate), job.plan, waiting)

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic_s()


class _Walk:
    """The attempts of one request."""

    __slots__ = ("_asked_full", "_exchange", "_guide", "_job", "_last", "_owner", "_tried", "attempts", "retries")

    def __init__(self, owner: Dispatcher, exchange: Exchange, job: Job, guide: Guide) -> None:
        self._owner = owner
        self._exchange = exchange
        self._job = job
        self._guide = guide
        self._tried: frozenset[ClusterId] = frozenset()
        self._asked_full = 0
        self._last: Candidate | None = None
        self.attempts: list[Attempt] = []
        self.retries = 0

    async def to_the_end(self) -> Report:
        last: Answer | None = None
        while True:
            candidate = self._guide.next(self._tried)
            if candidate is None:
                break
            self._tried |= {candidate.cluster}
            self._last = candidate
            started_s = self._owner.now_s()
            self._guide.started(candidate)
            try:
                answer = await self._owner.open(candidate, self._job)
                if answer.result is AttemptResult.OK:
                    return await self._deliver(candidate, answer, started_s)
            except asyncio.CancelledError:
                self._end(candidate, AttemptResult.CANCELLED, Phase.DISPATCHED, started_s)
                raise
            self._end(candidate, answer.result, answer.phase, started_s, answer)
            last = answer
            if not self._may_go_on(answer):
                break
        return self._give_up(last)

    def _may_go_on(self, answer: Answer) -> bool:
        """Whether another cluster may be asked after `answer`; claims what that costs."""
        if self._owner.now_s() >= self._job.deadline_s:
            return False
        if len(self.attempts) >= self._job.policy.attempts_max:
            return False
        verdict = Next.FREE if answer.may_be_elsewhere else after(answer.result, answer.phase)
        if verdict is Next.FREE:
            return True
        if verdict is Next.ONCE:
            self._asked_full += 1
            return self._asked_full <= 1
        if verdict is Next.BUDGET and self._owner.budget.take():
            self.retries += 1
            return True
        return False

    async def _deliver(self, candidate: Candidate, answer: Answer, started_s: float) -> Report:
        first_token_s = self._owner.now_s()
        self._guide.first_token(candidate)
        headers = self._job.headers_for(candidate, len(self.attempts) + 1, answer)
        result, phase, delivery = AttemptResult.CANCELLED, Phase.STREAMING, None
        try:
            delivery = await deliver(self._exchange, answer, headers, self._job.plan.api)
            result, phase = delivery.result, delivery.phase
        finally:
            self._end(candidate, result, phase, started_s, answer, delivery, first_token_s)
        return Report(
            outcome=delivery.outcome,
            attempts=self.attempts,
            usage=delivery.usage,
            status=answer.status or 0,
            first_token_s=first_token_s,
        )

    def _end(
        self,
        candidate: Candidate,
        result: AttemptResult,
        phase: Phase,
        started_s: float,
        answer: Answer | None = None,
        delivery: Delivery | None = None,
        first_token_s: float | None = None,
    ) -> None:
        attempt = Attempt(
            cluster=candidate.cluster,
            result=result,
            phase=phase,
            status=answer.status if answer else None,
            started_s=started_s,
            ended_s=self._owner.now_s(),
            first_token_s=first_token_s,
            retry_after_s=answer.retry_after_s if answer else None,
            detail=delivery.detail if delivery else (answer.detail if answer else ""),
        )
        self.attempts.append(attempt)
        usage = delivery.usage if delivery else _usage_so_far(answer)
        self._guide.ended(attempt, usage)

    def _give_up(self, last: Answer | None) -> Report:
        """Answer with the upstream's own words where they are the client's business, else raise."""
        if last is None or last.result is AttemptResult.BACKPRESSURE:
            raise self._guide.no_candidate(self.attempts)
        if last.result is AttemptResult.CLIENT_ERROR and last.head is not None and not last.may_be_elsewhere:
            assert self._last is not None, "an answer without the candidate it came from"
            headers = self._job.headers_for(self._last, len(self.attempts), last)
            self._exchange.respond(last.head.status, headers, last.body)
            return Report(outcome=Outcome.COMPLETED, attempts=self.attempts, status=last.head.status)
        if self._owner.now_s() >= self._job.deadline_s:
            raise RequestError(
                ErrorKind.DEADLINE_EXCEEDED, "the deadline passed before the first token; raise it or ask for less"
            )
        if last.may_be_elsewhere or last.phase is Phase.CONNECTING:
            raise self._guide.no_candidate(self.attempts)
        raise RequestError(
            ErrorKind.UPSTREAM_FAILED,
            f"{len(self.attempts)} attempt(s) failed, the last with: {last.detail}; the request may have run",
        )


def _usage_so_far(answer: Answer | None) -> Usage | None:
    return answer.framer.usage if answer is not None and answer.framer is not None else None
