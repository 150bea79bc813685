"""What forwarding is given and what it gives back; the ports through which it learns where to go."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from gir.forward.answer import Answer, AttemptPlan
from gir.model.decision import Candidate
from gir.model.errors import RequestError
from gir.model.ids import ClusterId
from gir.model.outcome import Attempt, Outcome
from gir.model.policy import ForwardPolicy
from gir.model.request import Usage


class Guide(Protocol):
    """Where to go next, and who is told how it went. One per request."""

    def next(self, tried: frozenset[ClusterId]) -> Candidate | None:
        """Best cluster not yet tried; None when there is none."""

    def elsewhere(self, tried: frozenset[ClusterId]) -> bool:
        """Whether a cluster in good health and not yet tried could take the request."""

    def lost(self, cluster: ClusterId) -> bool:
        """Whether health has taken `cluster` out of service."""

    def started(self, candidate: Candidate, now_s: float) -> None:
        """An attempt on `candidate` begins."""

    def first_token(self, candidate: Candidate, now_s: float) -> None:
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
    head_for: Callable[[Candidate, int], bytes]
    """Request head for a cluster, by the length of the body in bytes."""
    headers_for: Callable[[Candidate, int, Answer], bytes]
    """Header lines of the answer to the client, by the number of the attempt."""
    hedge_after_s: float = 0.0
    """Second attempt when no first token has come after so many seconds; 0 never."""


class Report(msgspec.Struct, kw_only=True):
    """What became of the request."""

    outcome: Outcome
    usage: Usage | None = None
    status: int = 0
    resumed: int = 0
    """Times the stream was continued on another cluster."""


class Try(msgspec.Struct):
    """One attempt while it lasts."""

    candidate: Candidate
    started_s: float
    answer: Answer | None = None
