"""Forwarding: attempts, budgets and the deadlines of each phase."""

from gir.model.policy.base import Count, NonNegative, Seconds, Section, Share


class ForwardPolicy(Section, frozen=True, kw_only=True):
    """What one request may cost before its first token."""

    attempts_max: Count = 3
    """Clusters tried for one request, the first included."""
    retry_budget_share: Share = 0.10
    """Retries in flight, as a share of requests in flight; at least retry_budget_min are always allowed."""
    retry_budget_min: Count = 3
    """Retries in flight that are always allowed."""
    connect_s: Seconds = 0.5
    """Longest time to connect to a cluster."""
    head_s: Seconds = 120.0
    """From dispatch to the response head of a stream, which agents send with its first token: a full one lets a request
    wait 60 s at its gate, and is not to be taken for a broken one."""
    whole_s: Seconds = 600.0
    """The same for an answer that is not streamed: engines send its head when all of it has been generated."""
    first_token_s: Seconds = 120.0
    """From dispatch to the first token; another cluster is tried after it while attempts remain."""
    idle_s: Seconds = 60.0
    """Longest gap between two chunks of a stream."""
    lost_idle_s: Seconds = 5.0
    """The same while the stream's cluster answers no probes: so much silence is then the end of the stream."""
    total_s: Seconds = 600.0
    """Deadline of a request that names none."""
    deadline_client_max_s: Seconds = 3_600.0
    """Cap of the deadline a client may ask for."""
    hedge_after_s: NonNegative = 0.0
    """Start a second attempt when no first token has come after this many seconds; 0 (default) never does."""
    body_bytes_max: Count = 32 * 1024 * 1024
    """Longest request body."""
    response_bytes_max: Count = 64 * 1024 * 1024
    """Longest non-streaming answer that is held for a retry."""
