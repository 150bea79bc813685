"""What the pool believes of its pods: load, rates, freshness, restarts, and the ladder down to round robin."""

import pytest

from gir.model.request import Usage
from tests.support.agent_pool import START_S, hear_all, make_pool, named, signals, spec
from tier1_agent.picker import PickRequest, pick
from tier1_agent.pods import Pod, PodState
from tier1_agent.pool import INFINITE, Mode, Pool


def serve(
    pool: Pool, pod: Pod, at_s: float, *, tokens: float, ttft_s: float, output: int = 11, total_s: float = 1.0
) -> None:
    """One streamed request from dispatch to end."""
    ticket = pool.dispatched(pod, at_s, tokens=tokens, prompt_bytes=int(tokens * 4))
    pool.first_token(ticket, at_s + ttft_s)
    usage = Usage(prompt_tokens=int(tokens), completion_tokens=output)
    pool.finished(ticket, at_s + total_s, ok=True, usage=usage)


def test_rates_are_learned_from_first_tokens_and_ends() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    for index in range(10):
        serve(pool, pod, START_S + index * 2, tokens=1_000.0, ttft_s=0.2)
    assert pool.traffic.prefill_s(pod) == pytest.approx(2e-4)
    assert pod.token_gap_s.value == pytest.approx(0.08)
    assert pool.traffic.bytes_per_token.value == pytest.approx(4.0)
    assert pool.traffic.hold_s(pod) == pytest.approx(0.2 + 11 * 0.08, rel=0.05)


def test_a_queue_of_prompts_is_measured_one_by_one() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    first = pool.dispatched(pod, START_S, tokens=1_000.0)
    second = pool.dispatched(pod, START_S, tokens=1_000.0)
    pool.first_token(first, START_S + 0.1)
    pool.first_token(second, START_S + 0.2)
    assert pool.traffic.prefill_s(pod) == pytest.approx(1e-4)


def test_waiting_for_a_slot_is_not_mistaken_for_slow_prefill() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    for _ in range(8):
        serve(pool, pod, START_S, tokens=1_000.0, ttft_s=0.1)
    running = [pool.dispatched(pod, START_S + 10, tokens=1_000.0) for _ in range(8)]
    late = pool.dispatched(pod, START_S + 10, tokens=1_000.0)
    for index, ticket in enumerate(running):
        pool.first_token(ticket, START_S + 10.1 + index * 0.1)
    pool.first_token(late, START_S + 30)
    assert pool.traffic.prefill_s(pod) == pytest.approx(1e-4, rel=0.01)


def test_a_finished_ticket_stays_finished() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    ticket = pool.dispatched(pod, START_S, tokens=100.0)
    for _ in range(3):
        pool.finished(ticket, START_S + 1, ok=False)
    assert pod.in_flight == 0
    assert pod.pending_tokens == 0.0


def test_own_requests_count_at_once_and_only_what_is_beyond_them_is_foreign() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    tickets = [pool.dispatched(pod, START_S, tokens=10.0) for _ in range(3)]
    assert pod.load == 3
    pool.scraped(pod, signals(running=3), START_S + 0.25)
    assert pod.load == 3
    for index in range(20):
        pool.scraped(pod, signals(running=5), START_S + 0.5 + index)
    assert pod.load == pytest.approx(5.0, abs=0.1)
    for ticket in tickets:
        pool.finished(ticket, START_S + 30, ok=True)
    assert pod.load == pytest.approx(2.0, abs=0.1)


def test_what_ended_while_the_scrape_was_on_its_way_is_not_somebody_elses() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    pool.scraped(pod, signals(running=4), START_S + 1, own_at_start=4)
    assert pod.foreign == 0.0


def test_a_pod_not_heard_from_for_three_periods_gets_no_new_work() -> None:
    pool = make_pool("a", "b")
    a, b = pool.pods
    pool.scraped(b, signals(), START_S + 1.0)
    pool.tick(START_S + 1.0)
    assert a.state is PodState.STALE
    assert pool.static_s[a.bit] == INFINITE
    picked = pick(pool, PickRequest(tokens=10.0), now_s=START_S + 1.0, draw=0.0)
    assert picked is not None
    assert picked.pod is b


def test_three_failed_scrapes_in_a_row_exclude_a_pod_without_waiting_for_its_age() -> None:
    pool = make_pool("a", "b")
    pod = named(pool, "a")
    for _ in range(2):
        pool.missed(pod, START_S)
    assert pod.state is PodState.READY
    pool.missed(pod, START_S)
    assert pod.state is PodState.STALE


