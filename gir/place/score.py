"""Expected time to first token of a request on a cluster, in seconds, and the bounded corrections to it.

    score = w_rtt rtt + w_queue queue + w_prefill prefill + w_error error + w_adapter load
            - w_affinity cached - w_session session - home

    queue    max(requests ahead / service rate, prompt tokens ahead / prefill rate of the pool)
    prefill  prompt tokens / prefill rate of one pod
    cached   tokens predicted in the cluster's prefix cache / prefill rate of one pod, at most affinity_max_s,
             worth more when everybody queues (`credit_cached`)

Requests ahead are those waiting in the last beat plus, when no slot is predicted free, those that will have to leave
first; tokens ahead are own prompts without a first token and what the last beat had waiting beyond them. A longer
queue in a beat raises the sum, so it never improves a rank.
"""

import msgspec

from gir.model.decision import Term
from gir.model.ids import ClusterId
from gir.model.policy import PlacementPolicy
from gir.place.roster import Row, error_s

UNKNOWN_SIGNALS = ("waiting", "waiting_tokens", "prefill_tokens_per_s", "service_rate_per_s", "error_rate")


_PATIENCE_MAX = 2.0
"""Greatest multiple of the others' queue that a cached prefix may outweigh. With 0, a fleet past saturation recomputed
half of what it could have reused on the recorded conversations (54 % of the reuse ceiling, with 2: 85 %)."""
_PATIENCE_S = 0.3
"""Saved prefill that earns a patience of 1: less is not worth waiting for."""


class Mark(msgspec.Struct, gc=False):
    """One candidate's numbers in one decision. Mutable: corrections that need all candidates come after the score."""

    score_s: float
    row: Row
    room: float
    """Slots predicted free for this request; below 1 it will wait."""
    queue_s: float
    prefill_s: float
    load: float
    """Requests in flight there, own unseen dispatches included."""
    cached_s: float = 0.0
    """Prefill saved by what is cached there."""
    affinity_s: float = 0.0
    session_s: float = 0.0
    home_s: float = 0.0
    """What affinity, session and home take off the score."""
    held_back: bool = False

    @property
    def expected_s(self) -> float:
        """Expected time to first token without weights or hints."""
        return self.row.rtt_s + self.queue_s + self.row.load_s + max(0.0, self.prefill_s - self.cached_s)

    @property
    def use(self) -> float:
        """Load per slot it may use: what two equal candidates are compared by."""
        return self.load / self.row.capacity


def mark(row: Row, tokens: int, rules: PlacementPolicy, now_s: float) -> Mark:
    """Score one candidate for a prompt of `tokens` tokens, as if nothing were cached and nobody known there."""
    ledger = row.ledger
    room = row.slots_free - ledger.delta
    waiting = row.waiting
    if ledger.started:
        waiting = max(0.0, waiting - ledger.started)
    queue_s = (waiting if room >= 1 else waiting + 1 - room) * row.service_s
    ahead_s = ledger.foreign_tokens * row.token_total_s
    if ledger.pending_tokens:
        ahead_s += ledger.own_wait_s(now_s)
    if ahead_s:
        queue_s = max(queue_s, ahead_s)
    prefill_s = tokens * row.token_s
    weights = rules.weights
    return Mark(
        row.static_s + weights.queue * queue_s + weights.prefill * prefill_s,
        row,
        room,
        queue_s,
        prefill_s,
        row.inflight + ledger.delta,
    )


def credit_cached(marks: list[Mark], cached: dict[ClusterId, float], rules: PlacementPolicy) -> None:
    """Lower the scores of clusters predicted to hold a part of the prompt; `cached` is in tokens by cluster.

    Saved prefill is worth more than the request's own time when everybody queues, because it shortens the wait of all
    who come behind. So a candidate earns, beside what it saves, a part of the mean queue q of the *others*:
    cached + q x min(2, cached / 0.3 s). It may then be chosen with a queue of up to three times theirs, never more. Its
    own queue plays no part in its credit, so a longer one never improves a rank.
    """
    others = len(marks) - 1
    total_s = sum([each.queue_s for each in marks]) if others else 0.0
    for each in marks:
        tokens = cached.get(each.row.cluster)
        if tokens:
            elsewhere_s = (total_s - each.queue_s) / others if others else 0.0
            each.cached_s = min(tokens * each.row.token_s, each.prefill_s, rules.affinity_max_s)
            patience = min(_PATIENCE_MAX, each.cached_s / _PATIENCE_S)
            each.affinity_s = rules.weights.affinity * (each.cached_s + elsewhere_s * patience)
            each.score_s -= each.affinity_s


def terms(each: Mark, rules: PlacementPolicy, tokens: int) -> tuple[Term, ...]:
    """Addends of a mark's score, with the numbers behind each. Their sum is the score."""
    row, pool, weights = each.row, each.row.pool, rules.weights
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
        Term(
            "error",
            weights.error * error_s(pool, rules),
            f"error rate {_known(pool.error_rate)}, up to {rules.error_rate_tolerated:g} tolerated",
        ),
    ]
    if not row.resident:
        listed.append(Term("adapter", weights.adapter * rules.adapter_load_s, "adapter must be loaded first"))
    if each.affinity_s:
        patience_s = each.affinity_s - weights.affinity * each.cached_s
        waits = f"; worth {patience_s:.2f} s more while the others queue" if patience_s > 0.0 else ""
        cached = f"about {each.cached_s / row.token_s:.0f} tokens cached{waits}"
        listed.append(Term("affinity", -each.affinity_s, cached))
    if each.session_s:
        listed.append(Term("session", -each.session_s, "the session was last served here"))
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
