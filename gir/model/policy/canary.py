"""Model rewriting: aliases and canaries, in the shape of the Inference Extension's InferenceModelRewrite."""

from typing import Annotated

import msgspec

from gir.model.policy.base import Count, Seconds, Section, Share


class HeaderMatch(Section, frozen=True, kw_only=True):
    """A header that must be present with exactly this value."""

    name: str
    value: str


class RuleMatch(Section, frozen=True, kw_only=True):
    """All given conditions must hold. No `model` matches any model."""

    model: str | None = None
    headers: tuple[HeaderMatch, ...] = ()


class CanaryTarget(Section, frozen=True, kw_only=True):
    """One destination of a split. All targets of a rule carry a weight, or none does (equal shares)."""

    model: str
    weight: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None


class CanaryGuard(Section, frozen=True, kw_only=True):
    """When a canary aborts by itself: compared with the stable target over the same window."""

    error_rate_over_control_max: Share = 0.05
    ttft_p95_ratio_max: Annotated[float, msgspec.Meta(gt=1.0)] = 1.5
    samples_min: Count = 20
    window_s: Seconds = 30.0


class CanaryRule(Section, frozen=True, kw_only=True):
    """Rewrite of the model a client asked for. The first target is the stable one (control)."""

    name: str
    matches: tuple[RuleMatch, ...]
    targets: tuple[CanaryTarget, ...]
    guard: CanaryGuard | None = None
    """None for a plain alias or an unguarded split."""
    plan: tuple[tuple[float, int], ...] = ()
    """Stages of (seconds after start, canary weight), applied one after the other while the guard is content."""
    dry_run: bool = False
    """Draw and count, but send everything to the stable target."""
