"""Replicas share a limit: how far over, how far under, how often they ask. Virtual time, a store 0.5 ms away."""

import asyncio

import pytest

from gir.admit.limits import Limiter
from gir.admit.ports import Rate, Take
from gir.model.policy import LimitRule
from gir.model.request import Usage
from tests.support.limiting import Replicas

pytestmark = [pytest.mark.looptime(noop_cycles=2), pytest.mark.slow]
SKEWED = (0.70, 0.20, 0.08, 0.02)


def per_minute(limit: int, **fields: float) -> list[LimitRule]:
    return [LimitRule(name="team", requests_per_min=limit, **fields)]


@pytest.mark.parametrize("limit", [21, 60, 300, 1_000])
@pytest.mark.parametrize("shares", [SKEWED, (0.25,) * 4], ids=["skewed", "even"])
async def test_four_replicas_stay_within_five_percent_over_and_under(limit: int, shares: tuple[float, ...]) -> None:
    replicas = Replicas(per_minute(limit), 4)
    await replicas.start()
    demand_per_s = 3.0 * limit / 60.0
    await replicas.traffic([demand_per_s * share for share in shares], 185.0)
    await replicas.close()
    assert replicas.log.worst_window() <= limit * 1.05
    # From the second minute on demand has exceeded the limit for a whole window.
    assert replicas.log.between(65.0, 185.0) >= 2 * limit * 0.95


async def test_load_that_wanders_from_replica_to_replica_finds_no_units_put_by() -> None:
    """What a replica holds unspent when the load leaves it would be spent on its return, in another window."""
    limit = 1_000
    replicas = Replicas(per_minute(limit), 4)
    await replicas.start()
    for turn in range(60):
        rates = [0.0] * 4
        rates[turn % 4] = 3.0 * limit / 60.0
        await replicas.traffic(rates, 3.0)
    await replicas.close()
    assert replicas.log.worst_window() <= limit * 1.05
    assert replicas.log.between(65.0, 182.5) >= 117.5 / 60.0 * limit * 0.95


@pytest.mark.parametrize("limit", [1, 5, 20])
async def test_small_limits_are_exact(limit: int) -> None:
    replicas = Replicas(per_minute(limit), 4)
    await replicas.start()
    for _ in range(18):
        await replicas.traffic([400.0, 200.0, 100.0, 50.0], 0.3)
        await asyncio.sleep(7.7)
    await replicas.close()
    assert replicas.log.worst_window() == limit
    assert len(replicas.log.admitted_s) >= 2 * limit


async def test_a_lone_replica_may_use_the_whole_limit() -> None:
    replicas = Replicas(per_minute(600), 4)
    await replicas.start()
    await replicas.traffic([20.0, 0.0, 0.0, 0.0], 130.0)
    await replicas.close()
    assert replicas.log.worst_window() <= 600
    assert replicas.log.between(2.5, 62.5) == 600


async def test_the_whole_limit_may_be_used_at_once() -> None:
    replicas = Replicas(per_minute(400), 4)
    await replicas.start()
    for number in range(440):
        await replicas.ask(replicas.limiters[number % 4])
    await replicas.close()
    # The lease cap leaves a few units in other hands for a second; nothing beyond the limit gets in.
    assert 400 * 0.95 <= len(replicas.log.admitted_s) <= 400


@pytest.mark.parametrize("tokens", [None, 80_000 * 200], ids=["requests", "requests and tokens"])
@pytest.mark.parametrize("shares", [SKEWED, (0.25,) * 4, (1.0,)], ids=["skewed", "even", "alone"])
async def test_a_thousand_a_second_ask_the_store_less_than_once_in_twenty(
    shares: tuple[float, ...], tokens: int | None
) -> None:
    """Heartbeats and corrections included: with token limits each request is settled by what it took, a second late."""
    rule = LimitRule(name="team", requests_per_min=80_000, tokens_per_min=tokens)
    replicas = Replicas([rule], len(shares))
    await replicas.start()
    before = replicas.store.trips
    await settled_traffic(replicas, [1_000.0 * share for share in shares], 6.0)
    await replicas.close()
    admitted = len(replicas.log.admitted_s)
    assert admitted > 5_500
    assert replicas.log.refused == 0
    assert replicas.store.trips - before <= admitted / 20


