"""Expected time to first token of a request on a cluster, in seconds, and the bounded corrections to it.

    score = w_rtt rtt + w_queue queue + w_prefill prefill + w_error error + w_adapter load
            - w_affinity cached - w_session session - home

    queue    max(requests ahead / service rate, prompt tokens ahead / prefill rate of the pool)
    prefill  prompt tokens / prefill rate of one pod
    cached   tokens predicted in the cluster's prefix cache / prefill rate of one pod, at most affinity_max_s

Requests ahead are those waiting in the last beat plus, when no slot is predicted free, those that will have to leave
first; tokens ahead are the beat's plus own dispatches it has not seen. Both grow with the queue and nothing else in the
sum falls with it, so a longer queue never improves a rank.
"""

import msgspec

from gir.model.decision import Term
from gir.model.policy import PlacementPolicy
from gir.place.roster import Row

UNKNOWN_SIGNALS = ("waiting", "waiting_tokens", "prefill_tokens_per_s", "service_rate_per_s", "error_rate")


class Mark(msgspec.Struct, gc=False):
    """One candidate's numbers in one decision. Mutable: corrections that need all candidates come after the score."""

    score_s: float
    row: Row
    room: float
    """Slots predicted free for this request; below 1 it will wait."""
    queue_s: float
    prefill_s: float
    cached_s: float = 0.0
    session_s: float = 0.0
    home_s: float = 0.0
    held_back: bool = False
    load: float = 0.0
    """Requests in flight there, own unseen dispatches included."""

    @property
    def expected_s(self) -> float:
        """Expected time to first token without weights or hints."""
        return self.row.rtt_s + self.queue_s + max(0.0, self.prefill_s - self.cached_s)

    @property
    def use(self) -> float:
        """Load per slot it may use: what two equal candidates are compared by."""
        return self.load / self.row.capacity


def mark(row: Row, tokens: int, rules: PlacementPolicy, cached_tokens: float, session_s: float) -> Mark:
    """Score one candidate for a prompt of `tokens` tokens, of which `cached_tokens` are predicted to be cached."""
    ledger = row.ledger
    room = row.slots_free - ledger.delta
    queue_s = (row.waiting if room >= 1 else row.waiting + 1 - room) * row.service_s
    ahead = row.waiting_tokens + ledger.unseen_tokens
    ahead = max(ahead, ledger.pending_tokens)
    ahead_s = ahead * row.token_total_s
    queue_s = max(queue_s, ahead_s)
    prefill_s = tokens * row.token_s
    weights = rules.weights
    score_s = row.static_s + weights.queue * queue_s + weights.prefill * prefill_s
    load = row.inflight + ledger.delta
    if cached_tokens or session_s:
        cached_s = min(cached_tokens * row.token_s, prefill_s, rules.affinity_max_s)
        score_s -= weights.affinity * cached_s + weights.session * session_s
        return Mark(score_s, row, room, queue_s, prefill_s, cached_s, session_s, 0.0, False, load)
    return Mark(score_s, row, room, queue_s, prefill_s, 0.0, 0.0, 0.0, False, load)


def terms(each: Mark, rules: PlacementPolicy, tokens: int) -> tuple[Term, ...]:
    """Addends of a mark's score, with the numbers behind each. Their sum is the score."""
    row, pool, weights = each.row, each.row.pool, rules.weights
    error_s = (pool.error_rate or 0.0) * rules.error_penalty_s
    rtt = "measured" if row.state.rtt_s is not None else "unknown, default"
    listed = [
        Term("rtt", weights.rtt * row.rtt_s, f"round trip {row.rtt_s * 1e3:.0f} ms, {rtt}"),
        Term(
            "queue",
            weights.queue * each.queue_s,
            f"{_known(pool.waiting)} waiting, {each.room:.0f} of {row.slots_total} slots predicted free, "
            f"{_known(pool.waiting_tokens)} prompt tokens queued; own unseen requests counted",
        ),
        Term(
            "prefill",
            weights.prefill * each.prefill_s,
            f"{tokens} prompt tokens at {1.0 / row.token_s:.0f}/s"
            + ("" if pool.prefill_tokens_per_s else " (rate unknown, default)"),
        ),
        Term("error", weights.error * error_s, f"error rate {_known(pool.error_rate)}"),
    ]
    if not row.resident:
        listed.append(Term("adapter", weights.adapter * rules.adapter_load_s, "adapter must be loaded first"))
    if each.cached_s:
        listed.append(
            Term(
                "affinity", -weights.affinity * each.cached_s, f"about {each.cached_s / row.token_s:.0f} tokens cached"
            )
        )
    if each.session_s:
        listed.append(Term("session", -weights.session * each.session_s, "the session was last served here"))
    if each.home_s:
        listed.append(Term("home", -each.home_s, "home of this prompt by rendezvous hashing"))
    return tuple(listed)


def unknown(row: Row) -> tuple[str, ...]:
    """Signals the cluster does not report; defaults stand in for them."""
    missing = [name for name in UNKNOWN_SIGNALS if getattr(row.pool, name) is None]
    if row.state.rtt_s is None:
        missing.append("rtt_s")
    return tuple(missing)


def _known(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
