"""What admission relies on, whatever keeps the counters. Short windows, real time: the store's clock is its own."""

import asyncio
import itertools
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gir.admit.ports import SEGMENTS, Claim, LimitStore, Rate, Take, Taken
from gir.clock import SystemClock
from gir.stores.memory import MemoryStore
from gir.stores.redis import RedisStore
from tests.support.redis_server import RedisServer

LONG = Rate(10, 3_600.0, 10)


async def take(
    store: LimitStore, need: int, want: int, *, rate: Rate = LONG, owed: tuple = (), key: str = "k"
) -> Taken:
    replies = await store.exchange([Take(key, rate, need, want, owed)], [])
    return replies.taken[0]


async def claim(store: LimitStore, replica: str, want: int, *, limit: int = 10, ttl_s: float = 5.0) -> tuple[int, int]:
    replies = await store.exchange([], [Claim("slots", limit, replica, want, ttl_s)])
    return replies.claimed[0].held, replies.claimed[0].free


async def test_grants_what_is_wanted_and_counts_it(store: LimitStore) -> None:
    first = await take(store, 1, 4)
    assert (first.units, first.remaining, first.retry_after_s) == (4, 6, 0.0)
    assert 3_600 <= first.reset_s <= 3_661


async def test_grants_less_than_wanted_but_never_less_than_needed(store: LimitStore) -> None:
    await take(store, 1, 7)
    assert (await take(store, 2, 9)).units == 3
    refused = await take(store, 1, 5)
    assert (refused.units, refused.remaining) == (0, 0)
    assert refused.retry_after_s > 3_500


async def test_a_need_too_big_takes_nothing(store: LimitStore) -> None:
    await take(store, 1, 7)
    assert (await take(store, 4, 4)).units == 0
    assert (await take(store, 3, 3)).units == 3


async def test_need_nothing_takes_what_is_there(store: LimitStore) -> None:
    assert (await take(store, 0, 0)).units == 0
    assert (await take(store, 0, 25)).units == 10
    assert (await take(store, 0, 25)).units == 0


async def test_units_given_back_can_be_taken_again(store: LimitStore) -> None:
    stamp = (await take(store, 10, 10)).stamp
    assert (await take(store, 4, 4, owed=((stamp, -4),))).units == 4
    assert (await take(store, 1, 1)).units == 0


async def test_giving_back_more_than_was_taken_does_not_raise_the_limit(store: LimitStore) -> None:
    stamp = (await take(store, 3, 3)).stamp
    assert (await take(store, 0, 99, owed=((stamp, -50),))).units == 10
    assert (await take(store, 1, 1)).units == 0


async def test_units_drawn_a_little_at_a_time_can_be_given_back_under_the_last_stamp(store: LimitStore) -> None:
    stamp = (await take(store, 1, 1)).stamp
    earlier = ((stamp - 7, 2), (stamp - 3, 3), (stamp - 1, 1))
    assert (await take(store, 0, 0, owed=earlier)).remaining == 3
    assert (await take(store, 0, 0, owed=((stamp - 1, -3),))).remaining == 6, "one of its own, two of those before"
    assert (await take(store, 0, 0, owed=((stamp - 7, -3),))).remaining == 8, "nothing of those after"


async def test_units_used_elsewhere_are_counted(store: LimitStore) -> None:
    stamp = (await take(store, 1, 1)).stamp
    assert (await take(store, 0, 0, owed=((stamp - 2, 3), (stamp, 4)))).remaining == 2


async def test_debts_beyond_the_limit_are_kept_and_block(store: LimitStore) -> None:
    stamp = (await take(store, 1, 1)).stamp
    await take(store, 0, 0, owed=((stamp, 14),))
    assert (await take(store, 1, 1)).units == 0
    await take(store, 0, 0, owed=((stamp, -6),))
    assert (await take(store, 0, 5)).units == 1


async def test_corrections_from_before_the_window_change_nothing(store: LimitStore) -> None:
    stamp = (await take(store, 1, 1)).stamp
    assert (await take(store, 0, 0, owed=((stamp - SEGMENTS - 1, 5),))).remaining == 9


async def test_a_replica_whose_clock_is_ahead_is_charged_now(store: LimitStore) -> None:
    stamp = (await take(store, 1, 1)).stamp
    assert (await take(store, 0, 0, owed=((stamp + 1, 5),))).remaining == 4


async def test_counters_are_strangers(store: LimitStore) -> None:
    await take(store, 10, 10, key="a")
    assert (await take(store, 10, 10, key="b")).units == 10
    both = await store.exchange([Take("a", LONG, 1, 1), Take("b", LONG, 0, 0), Take("c", LONG, 2, 2)], [])
    assert [taken.units for taken in both.taken] == [0, 0, 2]


async def test_a_burst_is_bounded_and_comes_back_at_the_rate(store: LimitStore) -> None:
    rate = Rate(100, 1.0, 5)
    assert (await take(store, 0, 50, rate=rate)).units == 5
    refused = await take(store, 3, 3, rate=rate)
    assert refused.units == 0
    assert 0.0 < refused.retry_after_s <= 0.03
    await asyncio.sleep(refused.retry_after_s + 0.002)
    assert (await take(store, 3, 3, rate=rate)).units >= 3


async def test_retry_after_is_when_it_can_be_had(store: LimitStore) -> None:
    rate = Rate(4, 0.2, 4)
    await take(store, 4, 4, rate=rate)
    refused = await take(store, 2, 2, rate=rate)
    assert refused.units == 0
    assert 0.1 < refused.retry_after_s < 0.21
    await asyncio.sleep(refused.retry_after_s + 0.002)
    assert (await take(store, 2, 2, rate=rate)).units == 2


