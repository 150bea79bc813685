"""What changed, for logs, metrics and the live map: one record for each transition, in order."""

import enum

import msgspec

from gir.model.ids import ClusterId


class Cause(enum.Enum):
    """Which detector, or whose hand, stands behind a state."""

    NONE = "none"
    GOODBYE = "goodbye"
    BEATS = "beats"
    PROBE = "probe"
    BREAKER = "breaker"
    RECOVERY = "recovery"
    OPERATOR = "operator"
    OBSERVER = "observer"
    """This router itself: it was paused, or lost everybody at once."""


class EventKind(enum.Enum):
    """What sort of change it was."""

    STATUS = "status"
    EPOCH = "epoch"
    """A new agent process speaks for the cluster."""
    INTENT = "intent"
    WEIGHT = "weight"
    """An operator pinned the weight."""
    POOLS = "pools"
    """Which pools are left alone for their failures has changed."""
    GAP = "gap"
    """This router was paused; the gap was granted to everybody."""
    FAIL_OPEN = "fail_open"


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One transition. `at_s` is monotonic; `cluster` is None for what concerns the whole router."""

    at_s: float
    kind: EventKind
    cluster: ClusterId | None = None
    before: str = ""
    after: str = ""
    cause: Cause = Cause.NONE
    reason: str = ""
    redispatch: bool = False
    """Requests waiting there for their first token should be tried elsewhere now: what was lost will not answer."""
