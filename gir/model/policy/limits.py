"""Limits and flow control."""

from typing import Annotated, Literal

import msgspec

from gir.model.policy.base import Count, LimitCount, NonNegative, Seconds, Section, Share


class LimitRule(Section, frozen=True, kw_only=True):
    """One limit. A request is counted against every rule it matches; the tightest decides.

    Matching fields left out match anything; `per` names what gets a counter of its own.
    """

    name: str
    """Name in errors and metrics, and of its counters."""
    tenant: str | None = None
    """Counts only this tenant's requests."""
    model: str | None = None
    """Counts only requests for this model, as asked or after rewriting."""
    key: str | None = None
    """Counts only requests with this credential."""
    region: str | None = None
    """Counts only requests that came in at a router of this Region."""
    per: tuple[Literal["tenant", "model", "key", "region"], ...] = ("tenant",)
    """Any of `tenant`, `model`, `key`, `region`: one counter for each distinct combination. Empty: one for all.

    `region` is the Region of the router that the request came in at.
    """
    requests_per_min: LimitCount | None = None
    """Requests in any 60 seconds."""
    tokens_per_min: LimitCount | None = None
    """Input tokens + output_token_weight x output tokens in any 60 seconds: reserved by estimate, settled by usage."""
    concurrency_max: LimitCount | None = None
    """Requests between admission and the end of their answer."""
    burst_s: Annotated[float, msgspec.Meta(gt=0.0, le=60.0)] = 60.0
    """Most that may be used at once, in seconds' worth of the limit. 60 (default): all of it; less spreads it out."""
    output_token_weight: NonNegative = 1.0
    """Weight of an output token against an input token in `tokens_per_min`."""
    on_outage: Literal["share", "open", "closed"] = "share"
    """When the shared store is gone: `share` = limit / live replicas, `open` = not enforced, `closed` = refused.

    Critical requests are never refused because the store is gone: they are judged by the whole limit.
    """


class FlowPolicy(Section, frozen=True, kw_only=True):
    """Who waits, how long and who is shed when no cluster has room."""

    queue_max: Count = 1_000
    """Requests that may wait in this process."""
    queue_bytes_max: Count = 256 * 1024 * 1024
    """Their bodies in sum."""
    wait_max_s: Seconds = 30.0
    """Longest wait of any of them; its own deadline may be nearer."""
    critical_reserve: Share = 0.10
    """Share of slots that only Critical requests may take. What Critical requests use counts towards it."""
    aging_s: Seconds = 15.0
    """Longest that waiting Critical requests may keep a pool from serving a Standard one that has waited as long."""
    in_flight_max: Count = 20_000
    """Requests in this process, waiting and running; beyond it the door is shut before bodies are read."""
    bodies_bytes_max: Count = 2 * 1024 * 1024 * 1024
    """Bodies of all of them in sum; a request whose body would not fit is refused with 503 before it is read."""
    sheddable_headroom: Share = 0.05
    """Sheddable requests are admitted only while this share of slots is free."""
