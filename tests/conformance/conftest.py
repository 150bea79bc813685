"""Each conformance test runs against every adapter of the port."""

from collections.abc import AsyncIterator, Iterator

import pytest

from gir.admit.ports import LimitStore
from gir.clock import SystemClock
from gir.stores.memory import MemoryStore
from gir.stores.redis import RedisStore
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One server for the session; tests use their own keys."""
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[LimitStore]:
    """The port under test, empty."""
    adapter: LimitStore
    if request.param == "memory":
        adapter = MemoryStore(SystemClock())
    else:
        server: RedisServer = request.getfixturevalue("redis")
        server.cli("FLUSHALL")
        adapter = RedisStore(server.url)
        await adapter.connect()
    yield adapter
    await adapter.close()
