"""Whether a canary does worse than the control, from a few dozen requests of each.

Two questions, each answered only when chance is an unlikely explanation, because the guard looks after every request
and a point estimate from twenty samples would sooner or later abort every good canary:

- errors: the Wilson lower bound (99 %) of the canary's error rate lies above the control's rate plus the allowance;
- slowness: its time to first token, at p95 or typically (geometric mean), is beyond the allowed multiple of the
  control's, and Welch's test on the logarithms finds its times longer. Logarithms, because times to first token spread
  over decades with the length of prompts. The p95 of twenty to fifty such times is mostly luck: by itself it let one in
  fifty of the canaries three times as slow past their fiftieth request, with the typical time one in a thousand.

The test wants three to four standard errors of a new canary, two and a half just before its fiftieth result, and four
and a half of one that has served longer: the guard looks again and again, and what is rare in one look is not in a
thousand. Of canaries no worse than their control about one in eighty is lost to chance (recorded times, thousands of
requests each). Half of all requests failing, or times three times as long, show within twenty to fifty requests; a
smaller trespass takes longer to be sure of.
"""

import math
from collections import deque
from collections.abc import Iterable
from statistics import fmean, variance
from typing import TypeVar

import msgspec

from gir.model.policy import CanaryGuard

SAMPLES_MAX = 200
"""Newest requests kept of each arm."""
JUDGED_MIN = 50
"""Requests looked at even when they are older than the window: a slow trickle is judged too."""
_WILSON_Z = 2.33
_SLOW_Z_MIN, _SLOW_Z_MAX = 3.2, 4.5
"""Standard errors between the mean logarithms that condemn a canary, with few requests and with many."""
_SLOW_Z_LAST = 2.5
"""As `_SLOW_Z_MIN`, just before it stops being new: who is bad had better go now."""
_SLOW_Z_GROWTH = 0.6
"""In between, this times the root of the harmonic number of requests: a real slowdown outgrows it, chance does not."""
_NEW, _LAST = 50, 5
"""Results up to which a canary counts as new, and how many of them are the last."""
_CONTROL_MIN = 5
"""Control requests below which its error rate counts as zero: nothing to compare with is no licence to fail."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """How one request ended. `ttft_s` is None when no first token came."""

    at_s: float
    ok: bool
    ttft_s: float | None


class Left(msgspec.Struct, frozen=True, gc=False):
    """A request whose end says nothing about the model, but whose wait does: its client had enough, or had to go."""

    at_s: float
    waited_s: float
    answered: bool
    """Its first token came after `waited_s`; else nothing had come by then."""


_Kept = TypeVar("_Kept", Sample, Left)


class Arm:
    """The newest results of one target of a rule."""

    __slots__ = ("answered", "begun_s", "errors", "left", "requests", "samples")

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.begun_s: list[float] = []
        """Times to first token of answers that go on: long streams would be judged only when they end."""
        self.left: deque[Left] = deque(maxlen=SAMPLES_MAX)
        self.answered = 0
        """How many of all that left had been answered."""
        self.requests = 0
        """Results since the trial began."""
        self.errors = 0

    def add(self, sample: Sample) -> None:
        """Take one result in."""
        self.samples.append(sample)
        self.requests += 1
        self.errors += not sample.ok

    def leave(self, left: Left) -> None:
        """Take in the wait of a request that has no result."""
        self.left.append(left)
        self.answered += left.answered

    def judged(self, now_s: float, window_s: float) -> list[Sample]:
        """The results to judge by: those of the window, and older ones while there are fewer than fifty."""
        return _newest(self.samples, now_s, window_s)

    def waits_s(self, now_s: float, window_s: float, *, answered: bool) -> list[float]:
        """Waits of those that left, as new as the results that are judged."""
        return [each.waited_s for each in _newest(self.left, now_s, window_s) if each.answered is answered]

    def recent(self, now_s: float, window_s: float) -> int:
        """How many ends the guard looks at, with a result and without."""
        return len(_newest(self.samples, now_s, window_s)) + len(_newest(self.left, now_s, window_s))

    def __repr__(self) -> str:
        return f"<Arm {self.requests} requests, {self.errors} errors>"


def _newest(kept: deque[_Kept], now_s: float, window_s: float) -> list[_Kept]:
    recent = [each for each in kept if now_s - each.at_s <= window_s]
    return recent if len(recent) >= JUDGED_MIN else list(kept)[-JUDGED_MIN:]


def verdict(canary: Arm, control: Arm, guard: CanaryGuard, now_s: float, overdue_s: tuple[float, ...] = ()) -> str:
    """Why the canary must go, in a sentence; '' while it may stay.

    `overdue_s` are the ages of canary requests still waiting for a first token: each counts as a time to first token
    of at least that much once it is beyond what the guard allows, so that a canary that hangs is found out. So does the
    wait of one whose client has left, unless clients leave the control in the same way.
    """
    newest = canary.judged(now_s, guard.window_s)
    same_time = control.judged(now_s, guard.window_s)
    failed = sum(not sample.ok for sample in newest)
    control_failed = sum(not sample.ok for sample in same_time)
    control_rate = control_failed / len(same_time) if len(same_time) >= _CONTROL_MIN else 0.0
    allowed = control_rate + guard.error_rate_over_control_max
    if len(newest) >= guard.samples_min and failed and wilson_lower(failed, len(newest)) > allowed:
        return (
            f"error rate {failed / len(newest):.0%} of {len(newest)} requests against {control_rate:.0%} "
            f"of {len(same_time)} in the control (allowed: {guard.error_rate_over_control_max:.0%} more)"
        )
    base = _times(control.samples) + control.begun_s + [each.waited_s for each in control.left if each.answered]
    if len(base) < guard.samples_min:
        return ""
    times = _times(newest) + canary.begun_s + canary.waits_s(now_s, guard.window_s, answered=True)
    limit_s = guard.ttft_p95_ratio_max * quantile(sorted(base), 0.95)
    times += [age_s for age_s in overdue_s if age_s > limit_s]
    given_up_s = _given_up(canary, guard, now_s, limit_s)
    share = len(_given_up(control, guard, now_s, limit_s)) / max(1, control.recent(now_s, guard.window_s))
    if given_up_s and wilson_lower(len(given_up_s), canary.recent(now_s, guard.window_s)) > share:
        times += given_up_s  # and the control's clients do not give up like that
    return _too_slow(times, base, guard, limit_s, canary.requests + canary.answered + len(canary.begun_s))


def _given_up(arm: Arm, guard: CanaryGuard, now_s: float, limit_s: float) -> list[float]:
    """Waits of clients that left without a first token after longer than the guard allows."""
    return [wait_s for wait_s in arm.waits_s(now_s, guard.window_s, answered=False) if wait_s > limit_s]


def _times(samples: Iterable[Sample]) -> list[float]:
    return [sample.ttft_s for sample in samples if sample.ttft_s is not None]


def _too_slow(times: list[float], base: list[float], guard: CanaryGuard, limit_s: float, served: int) -> str:
    if len(times) < guard.samples_min:
        return ""
    p95_s, typical_s, base_typical_s = quantile(sorted(times), 0.95), _typical(times), _typical(base)
    if p95_s <= limit_s and typical_s <= guard.ttft_p95_ratio_max * base_typical_s:
        return ""
    if slower_z(times, base) < _slow_z(len(times), len(base), served):
        return ""
    return (
        f"p95 time to first token {p95_s:.3f} s (typical {typical_s:.3f} s) of {len(times)} requests against "
        f"{limit_s / guard.ttft_p95_ratio_max:.3f} s ({base_typical_s:.3f} s) of {len(base)} in the control "
        f"(allowed: {guard.ttft_p95_ratio_max:g} times)"
    )


def _slow_z(count: int, base_count: int, served: int) -> float:
    """Standard errors wanted of a canary that has served so many requests, with so many times to compare."""
    if served > _NEW:
        return _SLOW_Z_MAX
    if served > _NEW - _LAST - 1:
        return _SLOW_Z_LAST
    return min(_SLOW_Z_MAX, max(_SLOW_Z_MIN, _SLOW_Z_GROWTH * math.sqrt(count * base_count / (count + base_count))))


def wilson_lower(hits: int, count: int, z: float = _WILSON_Z) -> float:
    """Lower bound of the true share behind `hits` of `count` (Wilson 1927), 0 to 1."""
    share, squared = hits / count, z * z
    centre = share + squared / (2 * count)
    spread = z * math.sqrt(share * (1.0 - share) / count + squared / (4 * count * count))
    return (centre - spread) / (1.0 + squared / count)


def slower_z(times: list[float], base: list[float]) -> float:
    """Welch's statistic on logarithms: standard errors by which `times` are longer than `base`."""
    logs, base_logs = _logs(times), _logs(base)
    gap = fmean(logs) - fmean(base_logs)
    error = math.sqrt(variance(logs) / len(logs) + variance(base_logs) / len(base_logs) + 1e-12)
    return gap / error


def _typical(times: list[float]) -> float:
    return math.exp(fmean(_logs(times)))


def _logs(times: list[float]) -> list[float]:
    return [math.log(max(value, 1e-6)) for value in times]


def quantile(ordered: list[float], share: float) -> float:
    """Nearest-rank quantile of a sorted, non-empty list."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
