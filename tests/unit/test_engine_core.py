"""Continuous batching in virtual time: who runs, when tokens come, what memory does."""

import itertools
import math

import pytest

from chaos.engine.core import Engine, EngineConfig, EngineRequest, TokenEvent
from chaos.engine.gpus import GpuProfile

GPU = GpuProfile(
    name="even",
    prefill_floor_s=0.0,
    prefill_fixed_s=0.0,
    prefill_token_s=0.001,
    decode_fixed_s=0.010,
    decode_sequence_s=0.0,
)
"""1,000 prompt tokens a second; 10 ms a token whatever the batch."""


def engine(**settings: object) -> Engine:
    return Engine(EngineConfig(gpu=GPU, **settings))  # type: ignore[arg-type]


def run(machine: Engine, until_s: float = math.inf) -> list[TokenEvent]:
    """Follow the machine's own timetable, as a server's timer does."""
    events: list[TokenEvent] = []
    while (at_s := machine.next_event_s()) <= until_s and at_s < math.inf:
        events += machine.advance(at_s)
    return events


def test_first_token_comes_after_the_prefill_and_the_rest_step_by_step() -> None:
    machine = engine()
    machine.submit(EngineRequest(prompt_tokens=100, output_tokens=3), 0.0)
    events = run(machine)
    assert [round(e.at_s, 6) for e in events] == [0.1, 0.11, 0.12]
    assert [(e.tokens, e.total, e.first, e.finished) for e in events] == [
        (1, 1, True, False),
        (1, 2, False, False),
        (1, 3, False, True),
    ]
    assert machine.next_event_s() == math.inf


def test_embeddings_end_with_their_prefill() -> None:
    machine = engine()
    machine.submit(EngineRequest(prompt_tokens=50, output_tokens=0), 1.0)
    (event,) = run(machine)
    assert (event.at_s, event.tokens, event.first, event.finished) == (pytest.approx(1.05), 0, True, True)


def test_a_newcomer_joins_after_the_step_in_progress() -> None:
    machine = engine(each_token=False)
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=100), 0.0)
    machine.submit(EngineRequest(prompt_tokens=20, output_tokens=1), 0.125)
    events = run(machine)
    late = next(e for e in events if e.id == 2)
    assert late.at_s == pytest.approx(0.130 + 0.021)  # 20 prompt tokens beside one decoding sequence


def test_whole_prefill_stops_everybodys_decoding() -> None:
    gaps = {}
    for chunked in (True, False):
        machine = engine(chunked_prefill=chunked, step_tokens_max=50)
        machine.submit(EngineRequest(prompt_tokens=10, output_tokens=50), 0.0)
        events = run(machine, 0.1)
        machine.submit(EngineRequest(prompt_tokens=1_000, output_tokens=1), 0.1)
        times = [e.at_s for e in events + run(machine) if e.id == 1]
        gaps[chunked] = max(b - a for a, b in itertools.pairwise(times))
    assert gaps[True] == pytest.approx(0.05)
    assert gaps[False] >= 1.0


def test_more_requests_than_slots_wait_in_order() -> None:
    machine = engine(slots_max=2)
    for _ in range(4):
        machine.submit(EngineRequest(prompt_tokens=10, output_tokens=2), 0.0)
    metrics = machine.metrics(0.01)  # the second joined when the first one's step was over
    assert (metrics.running, metrics.waiting) == (2, 2)
    assert [e.id for e in run(machine) if e.finished] == [1, 2, 3, 4]


def test_a_cached_prefix_shortens_the_prefill_and_is_counted() -> None:
    machine = engine(block_tokens=16)
    prompt = EngineRequest(prompt_tokens=100, output_tokens=1, block_hashes=(1, 2, 3, 4, 5, 6))
    machine.submit(prompt, 0.0)
    run(machine)
    machine.submit(prompt, 10.0)
    (event,) = run(machine)
    assert event.cached_tokens == 96
    assert event.at_s == pytest.approx(10.0 + 0.004)
    counters = machine.metrics(20.0).counters
    assert (counters.prompt_tokens, counters.cached_tokens) == (200, 96)


def test_a_wholly_cached_prompt_still_computes_its_last_token() -> None:
    machine = engine(block_tokens=16)
    prompt = EngineRequest(prompt_tokens=32, output_tokens=1, block_hashes=(1, 2))
    for at_s in (0.0, 1.0):
        machine.submit(prompt, at_s)
        events = run(machine)
    assert events[0].cached_tokens == 31


def test_without_prefix_cache_nothing_is_shared() -> None:
    machine = engine(prefix_cache=False)
    prompt = EngineRequest(prompt_tokens=32, output_tokens=1, block_hashes=(1, 2))
    for at_s in (0.0, 1.0):
        machine.submit(prompt, at_s)
        events = run(machine)
    assert events[0].cached_tokens == 0