async def test_refusals_do_not_ask_the_store_each_time() -> None:
    replicas = Replicas(per_minute(600), 4)
    await replicas.start()
    await replicas.traffic([700.0, 200.0, 80.0, 20.0], 1.0)
    used_up = replicas.store.exchanges
    await replicas.traffic([700.0, 200.0, 80.0, 20.0], 3.0)
    await replicas.close()
    assert replicas.log.refused > 2_500
    assert replicas.store.exchanges - used_up <= 3_000 / 50


async def test_a_smaller_burst_spreads_the_limit() -> None:
    replicas = Replicas(per_minute(600, burst_s=6.0), 2)
    await replicas.start()
    await replicas.traffic([30.0, 10.0], 60.0)
    await replicas.close()
    admitted = replicas.log.between(0.0, 20.0)
    assert 150 <= admitted <= 60 + 10 * 20 * 1.05


@pytest.mark.parametrize("limit", [3, 40, 100])
async def test_places_are_never_more_than_the_limit_and_hardly_fewer(limit: int) -> None:
    replicas = Replicas([LimitRule(name="team", concurrency_max=limit)], 4)
    await replicas.start()
    running = worst = 0
    used_s = 0.0
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + 10.0

    async def client(limiter: Limiter) -> None:
        nonlocal running, worst, used_s
        while loop.time() < ends_s:
            reservation = await replicas.ask(limiter)
            if reservation is None:
                await asyncio.sleep(0.05 * replicas.clock.random.random())
                continue
            running += 1
            worst = max(worst, running)
            lasts_s = 0.5 + replicas.clock.random.random()
            used_s += lasts_s
            await asyncio.sleep(lasts_s)
            running -= 1
            limiter.settle(reservation, None, started=True, now_s=replicas.clock.monotonic_s())

    crowd = [0.7, 0.2, 0.08, 0.02]
    clients = [
        client(limiter)
        for limiter, share in zip(replicas.limiters, crowd, strict=True)
        for _ in range(max(1, int(2 * limit * share)))
    ]
    await asyncio.gather(*clients)
    await replicas.close()
    assert worst <= limit
    assert used_s >= 0.9 * limit * 10.0


@pytest.mark.parametrize("clients", [1, 3, 8])
async def test_counters_of_every_kind_at_once_hold_nobody_up(clients: int) -> None:
    rules = [
        LimitRule(name="small", requests_per_min=20, per=("tenant", "model"), model="absent"),
        LimitRule(name="exact", requests_per_min=20, tokens_per_min=20 * 200, concurrency_max=clients),
        LimitRule(name="wide", requests_per_min=100_000, tokens_per_min=10_000_000, concurrency_max=1_000),
    ]
    replicas = Replicas(rules, 2)
    await replicas.start()

    async def client(limiter: Limiter, number: int) -> None:
        for turn in range(6):
            reservation = await replicas.ask(limiter)
            assert reservation is not None, f"request {turn} of client {number} was refused below every limit"
            limiter.settle(reservation, None, started=False, now_s=replicas.clock.monotonic_s())
            await asyncio.sleep(0.003 * replicas.clock.random.random())

    await asyncio.gather(*(client(replicas.limiters[0], number) for number in range(clients)))
    await replicas.close()


async def test_places_of_a_replica_that_died_come_back() -> None:
    replicas = Replicas([LimitRule(name="team", concurrency_max=5)], 2)
    await replicas.start()
    for _ in range(5):
        assert await replicas.ask(replicas.limiters[0]) is not None
    await replicas.tasks.close()
    survivor = replicas.limiters[1]
    survivor.start(replicas.tasks)
    await asyncio.sleep(1.0)
    assert await replicas.ask(survivor) is None
    await asyncio.sleep(12.0)
    assert await replicas.ask(survivor) is not None
    await replicas.close()


