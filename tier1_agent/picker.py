"""Which pod takes this request: filters, one sum per pod, the smallest wins, ties by lot.

Pure: the pool's arrays and the request in, a `Pick` out. `now_s` and one uniform `draw` in [0, 1) are arguments, so a
decision can be repeated exactly.
"""

from collections.abc import Collection

import msgspec

from gir.model.ids import ModelId
from tier1_agent.pods import Pod
from tier1_agent.pool import INFINITE, Mode, Pool
from tier1_agent.scorers import ADAPTER_S, SESSION_S, session_rank

TIE_S = 0.001
TIE_SHARE = 0.01
"""Costs this close to the best are equal: measured rates are not better than that."""


class PickRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pick depends on. `tokens` is the estimate of prompt tokens."""

    tokens: float
    hashes: tuple[int, ...] = ()
    adapter: ModelId | None = None
    session: bytes | None = None
    context_tokens: int = 0
    """Prompt and longest answer together; 0 when nobody said."""


class Pick(msgspec.Struct, frozen=True):
    """The chosen pod, why, its cost, and the prompt blocks it is thought to hold."""

    pod: Pod
    reason: str
    cost_s: float
    blocks_cached: int = 0


def pick(pool: Pool, request: PickRequest, *, now_s: float, draw: float, tried: Collection[int] = ()) -> Pick | None:
    """The pod with the smallest cost, or None when no pod may take the request now.

    `tried` holds places (`Pod.bit`) that this request has been to already.
    """
    settings = pool.settings
    if settings.round_robin or pool.mode is Mode.ROUND_ROBIN:
        return _next_in_turn(pool, request, tried)
    costs, matched = costs_of(pool, request, now_s, tried)
    passed_over: Pick | None = None
    while (best_s := min(costs, default=INFINITE)) < INFINITE:
        limit_s = best_s + TIE_S + TIE_SHARE * abs(best_s)
        near = [bit for bit, cost in enumerate(costs) if cost <= limit_s]
        bit = near[int(draw * len(near))]
        pod = pool.pods[bit]
        if pod.ramp_from_s is None:
            return Pick(pod, _reason(pool, request, matched, bit), costs[bit], matched.get(bit, 0))
        draw = draw * 997.0 % 1.0  # a second draw from the digits the first one did not use
        starter = Pick(pod, "slow_start", costs[bit], matched.get(bit, 0))
        if draw < pod.ramp(now_s, settings.ramp_s):
            return starter
        passed_over = passed_over or starter
        costs[bit] = INFINITE
    return passed_over


def costs_of(
    pool: Pool, request: PickRequest, now_s: float, tried: Collection[int] = ()
) -> tuple[list[float], dict[int, int]]:
    """Cost of each place in seconds (infinite: may not take it), and the blocks each pod holds of the prompt."""
    tokens = request.tokens
    now_s *= pool.settings.weights.expected_work
    costs = [
        static + (wait if (wait := clear_at - now_s) > floor else floor) + tokens * per_token
        for static, clear_at, floor, per_token in zip(
            pool.static_s, pool.clear_at_s, pool.floor_s, pool.per_token_s, strict=True
        )
    ]
    for bit in tried:
        costs[bit] = INFINITE
    matched = pool.index.match(request.hashes) if request.hashes else {}
    if matched:
        per_block, per_token_s = pool.traffic.tokens_per_block, pool.per_token_s
        for bit, blocks in matched.items():
            costs[bit] -= min(blocks * per_block, tokens) * per_token_s[bit]
    if request.adapter is not None:
        _prefer_adapter(pool, request.adapter, costs)
    if pool.context_tokens_min is not None and request.context_tokens > pool.context_tokens_min:
        _fit_context(pool, request.context_tokens, costs)
    if request.session is not None and pool.settings.weights.session:
        _prefer_home(pool, request.session, costs)
    return costs, matched


def _prefer_adapter(pool: Pool, adapter: ModelId, costs: list[float]) -> None:
    """A pod that holds the adapter first; only when none of them may be picked, the others that could load it."""
    holders = {pod.bit for pod in pool.pods if pod.holds(adapter)}
    resident = any(costs[bit] < INFINITE for bit in holders)
    for pod in pool.pods:
        if pod.bit in holders:
            continue
        if resident or adapter not in pod.spec.adapters_loadable:
            costs[pod.bit] = INFINITE
        else:
            costs[pod.bit] += ADAPTER_S * pool.settings.weights.lora_affinity


def _fit_context(pool: Pool, tokens: int, costs: list[float]) -> None:
    """Leave out pods whose context is too short; when that is all of them, the engine shall say so itself."""
    limits = [(pod.bit, pod.spec.context_tokens_max) for pod in pool.pods]
    short = [bit for bit, limit in limits if limit is not None and tokens > limit]
    if any(cost < INFINITE for bit, cost in enumerate(costs) if bit not in short):
        for bit in short:
            costs[bit] = INFINITE


def _prefer_home(pool: Pool, session: bytes, costs: list[float]) -> None:
    """Everywhere but at the session's home a request loses `SESSION_S` x weight seconds."""
    away_s = SESSION_S * pool.settings.weights.session
    home = max(
        (pod for pod in pool.pods if costs[pod.bit] < INFINITE),
        key=lambda pod: session_rank(session, pod.seed),
        default=None,
    )
    if home is not None:
        costs[home.bit] -= away_s


def _next_in_turn(pool: Pool, request: PickRequest, tried: Collection[int]) -> Pick | None:
    """Round robin over the pods that may be picked."""
    count = len(pool.pods)
    allowed = [0.0 if cost < INFINITE else cost for cost in pool.static_s]
    for bit in tried:
        allowed[bit] = INFINITE
    if request.adapter is not None:
        _prefer_adapter(pool, request.adapter, allowed)
    if pool.context_tokens_min is not None and request.context_tokens > pool.context_tokens_min:
        _fit_context(pool, request.context_tokens, allowed)
    for step in range(count):
        bit = (pool.turn + step) % count
        if allowed[bit] < INFINITE:
            pool.turn = bit + 1
            return Pick(pool.pods[bit], "round_robin", 0.0)
    return None


def _reason(pool: Pool, request: PickRequest, matched: dict[int, int], bit: int) -> str:
    """Why this one, in one word."""
    if pool.mode is not Mode.FULL:
        return "degraded"
    if len(pool.pods) == 1:
        return "only"
    if request.adapter is not None and pool.pods[bit].holds(request.adapter):
        return "adapter"
    if bit in matched:
        return "prefix"
    return "spill" if matched else "least_work"
