"""The calls that are under way to one cluster, so that health can end them early."""

from collections.abc import Callable

from gir.net.errors import FirstTokenTimeout, IdleTimeout
from gir.net.upstream import UpstreamCall

LOOK_GAP_S = 3.0
"""Looks further apart than this were not made while the cluster was lost, or this process was stopped in between: what
it did not hear then is no silence."""


class ClusterLostError(FirstTokenTimeout):
    """Health has taken the cluster out of service while the call waited for its first token."""


class StreamLostError(IdleTimeout):
    """Nothing comes any more from a cluster whose data path health has found dead."""


class Underway:
    """Calls to one cluster: those that wait for their first token, and streams. Times are monotonic seconds."""

    __slots__ = ("_looked_s", "_silent", "streams", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[UpstreamCall, Callable[[], bool]] = {}
        """Each with whether its request could go elsewhere now."""
        self.streams: dict[UpstreamCall, float] = {}
        """Each with how long it may be silent once the cluster is unreachable, in seconds."""
        self._silent: dict[UpstreamCall, tuple[int, float]] = {}
        """Bytes of each stream, and since when it has had no more."""
        self._looked_s = float("-inf")

    def give_up_waiting(self, reason: str) -> int:
        """Fail every waiting call whose request has somewhere else to go; for the others, waiting is the best chance.

        Returns how many.
        """
        moved = [call for call, may_move in self.waiting.items() if may_move()]
        for call in moved:
            call.give_up(ClusterLostError(call.phase, reason))
        return len(moved)

    def end_silent(self, now_s: float) -> int:
        """End streams that have been silent for too long, counted over the calls of this; returns how many.

        To be called often while the cluster is unreachable, and not otherwise: a slow engine is nobody's fault. A
        stream that its client holds up is not silent.
        """
        before = self._silent if now_s - self._looked_s <= LOOK_GAP_S else {}
        self._looked_s = now_s
        self._silent, ended = {}, []
        for call, patience_s in self.streams.items():
            heard, since_s = before.get(call, (-1, now_s))
            if call.body_bytes != heard or call.held_up:
                heard, since_s = call.body_bytes, now_s
            self._silent[call] = heard, since_s
            if now_s - since_s >= patience_s:
                ended.append(call)
        for call in ended:
            call.give_up(StreamLostError(call.phase, "its cluster does not answer any more"))
        return len(ended)
