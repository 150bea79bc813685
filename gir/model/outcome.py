"""How requests and attempts end. A request has exactly one terminal `Outcome` (invariant I1).

The enumerations are strings, so that a member is its own label in metrics and logs and hashes at a string's price.
"""

import enum

import msgspec

from gir.model.ids import ClusterId


class Outcome(enum.StrEnum):
    """Terminal state of one admitted request, plus REJECTED for those never admitted."""

    COMPLETED = "completed"
    FAILED = "failed_before_first_token"
    TRUNCATED = "truncated"
    CLIENT_GONE = "client_gone"
    EXPIRED = "expired"
    REJECTED = "rejected"


class Phase(enum.StrEnum):
    """How far an attempt got. It decides what a retry may do."""

    QUEUED = "queued"
    CONNECTING = "connecting"
    DISPATCHED = "dispatched"
    """Request bytes left this process; no byte of the answer has come."""
    HEAD = "head"
    """Response head seen, no content yet; the client has seen nothing."""
    STREAMING = "streaming"
    """The client has received content: no retry from here on."""
    DONE = "done"


class AttemptResult(enum.StrEnum):
    """Class of an attempt's end, as health and retries judge it."""

    OK = "ok"
    LOCAL_FAULT = "local_fault"
    """Refused, reset, timed out: the path or the process, before an HTTP status."""
    UPSTREAM_FAULT = "upstream_fault"
    """5xx, error event inside a 200, truncation."""
    BACKPRESSURE = "backpressure"
    """429 or 503: full, not broken."""
    CLIENT_ERROR = "client_error"
    """Other 4xx: the caller's fault; never counts against a cluster."""
    CANCELLED = "cancelled"
    """We gave up: client left, deadline, loser of a hedge."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of one request on one cluster. Times in monotonic seconds."""

    cluster: ClusterId
    result: AttemptResult
    phase: Phase
    status: int | None = None
    """HTTP status of the cluster's answer, if one came."""
    started_s: float = 0.0
    ended_s: float = 0.0
    first_token_s: float | None = None
    retry_after_s: float | None = None
    tokens: int = 0
    """Token events passed on to the client; of a whole answer without a count of its own, an estimate by its length."""
    detail: str = ""
