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


class _Refusals:
    """What one model of the cluster has refused lately."""

    __slots__ = ("refused_s", "run", "until_s")

    def __init__(self) -> None:
        self.run = 0
        self.refused_s = float("-inf")
        self.until_s = 0.0


class Pressure:
    """Back-pressure of one cluster. Times are monotonic seconds.

    The weight is the cluster's; to be left alone is asked for by each model (pool) by itself, for one may be full and
    the next idle. The model '' stands for all of them.
    """

    __slots__ = ("_factor", "_models", "_since_s")

    def __init__(self) -> None:
        self._factor = 1.0
        self._since_s = float("-inf")
        self._models: dict[str, _Refusals] = {}

    def push(self, retry_after_s: float | None, now_s: float, model: str = "") -> None:
        """`model` asked for less, and for none at all for `retry_after_s` seconds if given."""
        if now_s - self._since_s >= HALVING_INTERVAL_S:
            self._factor = max(FACTOR_MIN, self.factor(now_s) / 2.0)
            self._since_s = now_s
        asked = self._models.setdefault(model, _Refusals())
        asked.run += 1
        asked.refused_s = now_s
        if retry_after_s is not None and retry_after_s > 0:
            asked.until_s = max(asked.until_s, now_s + min(retry_after_s, RETRY_AFTER_MAX_S))
        elif asked.run >= RUN_MAX:
            asked.until_s = max(asked.until_s, now_s + PAUSE_S)

    def accepted(self, started_s: float, model: str = "") -> None:
        """An attempt begun at `started_s` was served: if that was after the last refusal, the run of them is over."""
        asked = self._models.get(model)
        if asked is not None and started_s >= asked.refused_s:
            asked.run = 0

    @property
    def until_s(self) -> float:
        """No new work at all before this time."""
        asked = self._models.get("")
        return 0.0 if asked is None else asked.until_s

    @property
    def latest_s(self) -> float:
        """When the last model may be asked again."""
        return max((asked.until_s for asked in self._models.values()), default=0.0)

    def refusing(self, now_s: float) -> tuple[tuple[str, float], ...]:
        """Models that want no work now, each with the time until which."""
        return tuple((model, asked.until_s) for model, asked in self._models.items() if asked.until_s > now_s and model)

    @property
    def calm(self) -> bool:
        """The cluster has its whole weight, and has had it long enough for that to be known."""
        return self._factor >= 1.0

    def factor(self, now_s: float) -> float:
        """Share of its weight the cluster may have now, 0.1 to 1."""
        if self._factor >= 1.0:
            return 1.0
        grown = self._factor + REGROWTH_PER_S * max(0.0, now_s - max(self._since_s, self.latest_s))
        if grown >= 1.0:
            self._factor = 1.0
        return min(1.0, grown)
