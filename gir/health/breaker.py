"""Passive breaker: what the attempts themselves say about a cluster.

Two signals, because each is blind to what the other sees. A run of failures catches a total outage within a few
requests and needs no minimum of samples. A windowed rate catches a partial one, where successes keep breaking the
run, and needs a minimum, or one failure at night would be a rate of 100 %.

Two origins, each with its own run and rate. A LOCAL_FAULT (refused, reset, timed out) accuses the path or the process
and three are enough. An UPSTREAM_FAULT (5xx, an error event, truncation) came over a working path from something that
answers, and one bad request can cause several, so it takes five.

Back-pressure, client errors and cancelled attempts are no evidence: they never reach this file.

    CLOSED --run or rate--> OPEN --ejection over--> HALF_OPEN --one success--> CLOSED
                             ^                          |
                             +------- one failure ------+

HALF_OPEN admits one request: `claim` gives it away. A claim that never reports frees itself after `ejection_s`, so a
lost request or a very long stream does not keep a cluster out. A probation that nobody claims for as long is waived
(`unclaimed`): where little traffic goes, the first steps of the ramp are test enough. The n-th ejection in a row lasts
n times `ejection_s`, up to a cap, +-20 % so that replicas do not come back in step.

Only attempts that started after the ejection are evidence about what came after it; the stragglers that were in
flight when it began have had their say.
"""

import enum

from gir.model.outcome import AttemptResult
from gir.model.policy import HealthPolicy

BUCKETS = 10
"""Parts of the rate's window; the oldest is forgotten as a new one begins."""
JITTER = 0.2


