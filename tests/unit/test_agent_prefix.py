"""The prefix index: contiguous matches, bounded memory, heads that outlive tails, and the engine's last word."""

from tier1_agent.prefix import ENTRY_BYTES, PrefixIndex


def make_index(*, pods: int = 2, capacity: int | None = 10, bytes_max: int = 1_000_000) -> PrefixIndex:
    index = PrefixIndex(bytes_max)
    for pod in range(pods):
        index.add(pod, capacity)
    return index


def test_each_pod_is_credited_with_what_it_holds_from_the_head_on() -> None:
    index = make_index()
    index.learn(0, (1, 2, 3, 4), 1.0)
    index.learn(1, (1, 2, 9), 1.0)
    assert index.match((1, 2, 3, 4, 5)) == {0: 4, 1: 2}
    assert index.match((1, 2)) == {0: 2, 1: 2}
    assert index.match((7, 8)) == {}
    assert index.match(()) == {}


def test_blocks_behind_a_gap_do_not_count() -> None:
    index = make_index()
    index.learn(0, (1, 2, 3, 4), 1.0)
    index.forget(0, (1, 2), beyond=1)
    assert index.match((1, 2, 3, 4)) == {0: 1}


def test_tails_are_evicted_before_heads() -> None:
    index = make_index(pods=1, capacity=5)
    index.learn(0, (1, 2, 3, 4), 1.0)
    index.learn(0, (7, 8, 9), 2.0)
    assert index.match((1, 2, 3, 4)) == {0: 2}
    assert index.match((7, 8, 9)) == {0: 3}


def test_a_shared_head_stays_while_any_prompt_uses_it() -> None:
    index = make_index(pods=1, capacity=4)
    index.learn(0, (1, 2, 10), 1.0)
    for tail in range(20, 40):
        index.learn(0, (1, 2, tail), 2.0)
    assert index.match((1, 2, 99)) == {0: 2}


def test_a_prompt_longer_than_the_cache_leaves_its_head_and_nothing_else() -> None:
    index = make_index(pods=1, capacity=3)
    index.learn(0, tuple(range(100)), 1.0)
    assert index.match(tuple(range(100))) == {0: 3}
    assert index.entries == 3


def test_the_byte_budget_bounds_all_pods_together() -> None:
    index = make_index(pods=4, capacity=None, bytes_max=40 * ENTRY_BYTES)
    for pod in range(4):
        index.learn(pod, tuple(range(pod * 1_000, pod * 1_000 + 500)), 1.0)
    assert index.entries <= 40


def test_the_byte_budget_holds_while_pods_come_although_the_old_ones_are_idle() -> None:
    index = make_index(pods=0, bytes_max=40 * ENTRY_BYTES)
    for pod in range(8):
        index.add(pod, None)
        index.learn(pod, tuple(range(100 * pod, 100 * pod + 90)), 1.0)
        assert index.entries <= 40


def test_a_new_incarnation_holds_nothing() -> None:
    index = make_index()
    index.learn(0, (1, 2), 1.0)
    index.add(0, 10)
    assert index.match((1, 2)) == {}


def test_a_pod_that_leaves_takes_its_entries_along() -> None:
    index = make_index()
    index.learn(0, (1, 2), 1.0)
    index.remove(0)
    assert index.match((1, 2)) == {}
    assert repr(index) == "<PrefixIndex 0 blocks, 0 entries in 1 pods>"


def test_an_engine_that_found_less_than_promised_shrinks_the_model_of_its_cache() -> None:
    index = make_index(pods=1, capacity=100)
    index.learn(0, tuple(range(80)), 1.0)
    index.judge(0, predicted_blocks=40, real_blocks=0)
    assert index.capacity(0) == 72
    assert index.entries == 72


def test_an_engine_that_finds_what_was_promised_lets_the_model_grow_back() -> None:
    index = make_index(pods=1, capacity=100)
    index.learn(0, tuple(range(80)), 1.0)
    index.judge(0, predicted_blocks=40, real_blocks=0)
    for _ in range(50):
        index.learn(0, tuple(range(72)), 2.0)
        index.judge(0, predicted_blocks=40, real_blocks=40)
    assert index.capacity(0) > 72
    index.set_capacity(0, 100)
    assert index.capacity(0) <= 100


def test_a_match_off_by_one_block_is_no_reason_to_shrink() -> None:
    index = make_index(pods=1, capacity=100)
    index.learn(0, tuple(range(80)), 1.0)
    index.judge(0, predicted_blocks=24, real_blocks=23.4)
    assert index.capacity(0) == 100


def test_a_full_cache_names_the_age_of_its_victim() -> None:
    index = make_index(pods=1, capacity=3)
    index.learn(0, (1, 2), 5.0)
    assert index.victim_at_s(0) is None
    index.learn(0, (7,), 6.0)
    assert index.victim_at_s(0) == 5.0
