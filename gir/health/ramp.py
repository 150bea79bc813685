"""The way back: how fast a returning cluster gets its share, and how long one that flaps has to wait."""

from gir.model.policy import HealthPolicy


def ramp_share(since_s: float, policy: HealthPolicy) -> float:
    """Share of its normal traffic, 0 to 1, `since_s` seconds into the ramp.

    `max(floor, (t / window)^(1 / aggression))`: Envoy's slow start. Aggression above 1 starts faster, below 1 slower.
    """
    if since_s >= policy.ramp_s:
        return 1.0
    progress = max(0.0, since_s) / policy.ramp_s
    return float(max(policy.ramp_floor, progress ** (1.0 / policy.ramp_aggression)))


def holddown_s(flaps: int, policy: HealthPolicy) -> float:
    """Seconds of good signals before the ramp after the `flaps`-th loss: doubles each time, up to a cap."""
    # The exponent is bounded before the power is taken: a cluster may flap for years.
    doublings = min(max(0, flaps - 1), 32)
    return float(min(policy.holddown_max_s, policy.holddown_s * 2**doublings))


def freshness(age_s: float, policy: HealthPolicy) -> float:
    """How far numbers of a beat `age_s` seconds old are trusted: 1 for two intervals, then falling to the ramp's floor.

    Old capacity is a guess, so a cluster whose beats are late gets less before it is suspected.
    """
    trusted_s = 2.0 * policy.beat_interval_s
    if age_s <= trusted_s or policy.dead_after_s <= trusted_s:
        return 1.0
    faded = (age_s - trusted_s) / (policy.dead_after_s - trusted_s)
    return float(max(policy.ramp_floor, 1.0 - faded))
