"""Blocks are neither lost nor invented, and what goes first is what is worth least."""

import pytest

from chaos.engine.adapters import AdapterSlots
from chaos.engine.kv import KvCache


def test_a_released_prompt_is_found_again_by_its_leading_blocks() -> None:
    cache = KvCache(10)
    assert cache.take((1, 2, 3), 1)
    cache.release((1, 2, 3), 1)
    assert cache.cached((1, 2, 9)) == 2
    assert cache.cached((9, 2, 3)) == 0
    assert (cache.blocks_used, cache.blocks_idle, cache.blocks_free) == (0, 3, 10)


def test_a_shared_prefix_is_held_once() -> None:
    cache = KvCache(10)
    assert cache.take((1, 2, 3), 1)
    assert cache.take((1, 2, 4), 1)
    assert cache.blocks_used == 6
    cache.release((1, 2, 3), 1)
    assert cache.blocks_used == 4
    assert cache.cached((1, 2, 3)) == 3


def test_the_tail_of_a_prompt_is_evicted_before_its_head() -> None:
    cache = KvCache(4)
    assert cache.take((1, 2, 3, 4), 0)
    cache.release((1, 2, 3, 4), 0)
    assert cache.grow(2)
    assert cache.cached((1, 2, 3, 4)) == 2


def test_the_least_recently_used_prompt_is_evicted_first() -> None:
    cache = KvCache(4)
    for prompt in ((1, 2), (3, 4), (1, 2)):
        assert cache.take(prompt, 0)
        cache.release(prompt, 0)
    assert cache.grow(2)
    assert (cache.cached((1, 2)), cache.cached((3, 4))) == (2, 0)


def test_taking_more_than_there_is_takes_nothing() -> None:
    cache = KvCache(4)
    assert cache.take((1, 2), 1)
    assert not cache.take((1, 2, 3), 1)
    assert not cache.take((), 1, spare=1)
    assert cache.blocks_used == 3


def test_the_least_recently_used_idle_adapter_makes_room() -> None:
    slots = AdapterSlots(2, load_s=1.0)
    for at_s, name in ((0.0, "a"), (0.0, "b")):
        assert not slots.take(name, at_s)
    assert slots.next_ready_s(0.0) == 1.0
    assert slots.take("a", 1.0)
    slots.release("a")
    assert not slots.take("c", 2.0)
    assert slots.resident(2.0) == ["a"]
    assert slots.take("c", 3.0)


def test_a_running_adapter_is_never_evicted() -> None:
    slots = AdapterSlots(1, load_s=0.0)
    assert slots.take("a", 0.0)
    assert not slots.take("b", 1.0)
    slots.release("a")
    assert slots.take("b", 1.0)
    with pytest.raises(KeyError):
        slots.release("a")
