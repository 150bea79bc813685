"""Defects on the way of a request: retries, streams, disconnects, deadlines."""

import weakref
from typing import Any

import msgspec

from chaos.sim.bugs import Bug
from gir import requesting
from gir.forward import walk
from gir.forward.dispatch import Dispatcher
from gir.forward.phases import Next
from gir.forward.walk import Walk
from gir.model.outcome import AttemptResult, Outcome
from gir.net.sse import EventFramer
from gir.net.upstream import UpstreamCall
from gir.scope import Scope
from gir.watch import Watch


def _leak(close: Any) -> Any:
    def forgetful(scope: Scope, bytes_sent: int) -> None:
        if scope.outcome is Outcome.CLIENT_GONE:
            scope.ticket = None
        close(scope, bytes_sent)

    return forgetful


def _blind_retry(_: Any) -> Any:
    async def again(walk: Any, broken: Any) -> Any:
        del broken
        candidate = walk._guide.next(walk._tried)
        if candidate is None or len(walk.attempts) >= walk._job.policy.attempts_max:
            return None
        attempt = await walk.open(walk._begin(candidate), walk._job.plan)
        if attempt.answer.result is AttemptResult.OK and attempt.answer.framer is not None:
            return attempt
        walk._end(attempt, attempt.answer.result, attempt.answer.phase)
        return None

    return again


def _trusting(end: Any) -> Any:
    def believe(framer: EventFramer) -> bytes:
        rest: bytes = end(framer)
        framer.terminal_seen = True
        return rest

    return believe


def _amnesia(begin: Any) -> Any:
    def forget(walk: Any, candidate: Any) -> Any:
        tried = walk._tried
        attempt = begin(walk, candidate)
        walk._tried = tried
        return attempt

    return forget


def _only_at_once(move: Any) -> Any:
    looked_at: weakref.WeakKeyDictionary[Watch, set[str]] = weakref.WeakKeyDictionary()

    def move_once(watch: Watch, view: Any) -> None:
        lost, known = watch._lost, looked_at.setdefault(watch, set())
        watch._lost = {cluster: became for cluster, became in lost.items() if cluster not in known}
        known.update(watch._lost)
        move(watch, view)
        watch._lost = lost

    return move_once


def _endless(job: Any) -> Any:
    def patient(*args: Any, **kwargs: Any) -> Any:
        made = job(*args, **kwargs)
        deadlines = msgspec.structs.replace(made.plan.deadlines, total_at_s=float("inf"))
        return msgspec.structs.replace(made, plan=msgspec.structs.replace(made.plan, deadlines=deadlines))

    return patient


BUGS = (
    Bug(
        name="leak-on-disconnect",
        what="a client that leaves takes its place in flow control with it",
        target=Scope,
        attribute="close",
        replace=_leak,
        finding="I2",
    ),
    Bug(
        name="retry-after-first-token",
        what="a broken stream is sent again from the start, into the same answer",
        target=Walk,
        attribute="_continue",
        replace=_blind_retry,
        finding="I4",
        faults=frozenset({"ill", "crash", "restart_pods"}),
    ),
    Bug(
        name="eof-as-success",
        what="the end of the bytes is taken for the end of the answer",
        target=EventFramer,
        attribute="end",
        replace=_trusting,
        first=15,
        finding="I4",
        faults=frozenset({"ill"}),
    ),
    Bug(
        name="same-cluster-again",
        what="a retry may go to the cluster that has just failed",
        target=Walk,
        attribute="_begin",
        replace=_amnesia,
        first=13,
        finding="I7",
        faults=frozenset({"crash", "freeze", "ill"}),
    ),
    Bug(
        name="no-failover",
        what="a request is given up after its first failure, whatever else could serve it",
        target=walk,
        attribute="after",
        replace=lambda _: lambda *_: Next.STOP,
        finding="PTE",
        faults=frozenset({"freeze", "crash", "ill"}),
    ),
    Bug(
        name="waiters-not-moved",
        what="requests that wait for a lost cluster are left there until their own deadline",
        target=Dispatcher,
        attribute="give_up_waiting",
        replace=lambda _: lambda *_: 0,
        finding="waiters",
        faults=frozenset({"freeze"}),
    ),
    Bug(
        name="waiters-moved-nowhere",
        what="requests that wait for a lost cluster are taken from it though no other may serve them",
        target=Walk,
        attribute="_may_move",
        replace=lambda _: lambda _: True,
        finding="moved",
        faults=frozenset({"freeze", "power"}),
    ),
    Bug(
        name="silent-streams-left",
        what="streams that a frozen cluster has begun hang until their own deadline",
        target=Dispatcher,
        attribute="end_silent_streams",
        replace=lambda _: lambda *_: 0,
        finding="streams",
        faults=frozenset({"freeze"}),
    ),
    Bug(
        name="lost-cluster-looked-at-once",
        what="who begins to wait for a lost cluster after the verdict, or could go nowhere then, stays there",
        target=Watch,
        attribute="_move",
        replace=_only_at_once,
        finding="waiters",
        first=124,
        faults=frozenset({"freeze", "power"}),
    ),
    Bug(
        name="upstream-left-running",
        what="the upstream is not closed when the client leaves",
        target=UpstreamCall,
        attribute="abort",
        replace=lambda _: lambda _: None,
        finding="gone",
    ),
    Bug(
        name="deadline-ignored",
        what="the request's own deadline does not reach the upstream call",
        target=requesting,
        attribute="job",
        replace=_endless,
        finding="I12",
        faults=frozenset({"slow_pods", "hang_pods", "freeze"}),
        seeds=80,
    ),
)
