"""Back-pressure: a cluster that answers 429 or 503 is full, not broken.

It gets less for a while (its weight is halved, then grows back) and nothing at all until the time its `Retry-After`
names. It is never ejected for it. Halving happens at most once a second: the many refusals of one burst are one piece
of news. One that refuses request after request and names no time is left alone for a second at a time, or every request
would make its round of the fleet in vain.
"""

HALVING_INTERVAL_S = 1.0
FACTOR_MIN = 0.1
REGROWTH_PER_S = 0.05
RETRY_AFTER_MAX_S = 300.0
"""Longest `Retry-After` that is taken at its word."""
RUN_MAX = 3
PAUSE_S = 1.0
"""So long nothing is sent after RUN_MAX refusals in a row without a `Retry-After`."""


class Pressure:
    """Back-pressure of one cluster. Times are monotonic seconds."""

    __slots__ = ("_factor", "_refused_s", "_run", "_since_s", "until_s")

    def __init__(self) -> None:
        self._factor = 1.0
        self._since_s = float("-inf")
        self._run = 0
        self._refused_s = float("-inf")
        self.until_s = 0.0
        """No new work before this time."""

    def push(self, retry_after_s: float | None, now_s: float) -> None:
        """The cluster asked for less, and for none at all for `retry_after_s` seconds if given."""
        if now_s - self._since_s >= HALVING_INTERVAL_S:
            self._factor = max(FACTOR_MIN, self.factor(now_s) / 2.0)
            self._since_s = now_s
        self._run += 1
        self._refused_s = now_s
        if retry_after_s is not None and retry_after_s > 0:
            self.until_s = max(self.until_s, now_s + min(retry_after_s, RETRY_AFTER_MAX_S))
        elif self._run >= RUN_MAX:
            self.until_s = max(self.until_s, now_s + PAUSE_S)

    def accepted(self, started_s: float) -> None:
        """An attempt begun at `started_s` was served: if that was after the last refusal, the run of them is over."""
        if started_s >= self._refused_s:
            self._run = 0

    @property
    def calm(self) -> bool:
        """The cluster has its whole weight, and has had it long enough for that to be known."""
        return self._factor >= 1.0

    def factor(self, now_s: float) -> float:
        """Share of its weight the cluster may have now, 0.1 to 1."""
        if self._factor >= 1.0:
            return 1.0
        grown = self._factor + REGROWTH_PER_S * max(0.0, now_s - max(self._since_s, self.until_s))
        if grown >= 1.0:
            self._factor = 1.0
        return min(1.0, grown)
