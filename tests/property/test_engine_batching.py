"""Whatever the arrivals, cancellations and limits: every request ends, memory is given back, time is one."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.engine.core import Engine, EngineConfig, EngineRequest
from chaos.engine.gpus import profile

GPU = profile("llama2-70b/h100-80gb/tp8")

requests = st.builds(
    lambda family, blocks, rest, output, adapter: EngineRequest(
        prompt_tokens=blocks * 16 + rest,
        output_tokens=output,
        block_hashes=tuple(family * 1_000 + block for block in range(blocks)),
        adapter=adapter,
    ),
    st.integers(0, 3),
    st.integers(0, 20),
    st.integers(1, 15),
    st.integers(0, 120),
    st.sampled_from([None, None, "a", "b", "c"]),
)
arrivals = st.lists(
    st.tuples(st.floats(0.0, 0.5), requests, st.one_of(st.none(), st.floats(0.001, 2.0))), min_size=1, max_size=25
)
configs = st.builds(
    lambda slots, blocks, budget, chunked, adapters: {
        "gpu": GPU, "slots_max": slots, "kv_blocks": blocks, "step_tokens_max": budget, "chunked_prefill": chunked,
        "adapter_slots": adapters, "adapter_load_s": 0.3,
    },
    st.integers(1, 8), st.integers(32, 120), st.integers(16, 600), st.booleans(), st.integers(1, 3),
)  # fmt: skip

Plan = list[tuple[float, EngineRequest, float | None]]


def play(config: EngineConfig, plan: Plan) -> tuple[Engine, dict[int, float], dict[int, float], dict[int, int], int]:
    """Run a plan to its end: the engine, first-token and end times, tokens by request, and how many were cancelled."""
    engine = Engine(config)
    agenda: list[tuple[float, int, EngineRequest | None]] = []
    at_s = 0.0
    for index, (gap_s, request, cancel_after_s) in enumerate(plan):
        at_s += gap_s
        agenda.append((at_s, index + 1, request))
        if cancel_after_s is not None:
            agenda.append((at_s + cancel_after_s, index + 1, None))
    agenda.sort(key=lambda item: item[0])
    first: dict[int, float] = {}
    end: dict[int, float] = {}
    tokens: dict[int, int] = {}
    ids: dict[int, int] = {}
    cancelled = 0

    def collect(now_s: float) -> None:
        for event in engine.advance(now_s):
            assert event.at_s <= now_s + 1e-6
            tokens[event.id] = tokens.get(event.id, 0) + event.tokens
            assert tokens[event.id] == event.total
            if event.first:
                first[event.id] = event.at_s
            if event.finished:
                assert event.id not in end
                end[event.id] = event.at_s

    for now_s, name, request in agenda:
        while engine.next_event_s() <= now_s:
            collect(engine.next_event_s())
        if request is not None:
            ids[name] = engine.submit(request, now_s)
        elif engine.cancel(ids[name], now_s):
            cancelled += 1
    while engine.next_event_s() < math.inf:
        collect(engine.next_event_s())
    return engine, first, end, tokens, cancelled


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(configs, arrivals)
def test_every_request_ends_once_and_memory_comes_back(config: dict[str, object], plan: Plan) -> None:
    engine, _, end, tokens, cancelled = play(EngineConfig(**config), plan)  # type: ignore[arg-type]
    assert len(end) + cancelled == len(plan)
    for index, (_, request, cancel_after_s) in enumerate(plan):
        if cancel_after_s is None:
            assert tokens[index + 1] == request.output_tokens
    metrics = engine.metrics(1e6)
    assert (metrics.running, metrics.waiting, metrics.kv_blocks_used) == (0, 0, 0)
    assert metrics.adapters_running == ()
    assert metrics.counters.finished == len(end)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(configs, arrivals)
def test_reporting_every_token_changes_no_moment(config: dict[str, object], plan: Plan) -> None:
    plan = [(gap_s, request, None) for gap_s, request, _ in plan]
    roomy = {**config, "kv_blocks": 2_000}  # preemption looks at blocks taken ahead, which differ between the modes
    _, first, end, _, _ = play(EngineConfig(**roomy, each_token=True), plan)  # type: ignore[arg-type]
    _, first_, end_, _, _ = play(EngineConfig(**roomy, each_token=False), plan)  # type: ignore[arg-type]
    assert {k: round(v, 6) for k, v in first.items()} == {k: round(v, 6) for k, v in first_.items()}
    assert {k: round(v, 6) for k, v in end.items()} == {k: round(v, 6) for k, v in end_.items()}
