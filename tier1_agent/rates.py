"""Service rates of a pod, learned online: seconds per prompt token, per request and per output token.

Declared hardware says little about what a pod delivers beside its other work, so nothing is declared: every first token
and every finished stream is a measurement. Old measurements fade, so a pod that slows down is noticed within a few
dozen requests; and measurements are noisy, so `shrink` believes a difference between pods only as far as the noise
allows. Without that a pod with one unlucky first request gets no second one to prove itself by.
"""

import itertools
import math
from collections.abc import Sequence

_FADE = 0.95
"""Weight an old measurement keeps with each new one of its length class: about 20 count."""
_FORGET = 0.999
"""Weight a length class keeps with each measurement of another: what 3,000 tokens cost is still known after hundreds of
short prompts, and gone after thousands."""
HALF_LIFE_S = 120.0
"""Of measurements while no new ones come: a pod that was slow long ago may be given another chance."""
TOKENS_TELLING = 512.0
"""Shorter prompts, alone, say little about the cost of a token: most of their time is the engine's fixed step."""
_OUTLIER = 4.0
"""A measurement counts at most as this many times what was expected: one stall must not rewrite what is known."""
_OUTLIER_FLOOR_S = 0.5
_NOISE_GUESS = 0.25
"""Relative variance of one measurement, before there are any to tell."""
_NOISE_MAX = 4.0
_GAP = 2.5
"""Standard deviations; by chance alone one gap in eighty is as wide."""


class _Class:
    """Fading means of prompts of like length."""

    __slots__ = ("seconds", "tokens", "weight")

    def __init__(self) -> None:
        self.weight = self.tokens = self.seconds = 0.0

    def observe(self, tokens: float, seconds: float) -> None:
        self.weight = self.weight * _FADE + 1.0
        share = 1.0 / self.weight
        self.tokens += (tokens - self.tokens) * share
        self.seconds += (seconds - self.seconds) * share


class Line:
    """`seconds = fixed + per_token x tokens`, both never negative, fitted to fading means of length classes.

    Classes (powers of two) keep the fit honest where traffic is lopsided: when reuse leaves only short remainders for
    minutes, the slope must still be that of the long prompts seen before, not the noise among the short ones. Until
    prompts of different lengths have come, all time is put down to the tokens, if there are enough of them to tell.
    """

    __slots__ = ("_classes", "_seen_at_s", "count", "fitted", "fixed_s", "noise", "per_token_s")

    def __init__(self) -> None:
        self.count = 0
        self.fitted = False
        """Whether the split into fixed and per token was measured, not guessed."""
        self.noise = _NOISE_GUESS
        """Relative variance of single measurements around the line."""
        self._classes: dict[int, _Class] = {}
        self._seen_at_s = -math.inf
        self.fixed_s = 0.0
        self.per_token_s = 0.0

    def __repr__(self) -> str:
        return f"<Line {self.fixed_s * 1e3:.1f} ms + {self.per_token_s * 1e6:.1f} us/token, {self.count} seen>"

    def expect_s(self, tokens: float) -> float:
        """Seconds that `tokens` take by what is known."""
        return self.fixed_s + self.per_token_s * tokens

    def weight(self, now_s: float) -> float:
        """Measurements this still rests on."""
        return sum(one.weight for one in self._classes.values()) * self._kept(now_s)

    def observe(self, tokens: float, seconds: float, now_s: float) -> None:
        """Add one measurement."""
        if self.count:
            expected_s = self.expect_s(tokens)
            off = (seconds - expected_s) / max(expected_s, 1e-3)
            self.noise += 0.1 * (min(off * off, _NOISE_MAX) - self.noise)
        if self.count >= 4:
            seconds = min(seconds, _OUTLIER * self.expect_s(tokens) + _OUTLIER_FLOOR_S)
        self.count += 1
        keep = _FORGET * self._kept(now_s)
        for one in self._classes.values():
            one.weight *= keep
        self._seen_at_s = now_s
        self._classes.setdefault(int(tokens).bit_length(), _Class()).observe(tokens, seconds)
        self._solve()

    def _kept(self, now_s: float) -> float:
        return math.pow(0.5, (now_s - self._seen_at_s) / HALF_LIFE_S) if self.count > 1 else 1.0

    def _solve(self) -> None:
        """Weighted least squares over the classes; a guess through their mean when they are too alike or contradict."""
        weight = mean_t = mean_y = 0.0
        for one in self._classes.values():
            weight += one.weight
            mean_t += one.weight * one.tokens
            mean_y += one.weight * one.seconds
        mean_t /= weight
        mean_y /= weight
        variance = covariance = 0.0
        for one in self._classes.values():
            off = one.tokens - mean_t
            variance += one.weight * off * off
            covariance += one.weight * off * (one.seconds - mean_y)
        slope = covariance / variance if variance > 0.04 * weight * mean_t * mean_t else -1.0
        fixed = mean_y - slope * mean_t
        self.fitted = slope > 0.0 and fixed >= 0.0
        if not self.fitted:
            slope = mean_y / max(mean_t, TOKENS_TELLING)
            fixed = max(0.0, mean_y - slope * mean_t)
        self.per_token_s, self.fixed_s = slope, fixed


def shrink(values: Sequence[float], variances: Sequence[float]) -> list[float]:
    """Pull noisy estimates of several pods towards the mean of their kind, each as far as its own noise demands.

    A gap between neighbours that noise does not explain separates two kinds (of GPU, or of trouble).
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    kinds: list[list[int]] = [[order[0]]]
    for left, right in itertools.pairwise(order):
        if values[right] - values[left] > _GAP * math.sqrt(variances[left] + variances[right]):
            kinds.append([])
        kinds[-1].append(right)
    found = list(values)
    for kind in kinds:
        for index, value in zip(kind, _shrink([values[i] for i in kind], [variances[i] for i in kind]), strict=True):
            found[index] = value
    return found


def _shrink(values: Sequence[float], variances: Sequence[float]) -> list[float]:
    """Random-effects model (DerSimonian and Laird, 1986): `values` differ by what the pods really differ (variance t2,
    estimated here) plus the `variances` of measuring. Each is drawn towards the mean by t2 / (t2 + variance): all the
    way when the spread is no more than noise, hardly at all when it is far beyond.
    """
    weights = [1.0 / variance for variance in variances]
    total = sum(weights)
    mean = sum(w * x for w, x in zip(weights, values, strict=True)) / total
    spread = sum(w * (x - mean) ** 2 for w, x in zip(weights, values, strict=True)) - (len(values) - 1)
    scale = total - sum(w * w for w in weights) / total
    between = max(0.0, spread / scale) if scale > 0.0 else 0.0
    weights = [1.0 / (between + variance) for variance in variances]
    mean = sum(w * x for w, x in zip(weights, values, strict=True)) / sum(weights)
    return [mean + (x - mean) * between / (between + variance) for x, variance in zip(values, variances, strict=True)]


class Mean:
    """Fading mean; `value` is None until something was observed."""

    __slots__ = ("_keep", "value")

    def __init__(self, keep: float = 0.95) -> None:
        self._keep = keep
        self.value: float | None = None

    def observe(self, value: float) -> None:
        """Add one measurement."""
        self.value = value if self.value is None else self._keep * self.value + (1.0 - self._keep) * value
