"""Limits and flow control."""

from typing import Annotated

import msgspec

from gir.model.policy.base import Count, NonNegative, Seconds, Section, Share


class LimitRule(Section, frozen=True, kw_only=True):
    """One limit. A request is counted against every rule it matches; the tightest decides.

    Matching fields left out match anything; `per` names what gets a counter of its own.
    """

    name: str
    tenant: str | None = None
    model: str | None = None
    key: str | None = None
    region: str | None = None
    per: tuple[str, ...] = ("tenant",)
    """Any of `tenant`, `model`, `key`: one counter for each distinct combination."""
    requests_per_min: Count | None = None
    tokens_per_min: Count | None = None
    concurrency_max: Count | None = None
    output_token_weight: NonNegative = 1.0
    """Weight of an output token against an input token in `tokens_per_min`."""
    on_outage: Annotated[str, msgspec.Meta(pattern="^(share|open|closed)$")] = "share"
    """When the shared store is gone: `share` = limit / live replicas, `open` = not enforced, `closed` = refused."""


class FlowPolicy(Section, frozen=True, kw_only=True):
    """Who waits, how long and who is shed when no cluster has room."""

    queue_max: Count = 1_000
    queue_bytes_max: Count = 256 * 1024 * 1024
    wait_max_s: Seconds = 30.0
    critical_reserve: Share = 0.10
    """Share of slots that only Critical requests may take."""
    aging_s: Seconds = 15.0
    """A Standard request that has waited this long is served before younger Critical ones."""
    in_flight_max: Count = 20_000
    """Requests in this process, waiting and running; beyond it the door is shut before bodies are read."""
    sheddable_headroom: Share = 0.05
    """Sheddable requests are admitted only while this share of slots is free."""
