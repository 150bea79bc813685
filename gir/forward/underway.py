"""The calls that are under way to one cluster, so that health can end them early."""

from collections.abc import Callable

from gir.net.errors import FirstTokenTimeout
from gir.net.upstream import UpstreamCall


class ClusterLostError(FirstTokenTimeout):
    """Health has taken the cluster out of service while the call waited for its first token."""


class Underway:
    """Calls to one cluster that wait for their first token."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[UpstreamCall, Callable[[], bool]] = {}
        """Each with whether its request could go elsewhere now."""

    def give_up_waiting(self, reason: str) -> int:
        """Fail every waiting call whose request has somewhere else to go; for the others, waiting is the best chance.

        Returns how many.
        """
        moved = [call for call, may_move in self.waiting.items() if may_move()]
        for call in moved:
            call.give_up(ClusterLostError(call.phase, reason))
        return len(moved)
