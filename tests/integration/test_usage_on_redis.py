"""Usage totals of several replicas on a real Redis, and what the admin port says of them."""

import json
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from gir.account.fleet import FleetUsage, UsageStoreError
from gir.account.ledger import UsageLedger
from gir.admin.usage import UsageApi
from gir.clock import SystemClock
from gir.model.ids import ModelId, TenantId
from gir.model.outcome import Outcome
from gir.model.request import Usage
from gir.stores.usage_redis import RedisUsage
from gir.telemetry.admin import AdminAccess, AdminServer, Readiness, build_app
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


class Replica:
    """A ledger that tells a Redis."""

    def __init__(self, server: RedisServer, name: str, *, prefix: str = "gir") -> None:
        clock = SystemClock()
        self.ledger = UsageLedger(since_wall_s=clock.wall_s())
        self.fleet = FleetUsage(
            self.ledger,
            RedisUsage(server.url, prefix=prefix),
            replica=name,
            clock=clock,
            on_change=lambda ok, reason: None,
        )

    def serve(self, tenant: str, model: str, tokens: int) -> None:
        account = self.ledger.open(TenantId(tenant), ModelId(model))
        account.settle(Outcome.COMPLETED, Usage(prompt_tokens=tokens, completion_tokens=1))


async def test_replicas_add_up_also_those_that_have_ended(server: RedisServer) -> None:
    first, second, ended = (Replica(server, name) for name in ("a#1", "b#2", "a#0"))
    stranger = Replica(server, "x", prefix="other")
    for replica in (first, second, ended, stranger):
        replica.serve("acme", "llama", 10)
    second.serve('be"ta\n', "qwen", 5)
    for replica in (ended, stranger):
        await replica.fleet.close()
    for _ in range(3):
        await second.fleet.tell()
    totals = await first.fleet.read()
    rows = {(row.tenant, row.model): (row.requests, row.prompt_tokens) for row in totals.rows}
    assert rows == {("acme", "llama"): (3, 30), ('be"ta\n', "qwen"): (1, 5)}
    assert sorted(one.replica for one in totals.replicas) == ["a#0", "a#1", "b#2"]
    assert all(abs(one.told_unix_s - SystemClock().wall_s()) < 5.0 for one in totals.replicas)
    assert 39 * 86_400 < int(server.cli("TTL", "{gir}:usage:a#0")) <= 40 * 86_400, "kept for a month, not for ever"
    for replica in (first, second):
        await replica.fleet.close()


async def test_a_store_that_is_away_or_holds_nonsense_says_so(server: RedisServer) -> None:
    replica = Replica(server, "a")
    await replica.fleet.tell()
    server.cli("HSET", "{gir}:usage:b", "row", "[1]")
    server.cli("ZADD", "{gir}:usage", "1", "b")
    with pytest.raises(UsageStoreError, match="b has told cannot be read"):
        await replica.fleet.read()
    server.cli("ZREM", "{gir}:usage", "b")
    server.cli("EVAL", "redis.call('ZADD', KEYS[1], 1, '\\255')", "1", "{gir}:usage")
    assert "\\xff" in [one.replica for one in (await replica.fleet.read()).replicas]
    server.kill()
    with pytest.raises(UsageStoreError):
        await replica.fleet.tell()
    with pytest.raises(UsageStoreError):
        await replica.fleet.read()
    server.start()
    replica.serve("acme", "llama", 3)
    await replica.fleet.tell()
    assert [row.requests for row in (await replica.fleet.read()).rows] == [1]
    await replica.fleet.close()


async def test_any_replica_tells_the_usage_of_the_fleet(server: RedisServer) -> None:
    asked, other = Replica(server, "asked"), Replica(server, "other")
    for replica in (asked, other):
        replica.serve("acme", "llama", 10)
        replica.serve("acme", "qwen", 1)
    await other.fleet.tell()
    app = build_app(
        registry=CollectorRegistry(),
        readiness=lambda: Readiness(ready=True, reasons=()),
        access=AdminAccess(),
        on_error=lambda what, error: pytest.fail(f"{what}: {error!r}"),
    )
    app.add_routes(UsageApi(asked.ledger, asked.fleet).routes())
    admin = AdminServer(app)
    url = f"http://127.0.0.1:{await admin.start('127.0.0.1', 0) or admin.port}/admin/usage"
    async with aiohttp.ClientSession() as session:

        async def get(query: str) -> tuple[int, str]:
            async with session.get(f"{url}?{query}") as answer:
                return answer.status, await answer.text()

        _, own = await get("tenant=acme")
        assert [row["requests"] for row in json.loads(own)["rows"]] == [1, 1]
        _, text = await get("scope=fleet")
        fleet = json.loads(text)
        assert [(row["model"], row["requests"], row["prompt_tokens"]) for row in fleet["rows"]] == [
            ("llama", 2, 20),
            ("qwen", 2, 2),
        ]
        assert {one["replica"]: one["requests"] for one in fleet["replicas"]} == {"asked": 2, "other": 2}
        _, text = await get("scope=fleet&by=tenant&format=csv")
        assert text.splitlines()[1].startswith("acme,*,4,4,")
        assert (await get("scope=galaxy"))[0] == 400
        server.kill()
        status, text = await get("scope=fleet")
        assert status == 503
        assert "scope=replica needs none" in json.loads(text)["error"]["message"]
    for replica in (asked, other):
        await replica.fleet.close()
    await admin.close()
