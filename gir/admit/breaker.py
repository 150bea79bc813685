"""When to talk to the store at all. Pure.

One failure opens it: whoever waits meanwhile has already paid the store's deadline, and judging alone for a second is
nearly as good. While it is open only the probe goes out, so a frozen store costs no request anything.
"""

PROBE_S = 0.5
"""Between two probes of a store that is away, before jitter."""
_NOT_YET = "not connected yet"


class StoreBreaker:
    """Up or down, since when, and when to probe. `outages` numbers the times it went down."""

    __slots__ = ("outages", "probe_at_s", "reason", "since_s", "up")

    def __init__(self, now_s: float, *, up: bool) -> None:
        self.up = up
        self.since_s = now_s
        self.probe_at_s = now_s
        self.outages = 0 if up else 1
        self.reason = "" if up else _NOT_YET

    def __repr__(self) -> str:
        return f"<StoreBreaker {'up' if self.up else 'down: ' + self.reason}>"

    def failed(self, reason: str, now_s: float, draw: float) -> bool:
        """The store failed; `draw` in [0, 1) spreads the probes of many replicas. True when that is news."""
        news = self.up or self.reason == _NOT_YET
        if self.up:
            self.up = False
            self.since_s = now_s
            self.outages += 1
        self.reason = reason
        self.probe_at_s = now_s + PROBE_S * (0.75 + 0.5 * draw)
        return news

    def succeeded(self, now_s: float) -> bool:
        """The store answered. True when it had been down."""
        changed = not self.up
        self.up = True
        self.reason = ""
        if changed:
            self.since_s = now_s
        return changed
