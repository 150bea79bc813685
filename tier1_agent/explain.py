"""Why a pod costs what it costs: every term of the sum that `picker` minimises, by name.

Not on the way of requests: the picker reads sums that events have prepared; this takes them apart again, and a test
holds both to the same figures.
"""

import msgspec

from gir.model.ids import PodId
from tier1_agent.picker import PickRequest, costs_of
from tier1_agent.pods import Pod, PodState
from tier1_agent.pool import INFINITE, Pool
from tier1_agent.scorers import KV_S, kv_pressure, queue_s, running_s


class PodCost(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's part in a decision. `terms` add up to `cost_s`; a pod that was filtered out has `removed` instead."""

    pod: PodId
    cost_s: float | None = None
    terms: tuple[tuple[str, float], ...] = ()
    blocks_cached: int = 0
    removed: str = ""


def explain(pool: Pool, request: PickRequest, now_s: float) -> list[PodCost]:
    """Every listed pod, cheapest first, filtered ones last."""
    costs, matched = costs_of(pool, request, now_s)
    rows = []
    for pod in pool.pods:
        cost_s = costs[pod.bit]
        if pod.state is PodState.GONE:
            continue
        if cost_s == INFINITE:
            rows.append(PodCost(pod=pod.spec.id, removed=_why_not(pool, pod, request)))
            continue
        terms = _terms(pool, pod, request, matched.get(pod.bit, 0), now_s)
        rest_s = cost_s - sum(seconds for _, seconds in terms)
        if abs(rest_s) > 1e-9:
            terms.append(("affinity", rest_s))
        rows.append(PodCost(pod=pod.spec.id, cost_s=cost_s, terms=tuple(terms), blocks_cached=matched.get(pod.bit, 0)))
    return sorted(rows, key=lambda row: INFINITE if row.cost_s is None else row.cost_s)


def _terms(pool: Pool, pod: Pod, request: PickRequest, blocks: int, now_s: float) -> list[tuple[str, float]]:
    weights, work = pool.settings.weights, pool.settings.weights.expected_work
    uncached = max(0.0, request.tokens - blocks * pool.traffic.tokens_per_block)
    prefill_s = uncached * pool.traffic.prefill_s(pod)
    pressure = weights.kv_cache * kv_pressure(pod.kv_usage)
    waiting = max(pod.load - pod.slots, pod.waiting_foreign, 0.0)
    return [
        ("wait", max(pool.clear_at_s[pod.bit] - now_s * work, pool.floor_s[pod.bit])),
        ("expectedWork", work * (pool.traffic.fixed_s(pod) + prefill_s)),
        ("prefix", weights.prefix * prefill_s),
        ("lru", weights.lru * pool.evict_price[pod.bit] * prefill_s),
        ("kvCache", pressure * (KV_S + uncached * pool.traffic.kv_token_s(pod))),
        ("queue", weights.queue * queue_s(waiting, pod.slots)),
        ("runningRequests", weights.running_requests * running_s(min(pod.load, pod.slots), pod.slots)),
    ]


def _why_not(pool: Pool, pod: Pod, request: PickRequest) -> str:
    cap = pool.settings.concurrent_max_per_pod
    if cap is not None and pod.in_flight >= cap:
        return f"{pod.in_flight} in flight, cap {cap}"
    if not pool.eligible(pod):
        return pod.state.value
    limit = pod.spec.context_tokens_max
    if limit is not None and request.context_tokens > limit:
        return f"needs {request.context_tokens} tokens of context, has {limit}"
    return f"does not hold adapter {request.adapter}"
