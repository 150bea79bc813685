"""Model rewriting: aliases and canaries, in the shape of the Inference Extension's InferenceModelRewrite."""

from typing import Annotated

import msgspec

from gir.model.policy.base import NonNegative, Seconds, Section, Share

StageWeight = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class HeaderMatch(Section, frozen=True, kw_only=True):
    """A header that must be present with exactly this value."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    """Header name, in any case."""
    value: str
    """Value it must have, exactly."""


class RuleMatch(Section, frozen=True, kw_only=True):
    """All given conditions must hold. No `model` matches any model."""

    model: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """Model the client asks for; None matches any."""
    headers: tuple[HeaderMatch, ...] = ()
    """Headers that must all be present with their values."""


class CanaryTarget(Section, frozen=True, kw_only=True):
    """One destination of a split. All targets of a rule carry a weight, or none does (equal shares)."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    """Model that is asked for instead."""
    weight: StageWeight | None = None
    """Its part of the sum of all weights; None everywhere means equal parts."""


class CanaryGuard(Section, frozen=True, kw_only=True):
    """When a canary aborts by itself: compared with the stable target over the same window."""

    error_rate_over_control_max: Share = 0.05
    """Most its error rate may exceed the control's, 0 to 1."""
    ttft_p95_ratio_max: Annotated[float, msgspec.Meta(gt=1.0, le=1_000.0)] = 1.5
    """Most its time to first token may be, at p95 or typically (geometric mean), as a multiple of the control's."""
    samples_min: Annotated[int, msgspec.Meta(ge=5, le=50)] = 20
    """Canary requests needed before it is judged. At most 50, so that a bad one is gone by then."""
    window_s: Seconds = 30.0
    """Requests older than this are judged only while fewer than 50 are younger."""


class CanaryRule(Section, frozen=True, kw_only=True):
    """Rewrite of the model a client asked for. The first target is the stable one (control).

    A rule that names a model comes before one that matches any; among equals the earlier one wins.
    """

    name: Annotated[str, msgspec.Meta(min_length=1)]
    """Name in decisions, metrics and commands."""
    matches: Annotated[tuple[RuleMatch, ...], msgspec.Meta(min_length=1)]
    """Any one of these makes the rule apply."""
    targets: Annotated[tuple[CanaryTarget, ...], msgspec.Meta(min_length=1)]
    """Where matching requests go; the first is the stable one (control)."""
    guard: CanaryGuard | None = None
    """None for a plain alias or an unguarded split."""
    plan: tuple[tuple[NonNegative, StageWeight], ...] = ()
    """Stages of (seconds after start, weight of the second target), one after the other while the guard is content.

    The weight is out of the sum of the targets' weights (out of 100 when they carry none): the stable target keeps
    the rest.
    """
    testers: tuple[str, ...] = ()
    """Tenants that may choose a target by the header `x-gir-canary`, besides callers that policy trusts."""
    dry_run: bool = False
    """Draw and count, but send everything to the stable target."""
