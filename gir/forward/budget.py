"""Retry budget: how many second tries may be under way at once.

A fleet in trouble must not be given more work than it asked for, so retries are bounded by a share of the requests in
flight (Google SRE and Envoy use 10 to 20 %), with a small floor so that a quiet router can still fail over.
"""


class RetryBudget:
    """Counts requests and retries in flight. Every `take` that returns True is paired with one `give_back`."""

    __slots__ = ("_minimum", "_share", "active", "retrying")

    def __init__(self, *, share: float, minimum: int) -> None:
        self._share = share
        self._minimum = minimum
        self.active = 0
        """Requests in flight, first tries included; the pipeline keeps it."""
        self.retrying = 0

    def __repr__(self) -> str:
        return f"<RetryBudget {self.retrying}/{self.limit()} of {self.active} active>"

    def configure(self, *, share: float, minimum: int) -> None:
        """Apply a new policy; what is under way is not called back."""
        self._share = share
        self._minimum = minimum

    def limit(self) -> int:
        """Retries that may be in flight now: max(minimum, share of active)."""
        return max(self._minimum, int(self.active * self._share))

    def take(self) -> bool:
        """Claim one retry; False when the budget is spent."""
        if self.retrying >= self.limit():
            return False
        self.retrying += 1
        return True

    def give_back(self, count: int = 1) -> None:
        """Return `count` retries whose request has ended."""
        assert self.retrying >= count, "more retries given back than taken"
        self.retrying -= count
