"""What the cluster can do, in one beat: totals over the pods of each pool, and unknown where nobody knows.

Pure: pools and recent outcomes in, a `BeatReport` out.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from gir.model.beat import BeatReport, Condition
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId
from tier1_agent.fleet import Fleet
from tier1_agent.pods import Pod, PodState
from tier1_agent.pool import Pool

WINDOW_S = 60.0
OUTCOMES_MAX = 1_024
SUCCESSES_ASSUMED = 20
"""Successes added to what was seen when the error rate is told: one failure of one request is no rate of 100 %. Routers
that moved all traffic away for it would leave a minute without a request to prove otherwise."""


class Recent:
    """Outcomes of the last minute, at most `OUTCOMES_MAX`: (time, seconds to first token or None, ok)."""

    __slots__ = ("_outcomes",)

    def __init__(self) -> None:
        self._outcomes: deque[tuple[float, float | None, bool]] = deque(maxlen=OUTCOMES_MAX)

    def note(self, now_s: float, *, ok: bool, ttft_s: float | None = None) -> None:
        """One attempt on a pod has ended."""
        self._outcomes.append((now_s, ttft_s, ok))

    def summary(self, now_s: float) -> tuple[float | None, float | None, float | None]:
        """Median and 95th percentile of the time to first token, and the share that failed; None without any.

        The share is estimated with `SUCCESSES_ASSUMED` (a Bayesian average), so that it needs evidence to be high.
        """
        while self._outcomes and now_s - self._outcomes[0][0] > WINDOW_S:
            self._outcomes.popleft()
        ttfts = sorted(ttft for _, ttft, _ in self._outcomes if ttft is not None)
        failed = sum(not ok for _, _, ok in self._outcomes)
        errors = failed / (len(self._outcomes) + SUCCESSES_ASSUMED) if self._outcomes else None
        if not ttfts:
            return None, None, errors
        return ttfts[len(ttfts) // 2], ttfts[min(len(ttfts) - 1, int(0.95 * len(ttfts)))], errors


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pool beyond its pods."""

    recent: Recent
    waiting: int = 0
    """Requests at the gate."""
    cards: Mapping[ModelId, str] = {}


def pool_state(pool: Pool, demand: Demand, now_s: float) -> PoolState:
    """Totals over the pods of `pool`. Only pods that may get work add capacity."""
    ready = [pod for pod in pool.pods if pod.state is PodState.READY]
    warming = sum(pod.state is PodState.WARMING for pod in pool.pods)
    shares = [(pod, pod.ramp(now_s, pool.settings.ramp_s)) for pod in ready]
    ttft_p50_s, ttft_p95_s, error_rate = demand.recent.summary(now_s)
    waiting = _total(ready, lambda pod: pod.signals.waiting if pod.signals is not None else 0)
    kv_total = _total(ready, lambda pod: pod.signals.kv_tokens_total if pod.signals is not None else None)
    waiting_tokens = sum(pod.pending_tokens for pod in ready) + demand.waiting * (
        pool.traffic.uncached_tokens.value or 0.0
    )
    known_names = {name for pod in ready for name in (*pod.adapters_listed, *pod.adapters_seen)}
    return PoolState(
        model=pool.model,
        adapters_resident=frozenset(known_names),
        adapters_loadable=frozenset(name for pod in ready for name in pod.spec.adapters_loadable),
        pods_ready=len(ready),
        pods_warming=warming,
        slots_total=sum(pod.slots for pod in ready),
        slots_free=sum(int(max(0.0, pod.slots - pod.load) * share) for pod, share in shares),
        running=_total(ready, _running),
        waiting=None if waiting is None else waiting + demand.waiting,
        waiting_tokens=round(waiting_tokens),
        kv_tokens_total=kv_total,
        kv_tokens_used=None if kv_total is None else _total(ready, _kv_used),
        prefill_tokens_per_s=_rate(ready, lambda pod: pod.prefill.per_token_s if pod.prefill.count else None),
        decode_tokens_per_s=_rate(ready, lambda pod: _per_slot(pod, pod.token_gap_s.value)),
        service_rate_per_s=_rate(
            ready, lambda pod: _per_slot(pod, pool.traffic.hold_s(pod) if _measured(pool, pod) else None)
        ),
        ttft_p50_s=ttft_p50_s,
        ttft_p95_s=ttft_p95_s,
        error_rate=error_rate,
        context_tokens_max=max((pod.spec.context_tokens_max or 0 for pod in ready), default=0) or None,
        cards=demand.cards,
    )


def report(
    fleet: Fleet,
    demand_of: Callable[[Pool], Demand],
    *,
    cluster: ClusterId,
    epoch: int,
    seq: int,
    draining: bool,
    warnings: Iterable[str],
    now_s: float,
) -> BeatReport:
    """The whole state of the cluster as beat `seq`."""
    pools = tuple(pool_state(pool, demand_of(pool), now_s) for pool in fleet.pools.values())
    ready = any(pool.pods_ready for pool in pools)
    condition = Condition.DRAINING if draining else Condition.SERVING if ready else Condition.WARMING
    return BeatReport(cluster=cluster, epoch=epoch, seq=seq, pools=pools, condition=condition, warnings=tuple(warnings))


def _running(pod: Pod) -> int | None:
    """As the engine says; for one that says nothing, what we have there ourselves."""
    return pod.signals.running if pod.signals is not None else pod.in_flight


def _kv_used(pod: Pod) -> int | None:
    signals = pod.signals
    if signals is None or signals.kv_usage is None or signals.kv_tokens_total is None:
        return None
    return round(min(1.0, signals.kv_usage) * signals.kv_tokens_total)


def _measured(pool: Pool, pod: Pod) -> bool:
    return pod.token_gap_s.value is not None and pool.traffic.output_tokens.value is not None


def _per_slot(pod: Pod, seconds: float | None) -> float | None:
    """Seconds for one, when all slots work side by side."""
    return seconds / pod.slots if seconds is not None else None


def _total(pods: Iterable[Pod], value_of: Callable[[Pod], int | None]) -> int | None:
    """Sum over pods; unknown as soon as one of them is, for a total with a hole in it is no total."""
    values = [value_of(pod) for pod in pods]
    return sum(value for value in values if value is not None) if values and None not in values else None


def _rate(pods: Iterable[Pod], seconds_of: Callable[[Pod], float | None]) -> float | None:
    """Sum of rates from seconds for one; pods not measured yet count as the mean of those that are."""
    seconds = [seconds_of(pod) for pod in pods]
    rates = [1.0 / value for value in seconds if value]
    return sum(rates) / len(rates) * len(seconds) if rates else None
