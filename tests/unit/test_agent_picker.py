"""Which pod is picked, and why: load, speed, reuse, adapters, sessions, caps, and what is filtered."""

from collections import Counter

import pytest

from gir.model.ids import ModelId
from tests.support.agent_pool import MODEL, START_S, hear_all, make_pool, named, signals, spec
from tier1_agent.explain import explain
from tier1_agent.picker import Pick, PickRequest, pick
from tier1_agent.pool import Pool, PoolSettings
from tier1_agent.scorers import PRESETS, Weights, kv_pressure

PLAIN = PickRequest(tokens=1_000.0)
LONG = tuple(range(24))


def picked(
    pool: Pool, request: PickRequest = PLAIN, *, draw: float = 0.0, at_s: float = START_S, **more: object
) -> Pick:
    choice = pick(pool, request, now_s=at_s, draw=draw, **more)  # type: ignore[arg-type]
    assert choice is not None
    return choice


def teach(pool: Pool, name: str, *, per_token_s: float) -> None:
    """Two finished prompts, long enough ago to be out of the way."""
    pod = named(pool, name)
    for at_s, tokens in ((START_S - 60, 200.0), (START_S - 40, 2_000.0)):
        ticket = pool.dispatched(pod, at_s, tokens=tokens)
        pool.first_token(ticket, at_s + tokens * per_token_s)
        pool.finished(ticket, at_s + 10, ok=True)


def test_equals_are_drawn_by_lot() -> None:
    pool = make_pool("a", "b", "c", "d")
    chosen = Counter(picked(pool, draw=draw / 100).pod.spec.id for draw in range(100))
    assert set(chosen.values()) == {25}


def test_a_dispatch_counts_before_any_scrape_shows_it() -> None:
    pool = make_pool("a", "b", "c")
    places = []
    for _ in range(3):
        choice = picked(pool)
        pool.dispatched(choice.pod, START_S, tokens=1_000.0)
        places.append(choice.pod.spec.id)
    assert sorted(places) == ["a", "b", "c"]


def test_the_faster_pod_takes_more_until_its_queue_costs_more() -> None:
    pool = make_pool("fast", "slow")
    teach(pool, "fast", per_token_s=1e-4)
    teach(pool, "slow", per_token_s=7e-4)
    hear_all(pool, START_S)
    chosen = []
    for _ in range(12):
        choice = picked(pool)
        pool.dispatched(choice.pod, START_S, tokens=1_000.0)
        chosen.append(choice.pod.spec.id)
    assert chosen[:4] == ["fast"] * 4
    assert "slow" in chosen


def test_a_cached_prefix_wins_over_an_idle_pod() -> None:
    pool = make_pool("a", "b", "c")
    warm = named(pool, "b")
    pool.index.learn(warm.bit, LONG, START_S)
    choice = picked(pool, PickRequest(tokens=3_200.0, hashes=LONG))
    assert (choice.pod, choice.reason, choice.blocks_cached) == (warm, "prefix", 24)


def test_a_deep_queue_outweighs_a_cached_prefix() -> None:
    pool = make_pool("a", "b")
    warm = named(pool, "b")
    pool.index.learn(warm.bit, LONG, START_S)
    for _ in range(30):
        pool.dispatched(warm, START_S, tokens=3_000.0)
    choice = picked(pool, PickRequest(tokens=3_200.0, hashes=LONG))
    assert (choice.pod.spec.id, choice.reason) == ("a", "spill")


def test_a_preferred_pod_at_its_cap_spills() -> None:
    pool = make_pool("a", "b", concurrent_max_per_pod=2)
    warm = named(pool, "b")
    pool.index.learn(warm.bit, LONG, START_S)
    request = PickRequest(tokens=3_200.0, hashes=LONG)
    for _ in range(2):
        assert picked(pool, request).pod is warm
        pool.dispatched(warm, START_S, tokens=0.0, hashes=LONG, blocks_cached=24)
    assert picked(pool, request).pod.spec.id == "a"


def test_nobody_is_picked_when_all_are_at_their_cap_or_tried() -> None:
    pool = make_pool("a", "b", concurrent_max_per_pod=1)
    pool.dispatched(named(pool, "a"), START_S, tokens=1.0)
    assert pick(pool, PLAIN, now_s=START_S, draw=0.0, tried={1}) is None
    assert pick(make_pool(), PLAIN, now_s=START_S, draw=0.0) is None


