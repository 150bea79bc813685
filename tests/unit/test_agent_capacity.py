"""Beats carry totals of what may really be used, and say unknown where somebody does not know."""

import pytest

from gir.model.beat import Condition
from gir.model.ids import ClusterId, ModelId
from gir.model.request import Usage
from tests.support.agent_pool import MODEL, START_S, hear_all, make_pool, named, signals, spec
from tier1_agent.capacity import Demand, Recent, pool_state, report
from tier1_agent.fleet import Fleet
from tier1_agent.pool import Pool, PoolSettings
from tier1_agent.scorers import PRESETS


def state_of(pool: Pool, **demand: object):  # type: ignore[no-untyped-def]
    return pool_state(pool, Demand(recent=Recent(), **demand), START_S)  # type: ignore[arg-type]


def test_totals_are_sums_over_ready_pods() -> None:
    pool = make_pool("a", "b", "gone")
    for pod in pool.pods[:2]:
        pool.scraped(pod, signals(running=2, waiting=1, kv_usage=0.25, kv_tokens_total=1_000), START_S)
    pool.remove(named(pool, "gone"), START_S)
    state = state_of(pool, waiting=4)
    assert (state.pods_ready, state.slots_total) == (2, 16)
    assert (state.running, state.waiting) == (4, 6)
    assert (state.kv_tokens_total, state.kv_tokens_used) == (2_000, 500)


def test_one_pod_that_does_not_know_makes_the_total_unknown() -> None:
    pool = make_pool("a", "b")
    pool.scraped(named(pool, "a"), signals(kv_usage=0.5, kv_tokens_total=1_000), START_S)
    pool.scraped(named(pool, "b"), signals(kv_usage=None, running=None), START_S)
    state = state_of(pool)
    assert (state.kv_tokens_total, state.kv_tokens_used, state.running) == (None, None, None)


def test_pods_without_metrics_report_what_is_in_flight() -> None:
    pool = make_pool()
    pod = pool.add(spec("plain"))
    pool.scraped(pod, None, START_S)
    pool.dispatched(pod, START_S, tokens=10.0)
    state = state_of(pool)
    assert (state.running, state.waiting, state.slots_free) == (1, 0, 7)


def test_warming_and_stale_pods_are_no_capacity() -> None:
    pool = make_pool("a", "b")
    pool.add(spec("new"))
    for _ in range(3):
        pool.missed(named(pool, "b"), START_S)
    state = state_of(pool)
    assert (state.pods_ready, state.pods_warming, state.slots_total) == (1, 1, 8)


def test_a_returning_pod_offers_only_the_share_of_its_ramp() -> None:
    pool = make_pool("a", ramp_s=10.0)
    named(pool, "a").ramp_from_s = START_S - 5.0
    assert state_of(pool).slots_free == 4


def test_an_empty_pool_has_zero_slots_and_no_rates() -> None:
    state = state_of(make_pool())
    assert (state.slots_total, state.slots_free, state.pods_ready) == (0, 0, 0)
    assert state.prefill_tokens_per_s is None
    assert state.running is None


def test_rates_are_summed_and_the_unmeasured_counted_like_the_measured() -> None:
    pool = make_pool("a", "b")
    pod = named(pool, "a")
    ticket = pool.dispatched(pod, START_S, tokens=1_000.0)
    pool.first_token(ticket, START_S + 0.5)
    pool.finished(ticket, START_S + 1.5, ok=True, usage=Usage(prompt_tokens=1_000, completion_tokens=11))
    state = state_of(pool)
    assert state.prefill_tokens_per_s == pytest.approx(2 * 2_000.0)
    assert state.decode_tokens_per_s == pytest.approx(2 * 8 / 0.1)
    assert state.service_rate_per_s == pytest.approx(2 * 8 / (0.5 + 11 * 0.1))


def test_recent_outcomes_give_quantiles_and_an_error_rate_of_the_last_minute() -> None:
    recent = Recent()
    assert recent.summary(START_S) == (None, None, None)
    recent.note(START_S - 100, ok=False)
    for index in range(20):
        recent.note(START_S + index, ok=index % 4 != 0, ttft_s=float(index))
    assert recent.summary(START_S + 20) == (10.0, 19.0, 0.125)
    assert recent.summary(START_S + 500) == (None, None, None)


@pytest.mark.parametrize(
    ("failed", "of", "rate"), [(1, 1, 0.048), (2, 3, 0.087), (50, 1_000, 0.049), (500, 1_000, 0.49)]
)
def test_few_failures_are_no_high_error_rate(failed: int, of: int, rate: float) -> None:
    recent = Recent()
    for number in range(of):
        recent.note(START_S, ok=number >= failed)
    assert recent.summary(START_S)[2] == pytest.approx(rate, abs=0.001)


def test_the_beat_names_condition_and_warnings() -> None:
    fleet = Fleet(PoolSettings(weights=PRESETS["weighted"]))

    def beat(*, draining: bool = False) -> Condition:
        return report(
            fleet,
            lambda pool: Demand(recent=Recent()),
            cluster=ClusterId("eu-1"),
            epoch=1,
            seq=2,
            draining=draining,
            warnings=fleet.warnings(),
            now_s=START_S,
        ).condition

    assert beat() is Condition.WARMING
    fleet.apply([spec("a")], START_S)
    assert beat() is Condition.WARMING
    hear_all(fleet.pools[MODEL], START_S)
    assert beat() is Condition.SERVING
    assert beat(draining=True) is Condition.DRAINING


def test_adapters_resident_anywhere_are_resident_in_the_pool() -> None:
    pool = make_pool()
    tuned, other = ModelId("tuned"), ModelId("other")
    pool.add(spec("a", adapters_resident=frozenset({tuned}), adapters_loadable=frozenset({other})))
    hear_all(pool, START_S)
    state = state_of(pool)
    assert (state.adapters_resident, state.adapters_loadable) == ({tuned}, {other})
