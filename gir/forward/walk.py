"""The attempts of one request: from cluster to cluster until the client has an answer.

Each try goes to another cluster; `phases.after` says whether there may be a next one, the retry budget whether the
fleet can afford it, the deadline whether there is time. Which cluster comes next, and who learns from an attempt's
end, is the business of the `Guide`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from gir.forward.answer import Answer, AttemptPlan
from gir.forward.budget import RetryBudget
from gir.forward.deliver import Delivery, deliver_stream, deliver_whole, tell_broken
from gir.forward.hedge import first_good
from gir.forward.job import Guide, Job, Report, Try
from gir.forward.phases import Next, after
from gir.forward.resume import body_for_the_rest, delivered_by, tokens_in
from gir.forward.underway import Underway
from gir.model.decision import Candidate
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ClusterId
from gir.model.outcome import Attempt, AttemptResult, Outcome, Phase
from gir.net.exchange import Exchange


class Sender(Protocol):
    """What a walk needs of the dispatcher."""

    budget: RetryBudget

    def open(
        self, candidate: Candidate, job: Job, plan: AttemptPlan, may_move: Callable[[], bool]
    ) -> Coroutine[Any, Any, Answer]:
        """One attempt, up to its first token; it is given up with its cluster if it `may_move`."""

    def underway(self, cluster: ClusterId) -> Underway:
        """The calls under way to `cluster`."""

    def now_s(self) -> float:
        """Monotonic seconds."""


class Walk:
    """One request on its way. `retries` counts its claims on the budget, given back when it has ended."""

    __slots__ = ("_asked_full", "_exchange", "_guide", "_job", "_sender", "_tried", "attempts", "retries")

    def __init__(self, sender: Sender, exchange: Exchange, job: Job, guide: Guide) -> None:
        self._sender = sender
        self._exchange = exchange
        self._job = job
        self._guide = guide
        self._tried: frozenset[ClusterId] = frozenset()
        self._asked_full = 0
        self.attempts: list[Attempt] = []
        self.retries = 0

    async def to_the_end(self) -> Report:
        """Serve the request, or raise the RequestError the client should see.

        Cancellation (the client left) closes the upstream, ends the attempt and passes on.
        """
        last: Try | None = None
        budget, hedge_after_s = self._sender.budget, self._job.hedge_after_s
        budget.enter()
        try:
            while (candidate := self._guide.next(self._tried)) is not None:
                if hedge_after_s > 0:
                    last = await first_good(self, candidate, hedge_after_s)
                else:
                    last = await self.open(self._begin(candidate))
                assert last.answer is not None, "an attempt ended without a result"
                if last.answer.result is AttemptResult.OK:
                    return await self._deliver(last, last.answer)
                self._end(last, last.answer.result, last.answer.phase)
                if not self._may_go_on(last.answer, last.candidate.cluster):
                    break
            return self._give_up(last)
        finally:
            budget.leave(self.retries)

    # One attempt

    def _begin(self, candidate: Candidate) -> Try:
        self._tried |= {candidate.cluster}
        now_s = self._sender.now_s()
        self._guide.started(candidate, now_s)
        return Try(candidate, now_s)

    def begin_hedge(self) -> Try | None:
        """A second attempt beside the first, if the budget and another cluster allow it."""
        candidate = self._guide.next(self._tried)
        if candidate is None or len(self._tried) >= self._job.policy.attempts_max or not self._claim():
            return None
        return self._begin(candidate)

    def begin_first(self, candidate: Candidate) -> Try:
        """The attempt that a hedge may accompany."""
        return self._begin(candidate)

    async def open(self, attempt: Try, plan: AttemptPlan | None = None) -> Try:
        """Run an attempt up to its first token; a cancelled one is ended here."""
        try:
            attempt.answer = await self._sender.open(
                attempt.candidate, self._job, plan or self._job.plan, self._may_move
            )
        except asyncio.CancelledError:
            self._end(attempt, AttemptResult.CANCELLED, Phase.DISPATCHED)
            raise
        return attempt

    def drop(self, loser: Try) -> None:
        """End an attempt that is no longer wanted."""
        assert loser.answer is not None, "only an answered attempt is dropped; others are cancelled"
        if loser.answer.call is not None:
            loser.answer.call.abort()
        result = loser.answer.result
        self._end(loser, AttemptResult.CANCELLED if result is AttemptResult.OK else result, loser.answer.phase)

    def _end(
        self,
        attempt: Try,
        result: AttemptResult,
        phase: Phase,
        delivery: Delivery | None = None,
        first_token_s: float | None = None,
    ) -> None:
        answer = attempt.answer
        framer = answer.framer if answer else None
        tokens = delivery.tokens if delivery else 0
        if framer and first_token_s is not None:
            tokens = tokens_in(framer)
        ended = Attempt(
            cluster=attempt.candidate.cluster,
            result=result,
            phase=phase,
            status=answer.head.status if answer and answer.head else None,
            started_s=attempt.started_s,
            ended_s=self._sender.now_s(),
            first_token_s=first_token_s,
            retry_after_s=answer.retry_after_s if answer and result is not AttemptResult.OK else None,
            tokens=tokens,
            detail=delivery.detail if delivery else answer.detail if answer else "",
        )
        self.attempts.append(ended)
        self._guide.ended(ended, delivery.usage if delivery else framer.usage if framer else None)

    # Whether there is a next one

    def _may_move(self) -> bool:
        """Whether the request would be better off without the attempt under way, should its cluster be lost."""
        untried = len(self.attempts) + 1 < self._job.policy.attempts_max
        return untried and self._sender.now_s() < self._job.deadline_s and self._guide.elsewhere(self._tried)

    def _may_leave(self, cluster: ClusterId) -> bool:
        """Whether what broke on `cluster` may be done elsewhere. When it has been lost, its requests move for nothing,
        like those that still wait there: all of them broke at once, and the fleet gets no work that it had not."""
        return (self._guide.lost(cluster) and self._guide.elsewhere(self._tried)) or self._claim()

    def _claim(self) -> bool:
        if not self._sender.budget.take():
            return False
        self.retries += 1
        return True

    def _may_go_on(self, answer: Answer, cluster: ClusterId) -> bool:
        """Whether another cluster may be asked after the `answer` of `cluster`; claims what that costs."""
        if self._sender.now_s() >= self._job.deadline_s or len(self.attempts) >= self._job.policy.attempts_max:
            return False
        free = answer.may_be_elsewhere or answer.lost
        verdict = Next.FREE if free else after(answer.result, answer.phase)
        if verdict is Next.ONCE:
            self._asked_full += 1
            return self._asked_full <= 1
        if verdict is Next.BUDGET and answer.result is AttemptResult.UPSTREAM_FAULT:
            return self._claim()  # it answered: the request itself may be what breaks one engine after the other
        return verdict is Next.FREE or (verdict is Next.BUDGET and self._may_leave(cluster))

    # The answer

    async def _deliver(self, attempt: Try, answer: Answer) -> Report:
        first_token_s = self._sender.now_s()
        self._guide.first_token(attempt.candidate, first_token_s)
        headers = self._job.headers_for(attempt.candidate, len(self.attempts) + 1, answer)
        if answer.call is None:
            whole = deliver_whole(self._exchange, answer, headers)
            self._end(attempt, whole.result, whole.phase, whole, first_token_s)
            return Report(outcome=whole.outcome, usage=whole.usage, status=answer.status or 0)
        self._exchange.start(answer.status or 0, headers)
        delivery = await self._relay(attempt, answer, first_token_s)
        resumed = 0
        while delivery.outcome is Outcome.TRUNCATED:
            following = await self._continue(attempt)
            if following is None or following.answer is None:
                break
            resumed += 1
            attempt = following
            delivery = await self._relay(attempt, following.answer, self._sender.now_s())
        if delivery.outcome is not Outcome.COMPLETED:
            tell_broken(self._exchange, delivery, self._job.plan.api)
        return Report(outcome=delivery.outcome, usage=delivery.usage, status=answer.status or 0, resumed=resumed)

    async def _relay(self, attempt: Try, answer: Answer, first_token_s: float) -> Delivery:
        assert answer.call is not None, "only an open stream can be relayed"
        streams = self._sender.underway(attempt.candidate.cluster).streams
        streams[answer.call] = self._job.policy.lost_idle_s
        try:
            delivery = await deliver_stream(self._exchange, answer)
        except BaseException:
            if answer.framer is not None and answer.framer.terminal_seen:
                # The client had the end and left before the body was over, as the official clients do.
                self._end(attempt, AttemptResult.OK, Phase.DONE, None, first_token_s)
            else:
                self._end(attempt, AttemptResult.CANCELLED, Phase.STREAMING, None, first_token_s)
            raise
        finally:
            del streams[answer.call]
        self._end(attempt, delivery.result, delivery.phase, delivery, first_token_s)
        return delivery

    async def _continue(self, broken: Try) -> Try | None:
        """Another cluster that goes on where `broken` stopped; None when that is not allowed or not to be had."""
        plan = self._job.plan
        framer = broken.answer.framer if broken.answer else None
        delivered = delivered_by(framer) if plan.resumable and framer is not None else None
        rest = body_for_the_rest(plan.body, delivered) if delivered is not None else None
        if rest is None:
            return None
        following = msgspec.structs.replace(plan, body=rest, resumes=delivered)
        left = broken.candidate.cluster
        while self._sender.now_s() < self._job.deadline_s and len(self.attempts) < self._job.policy.attempts_max:
            candidate = self._guide.next(self._tried)
            if candidate is None or not self._may_leave(left):
                return None
            attempt = await self.open(self._begin(candidate), following)
            answer = attempt.answer
            assert answer is not None, "an attempt ended without a result"
            if answer.result is AttemptResult.OK and answer.framer is not None:
                return attempt
            self._end(attempt, answer.result, answer.phase)
            left = candidate.cluster
        return None

    def _give_up(self, last: Try | None) -> Report:
        """Answer with the upstream's own words where they are the client's business, else raise."""
        answer = last.answer if last else None
        if last is None or answer is None or answer.result is AttemptResult.BACKPRESSURE:
            raise self._guide.no_candidate(self.attempts)
        if answer.result is AttemptResult.CLIENT_ERROR and answer.head is not None and not answer.may_be_elsewhere:
            headers = self._job.headers_for(last.candidate, len(self.attempts), answer)
            self._exchange.respond(answer.head.status, headers, answer.body)
            return Report(outcome=Outcome.COMPLETED, status=answer.head.status)
        if answer.result is AttemptResult.CANCELLED or self._sender.now_s() >= self._job.deadline_s:
            raise RequestError(
                ErrorKind.DEADLINE_EXCEEDED, "the deadline passed before the first token; raise it or ask for less"
            )
        if answer.may_be_elsewhere or answer.phase is Phase.CONNECTING:
            raise self._guide.no_candidate(self.attempts)
        raise RequestError(
            ErrorKind.UPSTREAM_FAILED,
            f"{len(self.attempts)} attempt(s) failed, the last with: {answer.detail}; the request may have run",
        )
