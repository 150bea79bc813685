"""One word to one router is a word to all: real routers, a real Redis or a shared directory, and kill -9."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.rawhttp import ask, json_request
from tests.support.redis_server import RedisServer
from tests.support.routers import RouterProcess, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
HEARD_S = 2.0
"""Longest until a word said at one router holds at another."""
POLICY = {
    "tiers": [{"name": "reserved", "price_per_slot_hour": 1.0}],
    "forward": {"attempts_max": 1},
    "health": {"breaker_upstream_consecutive": 1_000, "breaker_success_min": 0.01},
    "rewrites": [
        {
            "name": "next",
            "matches": [{"model": "llama"}],
            "targets": [{"model": "llama", "weight": 50}, {"model": "llama-next", "weight": 50}],
            "guard": {"samples_min": 10},
        }
    ],
}
LIMITS = [{"name": "per-tenant", "requests_per_min": 100_000}]
TRY = {
    "name": "try",
    "matches": [{"model": "gpt"}],
    "targets": [{"model": "llama", "weight": 1}, {"model": "llama-next", "weight": 9}],
}


async def until(met: Callable[[], Awaitable[Any]], within_s: float = HEARD_S) -> float:
    """Wait until `met`; how long it took."""
    since_s = time.perf_counter()
    while not await met():
        assert time.perf_counter() - since_s < within_s, "not in time"
        await asyncio.sleep(0.05)
    return time.perf_counter() - since_s


async def serves(router: RouterProcess, worker: int = 0) -> bool:
    answer = await router.get("/admin/clusters", worker=worker)
    return any(row["status"] == "healthy" for row in answer["clusters"])


async def intent(router: RouterProcess) -> str:
    answer = await router.get("/admin/clusters")
    return next((str(row["intent"]) for row in answer["clusters"]), "")


async def send(router: RouterProcess, count: int, model: str = "llama") -> list[int]:
    """Statuses of so many requests, each of another session."""
    statuses = []
    for number in range(count):
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        request = json_request("/v1/chat/completions", body, x_session_id=f"{time.time_ns()}-{number}")
        statuses.append((await ask(router.port, request)).status)
    return statuses


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    await made.close()


@pytest.fixture
async def pair(tmp_path: Path, site: Site) -> AsyncIterator[tuple[RouterProcess, RouterProcess, RedisServer]]:
    """Two routers of different hosts that share a Redis."""
    redis = RedisServer()
    redis.start()
    store = {"kind": "redis", "url": {"value": redis.url}}
    routers = [
        RouterProcess(tmp_path, name, state=True, store=store, policy=POLICY | {"limits": LIMITS})
        for name in ("r-1", "r-2")
    ]
    try:
        for router in routers:
            router.launch()
        await asyncio.gather(*(router.ready() for router in routers))
        await site.start([address for router in routers for address in router.beat_addresses])
        for router in routers:
            await until(lambda router=router: serves(router), within_s=20.0)
        yield routers[0], routers[1], redis
    finally:
        for router in routers:
            router.kill()
        redis.close()


async def test_what_one_router_decides_or_is_told_holds_at_the_other_and_after_kill_9(pair: Any, site: Site) -> None:
    first, second, redis = pair
    # A guard at one router, and nobody else's evidence.
    site.bad.add("llama-next")
    while await first.canary("next") == "running":
        await send(first, 10)
    await until(lambda: is_state(second, "next", "aborted"))
    assert set(await send(second, 40)) == {200}, "another router still sent callers to the canary"
    row = next(row for row in (await second.get("/admin/canaries"))["canaries"] if row["rule"] == "next")
    assert row["reason"].startswith("error rate")
    trail = (await second.get("/admin/canaries"))["events"]
    assert [event["by"] for event in trail if event["rule"] == "next"] == ["guard at r-1"]

    # An operator at either of them.
    assert (await second.ask("POST", "/admin/canaries", TRY))[0] == 200
    await until(lambda: is_state(first, "try", "running"))
    code, out, complaint = await first.command("canary", "abort", "try", "--reason", "bad German")
    assert (code, complaint) == (0, "")
    assert "aborted: bad German" in out
    await until(lambda: is_state(second, "try", "aborted"))
    assert (await first.command("drain", "eu-1"))[0] == 0
    await until(lambda: is_intent(second, "drain"))
    assert (await second.command("limits", "set", "per-tenant", "--requests-per-min", "77"))[0] == 0
    await until(lambda: has_limit(first, 77))

    first.kill()
    second.kill()
    redis.cli("PING")
    await second.start()
    assert [await second.canary(rule) for rule in ("next", "try")] == ["aborted", "aborted"]
    assert await has_limit(second, 77)
    await until(lambda: is_intent(second, "drain"), within_s=20.0)
    code, out, _ = await second.command("canary", "status")
    assert code == 0
    assert "known to every router that uses this Redis" in out


async def test_of_two_promotions_at_once_one_is_told_that_it_came_second(pair: Any) -> None:
    first, second, _ = pair
    answers = await asyncio.gather(*(each.ask("POST", "/admin/canaries/next/promote", {}) for each in (first, second)))
    assert sorted(status for status, _ in answers) == [200, 400]
    refused = next(answer for status, answer in answers if status == 400)
    assert "rule next is promoted by local" in refused["error"]["message"]
    for router in (first, second):
        await until(lambda router=router: is_state(router, "next", "promoted"))


async def test_while_redis_is_gone_what_cannot_wait_holds_here_and_is_told_later(pair: Any, tmp_path: Path) -> None:
    first, second, redis = pair
    assert (await first.command("canary", "abort", "next"))[0] == 0
    await until(lambda: is_state(second, "next", "aborted"))
    redis.kill()
    code, _, complaint = await first.command("drain", "eu-1")
    assert code == 0
    assert "applied here only: the store is away" in complaint
    assert await intent(first) == "drain"
    code, _, complaint = await first.command("canary", "start", "next")
    assert code == 1
    assert "no other router would hear of it" in complaint
    await asyncio.sleep(1.2)
    assert await intent(second) == "serve"
    assert (await second.get("/admin/orders"))["up"] is False

    # A router that starts now has the copy of its state directory.
    second.kill()
    await second.start()
    assert await second.canary("next") == "aborted"

    # Redis comes back empty.
    redis.start()
    await until(lambda: is_intent(second, "drain"), within_s=20.0)
    for router in (first, second):
        await until(lambda router=router: is_up(router), within_s=5.0)
        assert await router.canary("next") == "aborted"
    await until(lambda: agree(first, second))


async def agree(*routers: RouterProcess) -> bool:
    """Whether they heed the same document, and there is one."""
    answers = [await router.get("/admin/orders") for router in routers]
    said = [(answer["version"], answer["orders"]) for answer in answers]
    return said[0][0] > 0 and all(each == said[0] for each in said)


@pytest.fixture
async def workers(tmp_path: Path, site: Site) -> AsyncIterator[RouterProcess]:
    """One router of two workers, without a Redis."""
    router = RouterProcess(tmp_path, "w", workers=2, state=True, policy=POLICY)
    try:
        await router.start()
        await site.start(router.beat_addresses)
        for number in range(2):
            await until(lambda number=number: serves(router, number), within_s=20.0)
        yield router
    finally:
        router.kill()


async def test_workers_without_redis_share_the_state_directory(workers: RouterProcess, site: Site) -> None:
    code, _, complaint = await workers.command(
        "canary", "start", "try", "--model", "gpt", "--to", "llama-next", worker=0
    )
    assert code == 1
    assert "targets[0].model is 'gpt', which no cluster serves" in complaint
    start = ("canary", "start", "try", "--model", "llama-next", "--to", "llama", "--weight", "90")
    code, _, complaint = await workers.command(*start, worker=0)
    assert (code, complaint) == (0, "")
    await until(lambda: is_state(workers, "try", "running", worker=1))
    code, out, complaint = await workers.command("canary", "abort", "try", worker=1)
    assert (code, complaint) == (0, "")
    await until(lambda: is_state(workers, "try", "aborted", worker=0))

    workers.kill()
    await workers.start()
    for number in range(2):
        assert await workers.canary("try", worker=number) == "aborted"
    code, out, complaint = await workers.command("status", worker=1)
    assert complaint.startswith("answered by w/1, one of 2 workers")
    assert "known to the 2 workers of this router, also after a restart" in " ".join(out.split())
    assert (await workers.command("canary", "remove", "try", worker=1))[0] == 0
    await until(lambda: is_state(workers, "try", "", worker=0))


async def test_a_cluster_that_has_not_reported_yet_can_be_drained_and_comes_back_drained(
    tmp_path: Path, site: Site
) -> None:
    router = RouterProcess(tmp_path, "r", policy=POLICY)
    try:
        await router.start()
        code, out, complaint = await router.command("drain", "eu-1")
        assert (code, complaint) == (0, "")
        assert "eu-1: noted for when it reports" in out
        code, _, complaint = await router.command("drain", "eu-2")
        assert code == 1
        assert "cluster 'eu-2' is unknown; known are eu-1" in complaint
        await site.start(router.beat_addresses)
        await until(lambda: is_intent(router, "drain"), within_s=20.0)
    finally:
        router.kill()


async def test_a_reload_asks_no_worker_for_a_restart_because_of_its_own_ports(workers: RouterProcess) -> None:
    workers.rewrite(policy=POLICY | {"models": [{"name": "llama", "aliases": ["gpt-4"]}]})
    for number in range(2):
        await until(lambda number=number: is_version(workers, 2, number), within_s=5.0)
        assert (await workers.get("/admin/config", worker=number))["restart_needed"] == []
    workers.rewrite(policy=POLICY | {"limits": LIMITS})
    for number in range(2):
        await until(lambda number=number: is_rejected(workers, "with 2 workers", number), within_s=5.0)


async def test_workers_with_nowhere_to_keep_orders_share_a_directory_that_ends_with_them(tmp_path: Path) -> None:
    router = RouterProcess(tmp_path, "w", workers=2, policy=POLICY)
    try:
        await router.start()
        code, _, complaint = await router.command("canary", "abort", "next", worker=1)
        assert (code, complaint) == (0, "")
        await until(lambda: is_state(router, "next", "aborted", worker=0))
        place = (await router.get("/admin/orders"))["place"]
        assert await asyncio.to_thread(Path(place).exists)
        router.terminate()
        assert (await router.ended())[0] == 0
        assert not await asyncio.to_thread(Path(place).parent.exists)
    finally:
        router.kill()


async def test_workers_that_could_not_share_limits_are_refused_from_the_command_line_too(tmp_path: Path) -> None:
    router = RouterProcess(tmp_path, "w", workers=2, policy=POLICY | {"limits": LIMITS})
    router.launch()
    try:
        code, said = await router.ended()
    finally:
        router.kill()
    assert code == 2
    assert "--workers 2: policy.limits" in said
    assert "set store.kind to redis" in said


async def is_rejected(router: RouterProcess, why: str, worker: int) -> bool:
    return why in (await router.get("/admin/config", worker=worker))["rejected"]


async def is_version(router: RouterProcess, version: int, worker: int) -> bool:
    return bool((await router.get("/admin/config", worker=worker))["version"] == version)


async def is_state(router: RouterProcess, rule: str, state: str, worker: int = 0) -> bool:
    return await router.canary(rule, worker=worker) == state


async def is_intent(router: RouterProcess, wanted: str) -> bool:
    return await intent(router) == wanted


async def is_up(router: RouterProcess) -> bool:
    answer = await router.get("/admin/orders")
    return bool(answer["up"]) and answer["untold"] == 0


async def has_limit(router: RouterProcess, number: int) -> bool:
    return bool((await router.get("/admin/limits"))["rules"][0]["requests_per_min"] == number)
