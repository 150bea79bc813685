"""Laws of picking that hold for any load, and of the prefix index for any history."""

from collections import Counter

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.agent_pool import START_S, make_pool, named, signals, spec
from tier1_agent.picker import PickRequest, costs_of, pick
from tier1_agent.pool import Pool
from tier1_agent.prefix import ENTRY_BYTES, PrefixIndex
from tier1_agent.rates import Line

PRESETS = ["weighted", "prefixaware", "kvaware", "session"]
loads = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.floats(0.0, 1.0)), min_size=2, max_size=6)


def loaded(load: list[tuple[int, int, float]], preset: str) -> Pool:
    pool = make_pool(*(f"p{index}" for index in range(len(load))), preset=preset)
    for pod, (running, waiting, kv) in zip(list(pool.pods), load, strict=True):
        pool.scraped(pod, signals(running=running, waiting=waiting, kv_usage=kv, kv_tokens_total=50_000), START_S)
    pool.tick(START_S)
    return pool


@given(load=loads, preset=st.sampled_from(PRESETS), more=st.integers(1, 20), tokens=st.floats(1.0, 9_000.0))
def test_a_longer_queue_never_makes_a_pod_more_attractive(
    load: list[tuple[int, int, float]], preset: str, more: int, tokens: float
) -> None:
    request = PickRequest(tokens=tokens)
    before = costs_of(loaded(load, preset), request, START_S)[0]
    running, waiting, kv = load[0]
    after = costs_of(loaded([(running, waiting + more, kv), *load[1:]], preset), request, START_S)[0]
    assert after[0] >= before[0] - 1e-9
    assert sum(cost < after[0] - 1e-9 for cost in after[1:]) >= sum(cost < before[0] - 1e-9 for cost in before[1:])


@given(load=loads, preset=st.sampled_from(PRESETS), tokens=st.floats(1.0, 9_000.0), draw=st.floats(0.0, 0.999))
def test_a_dispatch_never_makes_its_pod_cheaper(
    load: list[tuple[int, int, float]], preset: str, tokens: float, draw: float
) -> None:
    pool = loaded(load, preset)
    request = PickRequest(tokens=tokens)
    choice = pick(pool, request, now_s=START_S, draw=draw)
    assert choice is not None
    before = costs_of(pool, request, START_S)[0][choice.pod.bit]
    pool.dispatched(choice.pod, START_S, tokens=tokens)
    assert costs_of(pool, request, START_S)[0][choice.pod.bit] >= before - 1e-9


@given(load=loads, held=st.integers(1, 24), preset=st.sampled_from(["weighted", "prefixaware", "session"]))
def test_holding_more_of_the_prompt_never_costs_more(
    load: list[tuple[int, int, float]], held: int, preset: str
) -> None:
    prompt = tuple(range(1, 26))
    request = PickRequest(tokens=3_200.0, hashes=prompt)
    pool = loaded(load, preset)
    pool.index.learn(0, prompt[:held], START_S)
    less = costs_of(pool, request, START_S)[0][0]
    pool.index.learn(0, prompt[: held + 1], START_S)
    assert costs_of(pool, request, START_S)[0][0] <= less + 1e-9


@settings(max_examples=25)
@given(pods=st.integers(3, 9), leaver=st.integers(0, 8))
def test_losing_a_pod_moves_only_its_own_sessions(pods: int, leaver: int) -> None:
    assume(leaver < pods)
    pool = make_pool(*(f"p{index}" for index in range(pods)), preset="session")

    def homes() -> list[str]:
        found = []
        for key in range(300):
            choice = pick(pool, PickRequest(tokens=10.0, session=b"%d" % key), now_s=START_S, draw=0.5)
            assert choice is not None
            found.append(choice.pod.spec.id)
        return found

    before = homes()
    assert max(Counter(before).values()) <= 2.2 * 300 / pods
    pool.remove(named(pool, f"p{leaver}"), START_S)
    moved = [home for home, now in zip(before, homes(), strict=True) if home != now]
    assert set(moved) <= {f"p{leaver}"}


@settings(max_examples=25)
@given(pods=st.integers(2, 8))
def test_gaining_a_pod_moves_no_more_than_its_share_of_sessions(pods: int) -> None:
    pool = make_pool(*(f"p{index}" for index in range(pods)), preset="session")
    requests = [PickRequest(tokens=10.0, session=b"%d" % key) for key in range(300)]
    before = [pick(pool, request, now_s=START_S, draw=0.5) for request in requests]
    new = pool.add(spec("new"))
    pool.scraped(new, signals(), START_S)
    after = [pick(pool, request, now_s=START_S, draw=0.5) for request in requests]
    moved = [b for a, b in zip(before, after, strict=True) if a is not None and b is not None and a.pod is not b.pod]
    assert all(choice.pod is new for choice in moved)
    assert len(moved) <= 1.5 * 300 / (pods + 1) + 20


steps = st.lists(
    st.tuples(
        st.sampled_from(["learn", "forget", "judge", "restart"]),
        st.integers(0, 2),
        st.integers(0, 5),
        st.integers(0, 14),
    ),
    max_size=60,
)


@given(steps=steps, capacity=st.integers(1, 20))
def test_the_index_stays_bounded_contiguous_and_without_dead_entries(
    steps: list[tuple[str, int, int, int]], capacity: int
) -> None:
    index = PrefixIndex(30 * ENTRY_BYTES)
    for pod in range(3):
        index.add(pod, capacity)
    prompts = [tuple(range(4)) + tuple(100 * branch + step for step in range(10)) for branch in range(1, 7)]
    for at_s, (step, pod, branch, size) in enumerate(steps):
        prompt = prompts[branch][:size]
        if step == "learn":
            index.learn(pod, prompt, float(at_s))
        elif step == "forget":
            index.forget(pod, prompt, beyond=size // 2)
        elif step == "judge":
            index.judge(pod, size, size // 2)
        else:
            index.add(pod, capacity)
        assert index.entries <= 30
        for bit in range(3):
            assert index.blocks(bit) <= min(capacity, 10)
            held = set(index._held[bit])
            assert held == {block for block, owners in index._owners.items() if owners >> bit & 1}
            for prompt_ in prompts:
                real = next((depth for depth, block in enumerate(prompt_) if block not in held), len(prompt_))
                assert index.match(prompt_).get(bit, 0) == real
    assert all(index._owners.values())


@given(samples=st.lists(st.tuples(st.floats(0.0, 1e5), st.floats(0.0, 100.0)), min_size=1, max_size=50))
def test_rates_are_never_negative_whatever_is_measured(samples: list[tuple[float, float]]) -> None:
    line = Line()
    for tokens, seconds in samples:
        line.observe(tokens, seconds, 0.0)
        assert 0.0 <= line.fixed_s < 1e6
        assert 0.0 <= line.per_token_s <= 1e3
