"""Which failures may be tried again elsewhere: the phase table, as data.

The rule behind every row: before the client has seen content a fault is ours to hide, after it a fault is ours to
say. What may have run on an engine already is tried again only inside the retry budget; what surely did not run
is tried again for free. Nothing here knows clusters, sockets or time.
"""

import enum

import msgspec

from gir.model.outcome import AttemptResult, Phase


class Next(enum.Enum):
    """What to do after an attempt has ended without serving the client."""

    FREE = "free"
    """Another cluster, at no charge: the request surely did not run."""
    BUDGET = "budget"
    """Another cluster, if the retry budget has room: inference may have run."""
    ONCE = "once"
    """One other cluster for the whole request: the fleet may simply be full."""
    PASS = "pass"  # noqa: S105 - a verdict, not a password
    """Give the client the upstream's own answer."""
    STOP = "stop"
    """Nothing more can be done for this request."""


_TABLE: dict[tuple[AttemptResult, Phase], Next] = {
    (AttemptResult.LOCAL_FAULT, Phase.QUEUED): Next.FREE,
    (AttemptResult.LOCAL_FAULT, Phase.CONNECTING): Next.FREE,
    (AttemptResult.LOCAL_FAULT, Phase.DISPATCHED): Next.BUDGET,
    (AttemptResult.LOCAL_FAULT, Phase.HEAD): Next.BUDGET,
    (AttemptResult.UPSTREAM_FAULT, Phase.DISPATCHED): Next.BUDGET,
    (AttemptResult.UPSTREAM_FAULT, Phase.HEAD): Next.BUDGET,
    (AttemptResult.BACKPRESSURE, Phase.HEAD): Next.ONCE,
    (AttemptResult.CLIENT_ERROR, Phase.HEAD): Next.PASS,
}


def after(result: AttemptResult, phase: Phase) -> Next:
    """Look the verdict up; whatever the table does not name stops the request."""
    return _TABLE.get((result, phase), Next.STOP)


class Classified(msgspec.Struct, frozen=True):
    """An upstream status as health and retries judge it."""

    result: AttemptResult
    may_be_elsewhere: bool = False
    """The answer speaks for one cluster only (its agent no longer has the model, or refuses our credential)."""


def classify(status: int, *, from_agent: bool) -> Classified:
    """Class of an HTTP status from a cluster.

    `from_agent`: the agent made the answer up itself, before any pod saw the request. An engine's 4xx is the caller's
    fault everywhere; an agent's 401 or 404 only says that this cluster and this router disagree.
    """
    if status < 400:
        # Redirects are never followed: an engine that answers one is misconfigured.
        return Classified(AttemptResult.OK if 200 <= status < 300 else AttemptResult.UPSTREAM_FAULT)
    if status in (429, 503):
        return Classified(AttemptResult.BACKPRESSURE)
    if status < 500:
        return Classified(AttemptResult.CLIENT_ERROR, may_be_elsewhere=from_agent and status in (401, 403, 404))
    return Classified(AttemptResult.CLIENT_ERROR if status == 501 else AttemptResult.UPSTREAM_FAULT)