@pytest.mark.parametrize("shares", [SKEWED, (0.25,) * 4], ids=["skewed", "even"])
async def test_tokens_that_were_used_stay_within_five_percent_over_and_under(shares: tuple[float, ...]) -> None:
    """Requests reserve 200 tokens, run for a while and take 100 to 200: what counts is what they took."""
    limit = 300_000
    replicas = Replicas([LimitRule(name="team", tokens_per_min=limit)], 4)
    await replicas.start()
    demand_per_s = 3.0 * limit / 150 / 60.0
    used = await settled_traffic(replicas, [demand_per_s * share for share in shares], 182.5)
    await replicas.close()
    worst = max(sum(tokens for at_s, tokens in used if since_s <= at_s < since_s + 60.0) for since_s, _ in used[::100])
    assert worst <= limit * 1.05
    assert sum(tokens for at_s, tokens in used if 65.0 <= at_s < 185.0) >= 2 * limit * 0.95


@pytest.mark.parametrize("rate_per_s", [3.0, 60.0])
async def test_what_was_reserved_and_not_used_comes_back_whole(rate_per_s: float) -> None:
    """The store ends up with what requests took, however often units were drawn, given back and drawn again."""
    limit = 1_000_000
    replicas = Replicas([LimitRule(name="team", tokens_per_min=limit)], 4)
    await replicas.start()
    used = await settled_traffic(replicas, [rate_per_s * share for share in SKEWED], 20.0)
    await asyncio.sleep(7.0)
    counted = replicas.store.inner.exchange_now([Take("team:team:tokens", Rate(limit, 60.0, limit), 0, 0)], [])
    await replicas.close()
    assert limit - counted.taken[0].remaining == sum(tokens for _, tokens in used)


async def settled_traffic(replicas: Replicas, rates_per_s: list[float], lasts_s: float) -> list[tuple[float, int]]:
    """Requests that run for 0.5 to 1.5 s and are settled by 100 to 200 tokens; when each began and what it took."""
    loop, chance = asyncio.get_running_loop(), replicas.clock.random
    ends_s = loop.time() + lasts_s
    used: list[tuple[float, int]] = []
    running: set[asyncio.Future[None]] = set()

    async def serve(limiter: Limiter) -> None:
        began_s = loop.time()
        reservation = await replicas.ask(limiter)
        if reservation is None:
            return
        usage = Usage(prompt_tokens=100, completion_tokens=chance.randint(0, 100))
        used.append((began_s, usage.prompt_tokens + usage.completion_tokens))
        await asyncio.sleep(0.5 + chance.random())
        limiter.settle(reservation, usage, started=True, now_s=replicas.clock.monotonic_s())

    async def arrive(limiter: Limiter, per_s: float) -> None:
        while loop.time() < ends_s:
            await asyncio.sleep(min(chance.expovariate(per_s), ends_s - loop.time()))
            request = asyncio.ensure_future(serve(limiter))
            running.add(request)
            request.add_done_callback(running.discard)

    await asyncio.gather(*(arrive(*pair) for pair in zip(replicas.limiters, rates_per_s, strict=True)))
    await asyncio.gather(*running)
    return used


async def test_a_place_is_held_for_as_long_as_its_request_runs() -> None:
    """Claims lapse after some seconds, so that those of the dead come back; those of the living are renewed."""
    replicas = Replicas([LimitRule(name="team", concurrency_max=2)], 2)
    await replicas.start()
    held = [await replicas.ask(replicas.limiters[0]) for _ in range(2)]
    for _ in range(30):
        await asyncio.sleep(10.0)
        assert await replicas.ask(replicas.limiters[1]) is None
    for reservation in held:
        assert reservation is not None
        replicas.limiters[0].settle(reservation, None, started=True, now_s=replicas.clock.monotonic_s())
    await asyncio.sleep(5.0)
    assert await replicas.ask(replicas.limiters[1]) is not None
    await replicas.close()