def test_a_resident_adapter_comes_first_and_else_the_pod_with_most_room() -> None:
    pool = make_pool()
    adapter = ModelId("tuned")
    pool.add(spec("idle", adapters_loadable=frozenset({adapter})))
    pool.add(spec("busy", adapters_loadable=frozenset({adapter})))
    pool.add(spec("resident", adapters_resident=frozenset({adapter})))
    pool.add(spec("never"))
    hear_all(pool, START_S)
    for name in ("busy", "resident", "resident"):
        pool.dispatched(named(pool, name), START_S, tokens=2_000.0)
    request = PickRequest(tokens=1_000.0, adapter=adapter)
    assert (picked(pool, request).pod.spec.id, picked(pool, request).reason) == ("resident", "adapter")
    pool.remove(named(pool, "resident"), START_S)
    assert picked(pool, request).pod.spec.id == "idle"
    pool.remove(named(pool, "idle"), START_S)
    pool.remove(named(pool, "busy"), START_S)
    assert pick(pool, request, now_s=START_S, draw=0.0) is None


def test_a_holder_of_the_adapter_comes_first_however_idle_another_pod_is() -> None:
    """While it may be picked: a pod that could load the adapter is for when no holder may."""
    pool = make_pool()
    adapter = ModelId("tuned")
    pool.add(spec("idle", adapters_loadable=frozenset({adapter})))
    pool.add(spec("holder", adapters_resident=frozenset({adapter})))
    hear_all(pool, START_S)
    for _ in range(7):
        pool.dispatched(named(pool, "holder"), START_S, tokens=20_000.0)
    request = PickRequest(tokens=1_000.0, adapter=adapter)
    assert picked(pool, request).pod.spec.id == "holder"


@pytest.mark.parametrize("preset", ["weighted", "roundrobin"])
def test_a_retry_goes_to_a_pod_that_can_load_the_adapter_when_its_holders_have_been_tried(preset: str) -> None:
    pool = make_pool(preset=preset)
    adapter = ModelId("tuned")
    pool.add(spec("holder", adapters_resident=frozenset({adapter})))
    pool.add(spec("loads", adapters_loadable=frozenset({adapter})))
    pool.add(spec("never"))
    hear_all(pool, START_S)
    tried = [named(pool, "holder").bit]
    for _ in range(4):
        again = pick(pool, PickRequest(tokens=100.0, adapter=adapter), now_s=START_S, draw=0.0, tried=tried)
        assert again is not None
        assert again.pod.spec.id == "loads"


def test_an_adapter_in_use_is_known_to_be_resident() -> None:
    pool = make_pool("a", "b")
    adapter = ModelId("tuned")
    for name in ("a", "b"):
        pool.pods[named(pool, name).bit].spec = spec(name, adapters_loadable=frozenset({adapter}))
    pool.dispatched(named(pool, "b"), START_S, tokens=3_000.0, adapter=adapter)
    assert picked(pool, PickRequest(tokens=100.0, adapter=adapter)).pod.spec.id == "b"


def test_a_prompt_goes_where_its_context_fits_and_nowhere_else_if_it_fits_nowhere() -> None:
    pool = make_pool()
    pool.add(spec("short", context_tokens_max=4_096))
    pool.add(spec("long", context_tokens_max=32_768))
    hear_all(pool, START_S)
    fits = PickRequest(tokens=8_000.0, context_tokens=9_000)
    assert {picked(pool, fits, draw=draw / 10).pod.spec.id for draw in range(10)} == {"long"}
    # The engine's own 400 says better than we could what is wrong.
    assert picked(pool, PickRequest(tokens=90_000.0, context_tokens=91_000)).pod.spec.id in {"short", "long"}


def test_a_session_stays_home_until_home_is_gone() -> None:
    pool = make_pool("a", "b", "c", "d", preset="session")
    request = PickRequest(tokens=500.0, session=b"user-7")
    home = picked(pool, request).pod
    for draw in range(10):
        pool.dispatched(home, START_S, tokens=500.0)
        assert picked(pool, request, draw=draw / 10).pod is home
    pool.remove(home, START_S)
    assert picked(pool, request).pod is not home


def test_round_robin_takes_turns_whatever_the_load() -> None:
    pool = make_pool("a", "b", "c", preset="roundrobin")
    pool.dispatched(named(pool, "a"), START_S, tokens=50_000.0)
    assert [picked(pool).pod.spec.id for _ in range(4)] == ["a", "b", "c", "a"]


def test_kvaware_avoids_full_memory() -> None:
    pool = make_pool("full", "empty", preset="kvaware")
    pool.scraped(named(pool, "full"), signals(kv_usage=0.9, kv_tokens_total=10_000), START_S)
    assert {picked(pool, draw=draw / 10).pod.spec.id for draw in range(10)} == {"empty"}