@pytest.mark.slow
async def test_no_window_ever_exceeds_the_limit(store: LimitStore) -> None:
    rate = Rate(20, 0.3, 20)
    grants: list[tuple[float, float]] = []
    ends_s = time.perf_counter() + 1.5
    while time.perf_counter() < ends_s:
        asked_s = time.perf_counter()
        if (await take(store, 1, 1, rate=rate)).units:
            grants.append((asked_s, time.perf_counter()))
        await asyncio.sleep(0.001)
    for number in range(len(grants) - rate.limit):
        # Counted somewhere between question and answer: only grants surely inside one window count against it.
        assert grants[number + rate.limit][1] - grants[number][0] > rate.window_s
    assert len(grants) >= 4 * rate.limit


async def test_places_are_claimed_absolutely(store: LimitStore) -> None:
    assert await claim(store, "a", 4) == (4, 6)
    assert await claim(store, "a", 4) == (4, 6)
    assert await claim(store, "b", 9) == (6, 0)
    assert await claim(store, "a", 1) == (1, 3)
    assert await claim(store, "b", 9) == (9, 0)
    assert await claim(store, "a", 0) == (0, 1)


async def test_places_of_a_silent_replica_come_back(store: LimitStore) -> None:
    assert await claim(store, "a", 10, ttl_s=0.05) == (10, 0)
    assert await claim(store, "b", 3) == (0, 0)
    await asyncio.sleep(0.08)
    assert await claim(store, "b", 3) == (3, 7)


async def test_a_lowered_limit_takes_no_place_from_its_holder(store: LimitStore) -> None:
    await claim(store, "a", 8)
    assert await claim(store, "b", 2, limit=5) == (0, 0)
    assert await claim(store, "a", 8, limit=5) == (5, 0)


async def census(store: LimitStore, replica: str, ttl_s: float = 5.0, absent_s: float = 5.0) -> tuple[int, int]:
    found = await store.census(replica, ttl_s, absent_s)
    return found.live, found.absent


async def test_census_counts_the_living_and_those_who_fell_silent(store: LimitStore) -> None:
    assert await census(store, "a#1") == (1, 0)
    assert await census(store, "b#1", 0.05) == (2, 0)
    await asyncio.sleep(0.08)
    assert await census(store, "a#1") == (1, 1)
    assert await census(store, "b#1") == (2, 0)


async def test_the_silent_are_forgotten_in_the_end(store: LimitStore) -> None:
    await census(store, "b#1", 0.05)
    await asyncio.sleep(0.08)
    assert await census(store, "a#1", absent_s=5.0) == (1, 1)
    assert await census(store, "a#1", absent_s=0.01) == (1, 0)


async def test_who_leaves_is_not_missed(store: LimitStore) -> None:
    await census(store, "a#1")
    assert await census(store, "b#1") == (2, 0)
    assert await census(store, "b#1", absent_s=0.0) == (1, 0)
    assert await census(store, "a#1") == (1, 0)


async def test_a_newcomer_takes_the_place_of_one_silent_namesake(store: LimitStore) -> None:
    for replica in ("b#1", "b#2", "c#1"):
        await census(store, replica, 0.2)
    assert await census(store, "b#3", 0.2) == (4, 0)
    await asyncio.sleep(0.12)
    await census(store, "b#3", 0.2)
    await asyncio.sleep(0.12)
    assert await census(store, "b#3", 0.2) == (1, 2)
    assert await census(store, "b#3", 0.2) == (1, 2), "one newcomer takes one place"
    assert await census(store, "c#2", 0.2) == (2, 1)


async def test_whoever_was_there_before_takes_nobodys_place(store: LimitStore) -> None:
    await census(store, "b#1", 0.2)
    await asyncio.sleep(0.03)
    await census(store, "b#2", 0.2)
    await asyncio.sleep(0.12)
    await census(store, "b#1", 0.2)
    await asyncio.sleep(0.12)
    assert await census(store, "b#1", 0.2) == (1, 1)


async def test_many_at_once_never_take_more_than_the_limit(store: LimitStore) -> None:
    rate = Rate(50, 3_600.0, 50)
    replies = await asyncio.gather(*(take(store, 1, 1, rate=rate) for _ in range(4)))
    for _ in range(20):
        replies += await asyncio.gather(*(take(store, 1, 1, rate=rate) for _ in range(4)))
    assert sum(taken.units for taken in replies) == 50


_number = itertools.count()
_step = st.tuples(
    st.integers(0, 12), st.integers(0, 25), st.lists(st.tuples(st.integers(-3, 0), st.integers(-8, 8)), max_size=3)
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(_step, min_size=1, max_size=8), limit=st.integers(1, 30))
def test_redis_counts_as_the_reference_does(
    redis: RedisServer, steps: list[tuple[int, int, list[tuple[int, int]]]], limit: int
) -> None:
    """Same questions, same answers. An hour's window: one segment is a minute, so time does not interfere."""
    rate = Rate(limit, 3_600.0, limit)

    async def compare() -> None:
        memory, real = MemoryStore(SystemClock()), RedisStore(redis.url)
        key = f"differential-{next(_number)}"
        now = [(await take(store, 0, 0, rate=rate, key=key)).stamp for store in (memory, real)]
        for need, want, owed in steps:
            answers = [
                await take(
                    store,
                    need,
                    max(need, want),
                    rate=rate,
                    key=key,
                    owed=tuple((base + ago, n) for ago, n in sorted(owed)),
                )
                for store, base in zip((memory, real), now, strict=True)
            ]
            assert answers[0].units == answers[1].units
            assert answers[0].remaining == answers[1].remaining
        await real.close()

    asyncio.run(compare())
