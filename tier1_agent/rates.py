"""Service rates of a pod, learned online: seconds per prompt token, per request and per output token.

Declared hardware says little about what a pod delivers beside its other work, so nothing is declared: every first token
and every finished stream is a measurement. Old measurements fade, so a pod that slows down is noticed within a few
dozen requests.
"""

_FADE = 0.95
"""Weight an old measurement keeps with each new one of its length class: about 20 count."""
_FORGET = 0.999
"""Weight a length class keeps with each measurement of another: what 3,000 tokens cost is still known after hundreds of
short prompts, and gone after thousands."""
TOKENS_TELLING = 512.0
"""Shorter prompts, alone, say little about the cost of a token: most of their time is the engine's fixed step."""
_OUTLIER = 4.0
"""A measurement counts at most as this many times what was expected: one stall must not rewrite what is known."""
_OUTLIER_FLOOR_S = 0.5


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

    __slots__ = ("_classes", "count", "fixed_s", "per_token_s")

    def __init__(self) -> None:
        self.count = 0
        self._classes: dict[int, _Class] = {}
        self.fixed_s = 0.0
        self.per_token_s = 0.0

    def __repr__(self) -> str:
        return f"<Line {self.fixed_s * 1e3:.1f} ms + {self.per_token_s * 1e6:.1f} us/token, {self.count} seen>"

    def expect_s(self, tokens: float) -> float:
        """Seconds that `tokens` take by what is known."""
        return self.fixed_s + self.per_token_s * tokens

    def observe(self, tokens: float, seconds: float) -> None:
        """Add one measurement."""
        if self.count >= 4:
            seconds = min(seconds, _OUTLIER * self.expect_s(tokens) + _OUTLIER_FLOOR_S)
        self.count += 1
        for one in self._classes.values():
            one.weight *= _FORGET
        self._classes.setdefault(int(tokens).bit_length(), _Class()).observe(tokens, seconds)
        self._solve()

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
        if slope <= 0.0 or fixed < 0.0:
            slope = mean_y / max(mean_t, TOKENS_TELLING)
            fixed = max(0.0, mean_y - slope * mean_t)
        self.per_token_s, self.fixed_s = slope, fixed


class Mean:
    """Fading mean; `value` is None until something was observed."""

    __slots__ = ("_keep", "value")

    def __init__(self, keep: float = 0.95) -> None:
        self._keep = keep
        self.value: float | None = None

    def observe(self, value: float) -> None:
        """Add one measurement."""
        self.value = value if self.value is None else self._keep * self.value + (1.0 - self._keep) * value