class Gate(enum.Enum):
    """Where the breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Breaker of one cluster. Times are monotonic seconds."""

    __slots__ = (
        "_bucket",
        "_bucket_s",
        "_claimed_s",
        "_closed_s",
        "_local",
        "_ok",
        "_upstream",
        "detail",
        "ejections",
        "gate",
        "opened_s",
        "origin",
        "policy",
        "reopen_s",
        "run_local",
        "run_upstream",
    )

    def __init__(self, policy: HealthPolicy) -> None:
        self.policy = policy
        self.gate = Gate.CLOSED
        self.opened_s = float("-inf")
        self.reopen_s = 0.0
        """When the current ejection ends."""
        self.ejections = 0
        """Ejections in a row, forgiven after `flap_window_s` of good conduct."""
        self.origin: AttemptResult | None = None
        self.detail = ""
        """Why it opened, for people."""
        self.run_local = 0
        self.run_upstream = 0
        self._claimed_s: float | None = None
        self._closed_s = float("-inf")
        self._forget()

    def success(self, started_s: float, now_s: float) -> bool:
        """Count one good attempt. True when it closed the breaker. Hot: runs once for each request."""
        self.run_local = self.run_upstream = 0
        bucket = int(now_s / self._bucket_s)
        if bucket != self._bucket:
            self._turn(bucket)
        self._ok[bucket % BUCKETS] += 1
        if self.gate is Gate.CLOSED or started_s < self.opened_s:
            return False
        self._close(now_s)
        return True

    def failure(self, origin: AttemptResult, started_s: float, now_s: float, *, draw: float) -> bool:
        """Count one failed attempt of `origin` (LOCAL_FAULT or UPSTREAM_FAULT). True when it opened the breaker.

        `draw` in [0, 1) sets the jitter of the ejection.
        """
        if started_s < self.opened_s or self.gate is Gate.OPEN:
            return False
        bucket = int(now_s / self._bucket_s)
        if bucket != self._bucket:
            self._turn(bucket)
        if origin is AttemptResult.LOCAL_FAULT:
            self.run_local += 1
            self._local[bucket % BUCKETS] += 1
            run, run_max, failed = self.run_local, self.policy.breaker_consecutive, sum(self._local)
        else:
            self.answered()
            self.run_upstream += 1
            self._upstream[bucket % BUCKETS] += 1
            run, run_max, failed = self.run_upstream, self.policy.breaker_upstream_consecutive, sum(self._upstream)
        detail = self._why(run, run_max, failed)
        if detail:
            self._open(origin, detail, now_s, draw)
        return bool(detail)

    def inconclusive(self, started_s: float) -> None:
        """An attempt ended without evidence: if it was the probation, the next request may try."""
        if self._claimed_s is not None and started_s >= self.opened_s:
            self._claimed_s = None

    def tick(self, now_s: float) -> None:
        """End the ejection when its time has come; forgive old ones."""
        if self.gate is Gate.OPEN and now_s >= self.reopen_s:
            self.gate = Gate.HALF_OPEN
            self._claimed_s = None
        elif self.ejections and self.gate is Gate.CLOSED and now_s >= self.forgiven_s:
            self.ejections = 0

    def unclaimed(self, now_s: float) -> bool:
        """Half open for `ejection_s`, and no request wanted to go there."""
        waited_s = now_s - self.reopen_s
        return self.gate is Gate.HALF_OPEN and self._claimed_s is None and waited_s >= self.policy.ejection_s

    def waive(self, now_s: float) -> None:
        """Close without a probation."""
        self._close(now_s)

    def claim(self, now_s: float) -> bool:
        """Take the one request of the probation. False when there is none to take."""
        self.tick(now_s)
        if self.gate is not Gate.HALF_OPEN:
            return False
        if self._claimed_s is not None and now_s - self._claimed_s < self.policy.ejection_s:
            return False
        self._claimed_s = now_s
        return True

    @property
    def calm(self) -> bool:
        """Closed, and nothing left to forgive: time can change nothing."""
        return self.gate is Gate.CLOSED and not self.ejections

    def unblemished(self, now_s: float) -> bool:
        """Nothing bad is remembered: calm, and no failure within the window."""
        bucket = int(now_s / self._bucket_s)
        if bucket != self._bucket:
            self._turn(bucket)
        return self.calm and not any(self._local) and not any(self._upstream)

    def answered(self) -> None:
        """An answer came over the path, of whatever kind: a run of path failures is over."""
        self.run_local = 0

    @property
    def forgiven_s(self) -> float:
        """When earlier ejections are forgiven, if it stays closed."""
        return self._closed_s + self.policy.flap_window_s

    @property
    def claimed(self) -> bool:
        """A probation request is on its way."""
        return self._claimed_s is not None

    def _why(self, run: int, run_max: int, failed: int) -> str:
        """Reason to open, or ''."""
        if self.gate is Gate.HALF_OPEN:
            return "probation failed"
        if run >= run_max:
            return f"{run} in a row"
        good = sum(self._ok)
        samples = good + failed
        if samples >= self.policy.breaker_samples_min and good / samples < self.policy.breaker_success_min:
            return f"{failed} of {samples} in {self.policy.breaker_window_s:g}s"
        return ""

    def _open(self, origin: AttemptResult, detail: str, now_s: float, draw: float) -> None:
        self.ejections += 1
        self.gate = Gate.OPEN
        self.opened_s = now_s
        self.origin = origin
        self.detail = detail
        ejection_s = min(self.policy.ejection_max_s, self.policy.ejection_s * self.ejections)
        self.reopen_s = now_s + ejection_s * (1.0 - JITTER + 2.0 * JITTER * draw)
        self._claimed_s = None
        self._forget()

    def _close(self, now_s: float) -> None:
        self.gate = Gate.CLOSED
        self._closed_s = now_s
        self.origin = None
        self.detail = ""
        self._claimed_s = None

    def _forget(self) -> None:
        """Start both runs and both rates anew."""
        self.run_local = self.run_upstream = 0
        self._bucket = 0
        self._bucket_s = self.policy.breaker_window_s / BUCKETS
        self._ok = [0] * BUCKETS
        self._local = [0] * BUCKETS
        self._upstream = [0] * BUCKETS

    def _turn(self, bucket: int) -> None:
        """Empty the buckets whose time has passed since the last count."""
        for passed in range(max(self._bucket + 1, bucket - BUCKETS + 1), bucket + 1):
            index = passed % BUCKETS
            self._ok[index] = self._local[index] = self._upstream[index] = 0
        self._bucket = bucket
