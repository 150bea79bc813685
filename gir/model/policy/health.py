"""Cluster health: the timing ladder. The worst case it implies is checked against `failover_bound_s`."""

from typing import Annotated

import msgspec

from gir.model.policy.base import Count, NonNegative, Seconds, Section, Share


class HealthPolicy(Section, frozen=True, kw_only=True):
    """Four detectors and the way back. Defaults: detection <= 1 s (failing), <= 3.5 s (frozen), <= 15.5 s (silent)."""

    failover_bound_s: Seconds = 35.0
    """Promise: no new request goes to a lost cluster later than this. A ladder that cannot keep it is refused."""
    beat_interval_s: Seconds = 2.0
    """Time between two beats of an agent, told to it in the Welcome."""
    suspect_after_s: Seconds = 6.0
    """Silence after which a cluster gets no new work while others have room."""
    dead_after_s: Seconds = 15.0
    """Silence after which a cluster is dead."""
    sweep_interval_s: Seconds = 0.5
    """How often the registry looks at the clock."""
    probe: bool = True
    """Ask each agent over the data path whether it is alive."""
    probe_interval_s: Seconds = 1.0
    """Time between two probes of a cluster."""
    probe_timeout_s: Seconds = 0.5
    """Longest wait for the answer of a probe."""
    probe_misses: Count = 3
    """Probes missed in a row that suspect a cluster."""
    breaker_consecutive: Count = 3
    """Local-origin failures in a row that open the breaker."""
    breaker_upstream_consecutive: Count = 5
    """Upstream-origin failures (5xx, error events, truncation) in a row that open it."""
    breaker_window_s: Seconds = 10.0
    """Time over which the share of successes is judged."""
    breaker_samples_min: Count = 10
    """Attempts in that time below which it is not judged."""
    breaker_success_min: Share = 0.5
    """Share of successes below which the breaker opens."""
    ejection_s: Seconds = 10.0
    """First ejection; the n-th in a row lasts n times as long, up to ejection_max_s, with +-20 % jitter."""
    ejection_max_s: Seconds = 300.0
    """Longest ejection."""
    recover_beats: Count = 2
    """Good beats in a row before a cluster may come back."""
    recover_probes: Count = 2
    """Good probes in a row before a cluster may come back."""
    ramp_s: Seconds = 30.0
    """Time from the first share to the full one."""
    ramp_floor: Share = 0.10
    """First share after coming back."""
    ramp_aggression: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    """Shape of the ramp: 1 is straight, more starts faster."""
    holddown_s: NonNegative = 2.0
    """Wait before a ramp begins; doubles with each flap up to holddown_max_s."""
    holddown_max_s: Seconds = 300.0
    """Longest wait before a ramp."""
    flap_window_s: Seconds = 600.0
    """A cluster that stays well this long is forgiven its flaps."""
    loop_gap_s: Seconds = 1.0
    """A sweep later than this after its time means this router was paused: the gap is granted to every cluster."""
    mass_ejection_share: Share = 0.5
    """When more than this share of the fleet falls silent together, the router may be the sick one: those clusters stay
    SUSPECT, helping out while the others have no room, and are DEAD only after failover_bound_s. When all of it does,
    the router fails open: everybody keeps what they had until somebody is heard again."""