def test_a_stale_pod_comes_back_after_two_good_scrapes_and_starts_slowly() -> None:
    pool = make_pool("a", "b", ramp_s=10.0)
    pod = named(pool, "a")
    for _ in range(3):
        pool.missed(pod, START_S)
    pool.scraped(pod, signals(), START_S + 2.0)
    assert pod.state is PodState.STALE
    pool.scraped(pod, signals(), START_S + 2.25)
    assert pod.state is PodState.READY
    assert pod.ramp(START_S + 2.25, 10.0) == 0.1
    assert pod.ramp(START_S + 7.25, 10.0) == 0.5
    hear_all(pool, START_S + 12.25)
    assert pod.ramp_from_s is None


def test_everything_stale_degrades_to_own_counts_and_then_to_round_robin() -> None:
    pool = make_pool("a", "b")
    assert pool.mode is Mode.FULL
    serve(pool, named(pool, "a"), START_S, tokens=100.0, ttft_s=0.1)
    pool.tick(START_S + 5.0)
    assert pool.mode is Mode.IN_FLIGHT
    assert pick(pool, PickRequest(tokens=10.0), now_s=START_S + 5.0, draw=0.0) is not None
    pool.tick(START_S + 20.0)
    assert pool.mode is Mode.ROUND_ROBIN
    picked = [pick(pool, PickRequest(tokens=10.0), now_s=START_S + 20.0, draw=0.0) for _ in range(4)]
    assert [one.pod.spec.id for one in picked if one is not None] == ["a", "b", "a", "b"]


def test_the_last_pod_of_a_pool_stays_pickable_whatever_it_does() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    for _ in range(10):
        pool.fault(pod, START_S)
        assert pick(pool, PickRequest(tokens=10.0), now_s=START_S, draw=0.0) is not None
    for _ in range(10):
        pool.missed(pod, START_S)
        assert pick(pool, PickRequest(tokens=10.0), now_s=START_S, draw=0.0) is not None


def test_a_pod_whose_answers_fail_is_barred_and_each_relapse_doubles_the_pause() -> None:
    pool = make_pool("a", "b")
    pod = named(pool, "a")
    for _ in range(3):
        pool.fault(pod, START_S)
    assert pod.state is PodState.BARRED
    hear_all(pool, START_S + 0.5)
    assert pod.state is PodState.BARRED
    hear_all(pool, START_S + 1.0)
    assert pod.state is PodState.READY
    assert pod.ramp_from_s is not None
    pool.fault(pod, START_S + 1.0)
    hear_all(pool, START_S + 2.5)
    assert pod.state is PodState.BARRED
    hear_all(pool, START_S + 3.0)
    assert pod.state is PodState.READY


def test_one_good_answer_forgives_earlier_faults() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    for _ in range(2):
        pool.fault(pod, START_S)
    serve(pool, pod, START_S, tokens=10.0, ttft_s=0.1)
    pool.fault(pod, START_S)
    assert pod.state is PodState.READY


def test_an_engine_restart_is_a_new_incarnation_with_old_rates_and_an_empty_cache() -> None:
    pool = make_pool("a")
    old = named(pool, "a")
    pool.scraped(old, signals(prompt_tokens_total=500.0), START_S + 0.25)
    serve(pool, old, START_S, tokens=1_000.0, ttft_s=0.2)
    ticket = pool.dispatched(old, START_S + 2, tokens=1_000.0, hashes=(1, 2, 3))
    new = pool.scraped(old, signals(prompt_tokens_total=0.0), START_S + 3)
    assert new is not old
    assert (new.incarnation, new.in_flight) == (1, 0)
    assert pool.traffic.prefill_s(new) == pytest.approx(2e-4)
    assert pool.index.match((1, 2, 3)) == {}
    pool.finished(ticket, START_S + 4, ok=False)
    assert (old.in_flight, new.in_flight) == (0, 0)


def test_the_model_of_a_cache_is_as_large_as_the_cache_whatever_the_engines_own_block() -> None:
    """The engine counts blocks of 16 tokens, the index blocks of its own: their numbers must not be mixed up."""
    pool = make_pool("a")
    pod = named(pool, "a")
    pool.scraped(pod, signals(kv_tokens_total=16_000), START_S + 0.25)
    assert pool.index.capacity(pod.bit) == pytest.approx(16_000 / pool.traffic.tokens_per_block, abs=1)
    assert pool.traffic.tokens_per_block > 64
    pool.scraped(pod, signals(kv_tokens_total=32_000), START_S + 0.5)
    assert pool.index.capacity(pod.bit) == pytest.approx(32_000 / pool.traffic.tokens_per_block, abs=1)


