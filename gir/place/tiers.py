"""Which share of a model's traffic each cost tier takes now.

Traffic stays in the cheapest tier while its predicted headroom h (free share of slots after the Critical reserve,
own unseen dispatches and the recent trend) is at least `spill_at`. Below it the tier keeps h / spill_at of the traffic
and the rest goes one tier further: the idea of Envoy's priority levels, where a level keeps
min(1, overprovisioning x healthy / total), with 1 / spill_at as the overprovisioning factor and free slots, so capacity
and not a head count, as the measure. The feedback is proportional, so the tier settles just below full instead of
swinging between all and nothing.

Hysteresis is a remembered spilled share. It rises towards the shortfall within seconds, holds below `spill_at`, and
falls as headroom climbs from `spill_at` to `return_at`; above `return_at` it is gone within half of `return_within_s`,
which leaves the other half for running requests to end. A single full moment therefore spills only itself.
"""

import msgspec

from gir.model.ids import TierName

_RISE_S = 3.0
"""Time constant with which a lasting shortfall is remembered."""
_TREND_SAMPLE_S = 0.25
_TREND_MEMORY_S = 10.0
_TREND_LOOK_AHEAD_S = 2.0
"""How far the trend is extended: one beat."""
_TREND_MAX = 0.10
"""Most headroom a trend alone may take away: a guess must not empty a tier."""


class TierLoad(msgspec.Struct, frozen=True):
    """What the eligible clusters of one tier have. All counts in slots."""

    name: TierName
    spill_at: float
    return_at: float
    total: float
    free: float
    reserve: float = 0.0


class TierShare(msgspec.Struct, frozen=True):
    """What follows for one tier."""

    headroom: float
    trend: float
    spilled: float
    share: float


class TierMemory:
    """Hysteresis and trend of one model's tiers; position in the list is position in price order."""

    __slots__ = ("_at_s", "_free", "_names", "_sampled_s", "_slope", "_spilled", "last")

    def __init__(self) -> None:
        self._names: tuple[TierName, ...] = ()
        self._at_s = 0.0
        self._sampled_s = 0.0
        self._spilled: list[float] = []
        self._slope: list[float] = []
        self._free: list[float] = []
        self.last: dict[TierName, float] = {}
        """Share of each tier at the last moment taken in."""

    def shares(
        self, tiers: tuple[TierLoad, ...], *, now_s: float, return_within_s: float, advance: bool = True
    ) -> tuple[TierShare, ...]:
        """How the traffic divides at `now_s`; `advance` also takes this moment into the memory.

        Shares sum to 1. When no tier has any headroom they follow capacity: queues are everywhere, so the expected
        time to first token decides and the shares only report.
        """
        self._fit(tiers, now_s)
        elapsed_s = 0.0
        if advance:
            self._sample_trend(tiers, now_s)
            elapsed_s = max(0.0, now_s - self._at_s)
            self._at_s = now_s
        headrooms: list[float] = []
        trends: list[float] = []
        keeps: list[float] = []
        for position, tier in enumerate(tiers):
            trend = min(_TREND_MAX, max(0.0, -self._slope[position] * _TREND_LOOK_AHEAD_S))
            headroom = (tier.free - tier.reserve) / tier.total - trend if tier.total > 0.0 else 0.0
            shortfall = _shortfall(headroom, tier.spill_at)
            self._spilled[position] = _remember(
                self._spilled[position], headroom, shortfall, tier, elapsed_s, return_within_s
            )
            headrooms.append(headroom)
            trends.append(trend)
            keeps.append(1.0 - max(shortfall, self._spilled[position]))
        shares = divide(keeps, [tier.total for tier in tiers])
        if advance:
            self.last = dict(zip(self._names, shares, strict=True))
        return tuple(
            TierShare(headroom, trend, spilled, share)
            for headroom, trend, spilled, share in zip(headrooms, trends, self._spilled, shares, strict=True)
        )

    def spilled(self) -> dict[TierName, float]:
        """Remembered spilled share of each tier."""
        return dict(zip(self._names, self._spilled, strict=True))

    def _fit(self, tiers: tuple[TierLoad, ...], now_s: float) -> None:
        """Start over when the tiers are others than last time."""
        names = tuple(tier.name for tier in tiers)
        if names != self._names:
            known = dict(zip(self._names, self._spilled, strict=True))
            self._names = names
            self._at_s = now_s
            self._sampled_s = now_s
            self._spilled = [known.get(name, 0.0) for name in names]
            self._slope = [0.0] * len(tiers)
            self._free = [_free_share(tier) for tier in tiers]

    def _sample_trend(self, tiers: tuple[TierLoad, ...], now_s: float) -> None:
        """Exponentially weighted slope of the free share, sampled at most every quarter of a second."""
        gap_s = now_s - self._sampled_s
        if gap_s < _TREND_SAMPLE_S:
            return
        self._sampled_s = now_s
        weight = min(1.0, gap_s / _TREND_MEMORY_S)
        for position, tier in enumerate(tiers):
            free = _free_share(tier)
            slope = (free - self._free[position]) / gap_s
            self._free[position] = free
            self._slope[position] += weight * (slope - self._slope[position])

    def __repr__(self) -> str:
        spilled = ", ".join(f"{name} {share:.2f}" for name, share in self.spilled().items() if share > 0.0)
        return f"<TierMemory spilled: {spilled or 'nothing'}>"


def divide(keeps: list[float], capacities: list[float]) -> list[float]:
    """Traffic of each level when level i can keep `keeps[i]` (0 to 1) of all traffic and passes on the rest.

    Envoy's rule: what a level keeps is scaled up when all levels together keep less than everything, and no level
    takes more than is left. With nothing to keep anywhere, capacity decides.
    """
    together = sum(keeps)
    if together <= 1e-9:
        capacity = sum(capacities)
        return [each / capacity if capacity > 0.0 else 1.0 / len(capacities) for each in capacities]
    scale = 1.0 / together if together < 1.0 else 1.0
    left = 1.0
    shares = []
    for keep in keeps:
        share = min(left, keep * scale)
        shares.append(share)
        left -= share
    shares[keeps.index(max(keeps))] += left  # what rounding left over
    return shares


def _free_share(tier: TierLoad) -> float:
    return tier.free / tier.total if tier.total > 0.0 else 0.0


def _shortfall(headroom: float, spill_at: float) -> float:
    """Share of the traffic this much headroom cannot keep: 0 from `spill_at` up, 1 at nothing free."""
    if headroom >= spill_at:
        return 0.0
    return 1.0 - headroom / spill_at if headroom > 0.0 else 1.0


def _remember(
    spilled: float, headroom: float, shortfall: float, tier: TierLoad, elapsed_s: float, return_within_s: float
) -> float:
    """The remembered spilled share after `elapsed_s` at this headroom."""
    if headroom < tier.spill_at:
        rise = min(1.0, elapsed_s / _RISE_S)
        return spilled + rise * (shortfall - spilled) if shortfall > spilled else spilled
    span = tier.return_at - tier.spill_at
    ease = min(1.0, (headroom - tier.spill_at) / span) if span > 0.0 else 1.0
    return max(0.0, spilled - ease * elapsed_s / (0.5 * return_within_s))