def test_unknown_kv_usage_is_neither_idle_nor_saturated() -> None:
    assert kv_pressure(0.0) < kv_pressure(None) < kv_pressure(0.9)
    assert kv_pressure(1.7) == kv_pressure(1.0)


def test_prefixaware_holds_on_to_reuse_longer_than_weighted() -> None:
    def spills_after(preset: str) -> int:
        pool = make_pool("a", "b", preset=preset)
        pool.index.learn(0, LONG, START_S)
        for count in range(200):
            if picked(pool, PickRequest(tokens=3_200.0, hashes=LONG)).pod.bit:
                return count
            pool.dispatched(pool.pods[0], START_S, tokens=300.0)
        return 200

    assert spills_after("weighted") < spills_after("prefixaware")


def test_a_returning_pod_gets_a_tenth_of_its_turns_at_first() -> None:
    pool = make_pool("a", "b", ramp_s=10.0)
    named(pool, "a").ramp_from_s = START_S
    chosen = Counter(picked(pool, draw=draw / 1_000).pod.spec.id for draw in range(1_000))
    assert 20 <= chosen["a"] <= 90


def test_a_slow_starter_is_better_than_nobody() -> None:
    pool = make_pool("a", "b")
    for pod in pool.pods:
        pod.ramp_from_s = START_S
    assert picked(pool, draw=0.999).reason == "slow_start"


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "roundrobin"])
def test_the_terms_of_an_explanation_add_up_to_what_the_picker_compared(preset: str) -> None:
    pool = make_pool("a", "b", "c", preset=preset)
    pool.scraped(named(pool, "b"), signals(kv_usage=0.7, kv_tokens_total=40_000, running=9, waiting=2), START_S)
    pool.index.learn(0, LONG[:9], START_S)
    for name in ("a", "a", "c"):
        pool.dispatched(named(pool, name), START_S, tokens=700.0)
    pool.tick(START_S + 0.1)
    request = PickRequest(tokens=3_200.0, hashes=LONG, session=b"s")
    rows = explain(pool, request, START_S + 0.2)
    assert [row.pod for row in rows] == sorted(
        (row.pod for row in rows), key=lambda id_: [r.cost_s for r in rows if r.pod == id_]
    )
    assert rows[0].pod == picked(pool, request, at_s=START_S + 0.2).pod.spec.id
    for row in rows:
        assert row.cost_s == pytest.approx(sum(seconds for _, seconds in row.terms))


def test_an_explanation_says_why_a_pod_was_left_out() -> None:
    pool = make_pool("a", "b", "c", concurrent_max_per_pod=1)
    pool.dispatched(named(pool, "b"), START_S, tokens=1.0)
    for _ in range(3):
        pool.missed(named(pool, "c"), START_S)
    reasons = {row.pod: row.removed for row in explain(pool, PLAIN, START_S)}
    assert reasons == {"a": "", "b": "1 in flight, cap 1", "c": "stale"}


@pytest.mark.parametrize("field", [name for name in Weights.__struct_fields__ if name != "lora_affinity"])
def test_each_weight_changes_a_choice(field: str) -> None:
    """With only one scorer on, the pod it speaks against is left alone; with all off, chance decides."""

    def chosen(weights: Weights) -> set[str]:
        pool = Pool(MODEL, PoolSettings(weights=weights))
        for name in ("bad", "good"):
            pool.add(spec(name))
        hear_all(pool, START_S)
        bad, good = pool.pods
        pool.scraped(bad, signals(kv_usage=0.9, kv_tokens_total=8_000, running=8, waiting=6), START_S)
        pool.scraped(bad, signals(kv_usage=0.9, kv_tokens_total=8_000, running=8, waiting=6), START_S)
        pool.index.set_capacity(bad.bit, 2)
        pool.index.learn(bad.bit, (901, 902), START_S)
        pool.index.learn(good.bit, LONG[:12], START_S)
        for _ in range(9):
            pool.dispatched(bad, START_S, tokens=2_000.0)
        pool.traffic.reuse.observe(0.9)
        pool.tick(START_S)
        session = next(key for key in (b"%d" % n for n in range(99)) if _home(pool, key) == "good")
        request = PickRequest(tokens=3_000.0, hashes=LONG, session=session)
        return {picked(pool, request, draw=draw / 10).pod.spec.id for draw in range(10)}

    assert chosen(Weights()) == {"bad", "good"}
    assert chosen(Weights(**{field: 1.0})) == {"good"}


def _home(pool: Pool, session: bytes) -> str:
    alone = make_pool(*(pod.spec.id for pod in pool.pods), preset="session")
    return picked(alone, PickRequest(tokens=0.0, session=session)).pod.spec.id
