"""What one scrape of one engine says, in the same words for every engine.

None means the engine did not report it: unknown, neither idle nor saturated.
"""

import msgspec


class Adapters(msgspec.Struct, frozen=True):
    """LoRA activity as an engine shows it: names in use now, and how many fit at once."""

    active: frozenset[str] = frozenset()
    resident_max: int | None = None


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """One scrape. Counters (`*_total`, `*_sum`) count from the engine's start; compare two scrapes for a rate."""

    dialect: str
    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache held by requests, 0 to 1."""
    kv_tokens_total: int | None = None
    adapters: Adapters | None = None
    prompt_tokens_total: float | None = None
    output_tokens_total: float | None = None
    cache_queries_total: float | None = None
    """Prompt tokens looked up in the prefix cache."""
    cache_hits_total: float | None = None
    """Prompt tokens found there."""
    prefill_tokens_sum: float | None = None
    """Prompt tokens really computed, over finished requests."""
    prefill_s_sum: float | None = None
    """Seconds those requests spent in prefill."""
    token_gap_s_sum: float | None = None
    """Seconds between output tokens, summed."""
    token_gaps: float | None = None
    ttft_s_sum: float | None = None
    ttfts: float | None = None
    started_wall_s: float | None = None
    """Start of the engine's process, by its own clock: changes when it restarts."""
    missing: tuple[str, ...] = ()
    """Signals this dialect should have and the page did not: `waiting`, `running`, `kv_cache`, ..."""

    def counters(self) -> tuple[float | None, ...]:
        """Values that never fall while one engine process lives."""
        return (self.prompt_tokens_total, self.output_tokens_total, self.cache_queries_total, self.ttfts)


def restarted(before: Signals, after: Signals) -> bool:
    """Whether `after` comes from a younger engine process than `before`."""
    old, new = before.started_wall_s, after.started_wall_s
    if old is not None and new is not None and abs(new - old) > 1.0:
        return True
    pairs = zip(before.counters(), after.counters(), strict=True)
    return any(a is not None and b is not None and b < a for a, b in pairs)
