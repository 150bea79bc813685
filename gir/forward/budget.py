"""Retry budget: how many second tries the fleet can afford.

A fleet in trouble must not be given more work than it asked for, so retries are bounded by a share of the requests
(Google SRE and Envoy use 10 to 20 %). Two allowances keep to it:

- in flight: a share of the requests in flight, with a small floor so that a quiet router can still fail over;
- savings: each request saves that share of a retry, up to as many as there are requests in flight. When a whole cluster
  dies, everything that ran there breaks in one moment; savings pay for all of it at once, and over time retries still
  stay within the share. Without them only the first few would be moved and the rest would fail beside idle clusters.

What breaks on a cluster that health has lost by then is moved without asking here, if a healthy one may serve it: the
first few faults cost, and with them the cluster is out.
"""


class RetryBudget:
    """Counts requests and retries in flight. Every `take` that returns True is paired with one `give_back`."""

    __slots__ = ("_minimum", "_saved", "_share", "active", "retrying")

    def __init__(self, *, share: float, minimum: int) -> None:
        self._share = share
        self._minimum = minimum
        self._saved = 0.0
        self.active = 0
        """Requests in flight, first tries included."""
        self.retrying = 0

    def __repr__(self) -> str:
        return f"<RetryBudget {self.retrying}/{self.limit()} of {self.active} active, {self._saved:.1f} saved>"

    def configure(self, *, share: float, minimum: int) -> None:
        """Apply a new policy; what is under way is not called back."""
        self._share = share
        self._minimum = minimum

    def enter(self) -> None:
        """A request has come."""
        self.active += 1
        saved = self._saved + self._share
        self._saved = saved if saved < self.active else float(self.active)

    def leave(self, retries: int) -> None:
        """A request has ended; give back the `retries` it had claimed."""
        self.active -= 1
        if retries:
            self.give_back(retries)

    def limit(self) -> int:
        """Retries that may be in flight without drawing on savings: max(minimum, share of active)."""
        return max(self._minimum, int(self.active * self._share))

    def take(self) -> bool:
        """Claim one retry; False when both allowances are spent."""
        if self._saved >= 1.0:
            self._saved -= 1.0
        elif self.retrying >= self.limit():
            return False
        self.retrying += 1
        return True

    def give_back(self, count: int = 1) -> None:
        """Return `count` retries whose request has ended."""
        assert self.retrying >= count, "more retries given back than taken"
        self.retrying -= count