def test_full_memory_makes_prompts_wait() -> None:
    machine = engine(kv_blocks=10, block_tokens=10)
    machine.submit(EngineRequest(prompt_tokens=60, output_tokens=5), 0.0)
    machine.submit(EngineRequest(prompt_tokens=60, output_tokens=5), 0.0)
    assert machine.metrics(0.0).waiting == 1
    assert [e.id for e in run(machine) if e.finished] == [1, 2]


def test_growing_past_memory_preempts_the_youngest_who_still_finishes() -> None:
    machine = engine(kv_blocks=10, block_tokens=10)
    machine.submit(EngineRequest(prompt_tokens=20, output_tokens=60), 0.0)
    machine.submit(EngineRequest(prompt_tokens=20, output_tokens=60), 0.0)
    events = run(machine)
    assert machine.metrics(100.0).counters.preempted >= 1
    assert sum(e.tokens for e in events if e.id == 2) == 60
    assert [e.id for e in events if e.finished] == [1, 2]
    assert machine.metrics(100.0).kv_blocks_used == 0


def test_a_cancelled_request_frees_its_slot_at_once() -> None:
    machine = engine(slots_max=1)
    first = machine.submit(EngineRequest(prompt_tokens=10, output_tokens=1_000), 0.0)
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=1), 0.0)
    run(machine, 0.05)
    assert machine.cancel(first, 0.055)
    assert not machine.cancel(first, 0.055)
    (event,) = run(machine)
    assert event.id == 2
    assert event.at_s == pytest.approx(0.065)
    assert machine.metrics(1.0).counters.cancelled == 1


def test_a_queued_request_can_be_cancelled() -> None:
    machine = engine(slots_max=1)
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=3), 0.0)
    queued = machine.submit(EngineRequest(prompt_tokens=10, output_tokens=3), 0.0)
    assert machine.cancel(queued, 0.0)
    assert {e.id for e in run(machine)} == {1}


def test_an_absent_adapter_loads_while_others_run() -> None:
    machine = engine(adapter_slots=1, adapter_load_s=0.5)
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=1, adapter="sql"), 0.0)
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=1), 0.0)
    assert machine.metrics(0.0).adapters_waiting == ("sql",)
    base, adapted = run(machine)
    assert (base.id, base.at_s) == (2, pytest.approx(0.01))
    assert (adapted.id, adapted.at_s) == (1, pytest.approx(0.51))
    assert machine.metrics(1.0).adapters_resident == ("sql",)


def test_more_adapters_than_slots_take_turns() -> None:
    machine = engine(adapter_slots=1, adapter_load_s=0.1)
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=5, adapter="a"), 0.0)
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=5, adapter="b"), 0.0)
    ends = {e.id: e.at_s for e in run(machine) if e.finished}
    assert ends[2] >= ends[1] + 0.1


def test_a_slow_engine_stretches_first_tokens_and_gaps_separately() -> None:
    machine = engine()
    machine.set_pace(0.0, prefill=10.0, decode=2.0)
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=2), 0.0)
    assert [round(e.at_s, 6) for e in run(machine)] == [0.1, 0.12]


def test_a_restart_forgets_everything() -> None:
    machine = engine()
    machine.submit(EngineRequest(prompt_tokens=64, output_tokens=9, block_hashes=(1, 2, 3, 4)), 0.0)
    run(machine, 0.07)
    assert machine.restart(0.07) == [1]
    metrics = machine.metrics(0.07)
    assert (metrics.running, metrics.counters.generated_tokens, machine.next_event_s()) == (0, 0, math.inf)
    machine.submit(EngineRequest(prompt_tokens=64, output_tokens=1, block_hashes=(1, 2, 3, 4)), 1.0)
    assert run(machine)[0].cached_tokens == 0


def test_what_could_never_fit_is_refused() -> None:
    machine = engine(kv_blocks=4, block_tokens=10)
    with pytest.raises(ValueError, match="prompt_tokens \\+ output_tokens is 41"):
        machine.submit(EngineRequest(prompt_tokens=40, output_tokens=1), 0.0)
    with pytest.raises(ValueError, match="set adapter_slots"):
        machine.submit(EngineRequest(prompt_tokens=1, output_tokens=1, adapter="a"), 0.0)


def test_late_calls_lose_no_token_and_keep_true_times() -> None:
    machine = engine()
    machine.submit(EngineRequest(prompt_tokens=10, output_tokens=10), 0.0)
    events = machine.advance(5.0)
    assert sum(e.tokens for e in events) == 10
    assert events[-1].at_s == pytest.approx(0.1)