def test_a_request_that_never_reached_its_prefill_leaves_no_trace_in_the_index() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    pool.index.learn(pod.bit, (1, 2), START_S)
    ticket = pool.dispatched(pod, START_S, tokens=400.0, hashes=(1, 2, 3, 4), blocks_cached=2)
    assert pool.index.match((1, 2, 3, 4)) == {pod.bit: 4}
    pool.finished(ticket, START_S + 1, ok=False)
    assert pool.index.match((1, 2, 3, 4)) == {pod.bit: 2}


def test_zero_cached_tokens_are_believed_only_from_pods_that_ever_report_some() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")

    def serve_cached(cached: int) -> None:
        ticket = pool.dispatched(pod, START_S, tokens=2_560.0, hashes=tuple(range(20)), blocks_cached=20)
        pool.finished(
            ticket, START_S, ok=True, usage=Usage(prompt_tokens=2_560, completion_tokens=5, cached_tokens=cached)
        )

    pool.index.set_capacity(pod.bit, 1_000)
    serve_cached(0)
    assert pool.index.capacity(pod.bit) == 1_000
    serve_cached(2_560)
    serve_cached(0)
    assert pool.index.capacity(pod.bit) < 1_000


def test_requests_that_do_not_stream_leave_the_backlog_when_their_time_has_come() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    pool.dispatched(pod, START_S, tokens=5_000.0, streams=False)
    assert pod.pending_tokens == 5_000.0
    hear_all(pool, START_S + 5.0)
    assert pod.pending_tokens == 0.0
    assert pod.in_flight == 1


def test_a_pod_with_one_unlucky_first_request_gets_a_second_one() -> None:
    pool = make_pool("a", "b", "c")
    for name in ("a", "b", "c"):
        for index in range(10 if name != "c" else 1):
            serve(pool, named(pool, name), START_S + index * 2, tokens=1_000.0, ttft_s=0.1 if name != "c" else 0.2)
    hear_all(pool, START_S + 30)
    chosen = []
    for _ in range(3):
        choice = pick(pool, PickRequest(tokens=1_000.0), now_s=START_S + 30, draw=0.0)
        assert choice is not None
        pool.dispatched(choice.pod, START_S + 30, tokens=1_000.0)
        chosen.append(choice.pod.spec.id)
    assert sorted(chosen) == ["a", "b", "c"]


def test_undeclared_slots_are_learned_from_the_engine() -> None:
    pool = make_pool()
    pod = pool.add(spec("a", slots=None))
    for index in range(30):
        pool.scraped(pod, signals(running=20), START_S + index * 0.25)
    assert pod.slots >= 20
    for index in range(6):
        pool.scraped(pod, signals(running=24, waiting=3), START_S + 10 + index * 0.25)
    assert pod.slots == 24


def test_without_metrics_slots_are_learned_from_requests_that_began_at_once() -> None:
    pool = make_pool()
    pod = pool.add(spec("a", slots=None))
    pool.scraped(pod, None, START_S)
    serve(pool, pod, START_S, tokens=1_000.0, ttft_s=0.1)
    for index in range(12):
        ticket = pool.dispatched(pod, START_S + 10 + index, tokens=1_000.0)
        pool.first_token(ticket, START_S + 10 + index + 0.1)
    assert pod.slots == 12
    late = pool.dispatched(pod, START_S + 30, tokens=1_000.0)
    pool.first_token(late, START_S + 40)
    assert pod.slots == 12


def test_a_queue_behind_one_long_step_is_no_limit_on_slots() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    for running in (1, 3, 5):
        pool.scraped(pod, signals(running=running, waiting=4, kv_usage=0.2), START_S)
    assert pod.slots == 8


def test_a_pod_is_placed_where_one_has_gone() -> None:
    pool = make_pool("a", "b")
    pool.remove(named(pool, "a"), START_S)
    assert pool.add(spec("c")).bit == 0
    assert len(pool.static_s) == 2


def test_counters_teach_rates_where_nothing_streams() -> None:
    pool = make_pool("a")
    pod = named(pool, "a")
    pool.scraped(pod, signals(prefill_tokens_sum=0.0, prefill_s_sum=0.0, token_gaps=0.0, token_gap_s_sum=0.0), START_S)
    pool.scraped(
        pod, signals(prefill_tokens_sum=900.0, prefill_s_sum=0.3, token_gaps=10.0, token_gap_s_sum=0.2), START_S
    )
    assert pool.traffic.prefill_s(pod) == pytest.approx(0.3 / 900)
    assert pod.token_gap_s.value == pytest.approx(0.02)
