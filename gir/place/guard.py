"""Whether a canary does worse than the control, from a few dozen requests of each.

Two questions, each answered only when chance is an unlikely explanation, because the guard looks after every request
and a point estimate from twenty samples would sooner or later abort every good canary:

- errors: the Wilson lower bound (99 %) of the canary's error rate lies above the control's rate plus the allowance;
- slowness: its p95 time to first token is beyond the allowed multiple of the control's, and a Mann-Whitney test finds
  its times larger at three standard deviations.

Half of all requests failing, or times three times as long, show within twenty to fifty requests.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque

import msgspec

from gir.model.policy import CanaryGuard

SAMPLES_MAX = 200
"""Newest requests kept of each arm."""
JUDGED_MIN = 50
"""Requests looked at even when they are older than the window: a slow trickle is judged too."""
_WILSON_Z = 2.33
_RANK_Z = 3.0
_CONTROL_MIN = 5
"""Control requests below which its error rate counts as zero: nothing to compare with is no licence to fail."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """How one request ended. `ttft_s` is None when no first token came."""

    at_s: float
    ok: bool
    ttft_s: float | None


class Arm:
    """The newest results of one target of a rule."""

    __slots__ = ("errors", "requests", "samples")

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.requests = 0
        """Results since the trial began."""
        self.errors = 0

    def add(self, sample: Sample) -> None:
        """Take one result in."""
        self.samples.append(sample)
        self.requests += 1
        self.errors += not sample.ok

    def judged(self, now_s: float, window_s: float) -> list[Sample]:
        """The results to judge by: those of the window, and older ones while there are fewer than fifty."""
        recent = [sample for sample in self.samples if now_s - sample.at_s <= window_s]
        return recent if len(recent) >= JUDGED_MIN else list(self.samples)[-JUDGED_MIN:]

    def __repr__(self) -> str:
        return f"<Arm {self.requests} requests, {self.errors} errors>"


def verdict(canary: list[Sample], control: list[Sample], guard: CanaryGuard, overdue_s: tuple[float, ...] = ()) -> str:
    """Why the canary must go, in a sentence; '' while it may stay.

    `overdue_s` are the ages of canary requests still waiting for a first token: each counts as a time to first token
    of at least that much once it is beyond what the guard allows, so that a canary that hangs is found out.
    """
    failed = sum(not sample.ok for sample in canary)
    control_failed = sum(not sample.ok for sample in control)
    control_rate = control_failed / len(control) if len(control) >= _CONTROL_MIN else 0.0
    allowed = control_rate + guard.error_rate_over_control_max
    if len(canary) >= guard.samples_min and failed and wilson_lower(failed, len(canary)) > allowed:
        return (
            f"error rate {failed / len(canary):.0%} of {len(canary)} requests against {control_rate:.0%} "
            f"of {len(control)} in the control (allowed: {guard.error_rate_over_control_max:.0%} more)"
        )
    return _too_slow(canary, control, guard, overdue_s)


def _too_slow(canary: list[Sample], control: list[Sample], guard: CanaryGuard, overdue_s: tuple[float, ...]) -> str:
    base = sorted(sample.ttft_s for sample in control if sample.ttft_s is not None)
    if len(base) < guard.samples_min:
        return ""
    limit_s = guard.ttft_p95_ratio_max * quantile(base, 0.95)
    times = [sample.ttft_s for sample in canary if sample.ttft_s is not None]
    times += [age_s for age_s in overdue_s if age_s > limit_s]
    if len(times) < guard.samples_min:
        return ""
    p95_s = quantile(sorted(times), 0.95)
    if p95_s <= limit_s or rank_z(times, base) < _RANK_Z:
        return ""
    return (
        f"p95 time to first token {p95_s:.3f} s of {len(times)} requests against {quantile(base, 0.95):.3f} s of "
        f"{len(base)} in the control (allowed: {guard.ttft_p95_ratio_max:g} times)"
    )


def wilson_lower(hits: int, count: int, z: float = _WILSON_Z) -> float:
    """Lower bound of the true share behind `hits` of `count` (Wilson 1927), 0 to 1."""
    share, squared = hits / count, z * z
    centre = share + squared / (2 * count)
    spread = z * math.sqrt(share * (1.0 - share) / count + squared / (4 * count * count))
    return (centre - spread) / (1.0 + squared / count)


def rank_z(times: list[float], base: list[float]) -> float:
    """Standard score of the Mann-Whitney statistic: how surely `times` are larger than the sorted `base`."""
    wins = sum(bisect_left(base, value) + bisect_right(base, value) for value in times) / 2.0
    pairs = len(times) * len(base)
    return (wins - pairs / 2.0) / math.sqrt(pairs * (len(times) + len(base) + 1) / 12.0)


def quantile(ordered: list[float], share: float) -> float:
    """Nearest-rank quantile of a sorted, non-empty list."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
