"""What the desk relies on, whatever keeps the operators' orders."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gir.admit.ports import StoreError
from gir.control.orders import Kept, OrderStore
from gir.stores.orders_file import LOCK_S, FileOrders
from gir.stores.orders_memory import MemoryOrders
from gir.stores.orders_redis import RedisOrders
from tests.support.redis_server import RedisServer, redis_server

Open = Callable[[], OrderStore]
TOO_DEEP = '{"orders":' + "[" * 9_999
ONE, TWO = Kept(1, b'{"format":1}'), Kept(2, b'{"format":1,"limits":{}}')


@pytest.fixture(params=["memory", "file", "redis"])
async def another(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the store once more, as another router would."""
    opened: list[OrderStore] = []
    shared = MemoryOrders()

    def one() -> OrderStore:
        if request.param == "memory":
            return shared
        store = FileOrders(tmp_path / "state") if request.param == "file" else RedisOrders(server.url)
        opened.append(store)
        return store

    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        server.cli("FLUSHALL")
    yield one
    for store in opened:
        await store.close()


async def test_an_empty_store_holds_version_zero(another: Open) -> None:
    assert await another().read() == Kept(0, b"")


async def test_what_one_router_writes_another_reads(another: Open) -> None:
    here, there = another(), another()
    assert await here.replace(0, ONE)
    assert await there.read() == ONE
    assert await there.replace(1, TWO)
    assert await here.read() == TWO


async def test_who_has_not_seen_the_newest_replaces_nothing(another: Open) -> None:
    here, there = another(), another()
    assert await here.replace(0, ONE)
    assert not await there.replace(0, Kept(1, b'{"format":1,"clusters":{}}'))
    assert not await there.replace(2, Kept(3, b'{"format":1,"clusters":{}}'))
    assert await there.read() == ONE


async def test_of_many_at_once_one_is_first(another: Open) -> None:
    stores = [another() for _ in range(6)]
    for version in range(4):
        texts = [json.dumps({"format": 1, "by": number}).encode() for number in range(len(stores))]
        tries = [store.replace(version, Kept(version + 1, text)) for store, text in zip(stores, texts, strict=True)]
        won = [number for number, did in enumerate(await asyncio.gather(*tries)) if did]
        assert len(won) == 1
        assert await stores[0].read() == Kept(version + 1, texts[won[0]])


async def test_a_lost_history_may_be_given_back(another: Open) -> None:
    assert await another().replace(0, Kept(41, b'{"format":1}'))
    assert (await another().read()).version == 41


async def test_it_says_what_and_where_it_is(another: Open) -> None:
    store = another()
    assert store.kind in ("memory", "file", "redis")
    assert store.place


async def test_a_file_outlives_its_writers_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    await FileOrders(tmp_path).replace(0, ONE)
    assert await FileOrders(tmp_path).read() == ONE
    assert (tmp_path / "orders.json").stat().st_mode & 0o777 == 0o600
    assert set(os.listdir(tmp_path)) == {"orders.json", "orders.lock"}


@pytest.mark.parametrize("text", ["", "{", '{"version": "x"}', '{"version": 1, "more": 2}', "\xff", TOO_DEEP])
async def test_a_damaged_file_is_an_error_and_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "orders.json").write_text(text, encoding="latin-1")
    store = FileOrders(tmp_path)
    with pytest.raises(StoreError, match=r"orders\.json is damaged"):
        await store.read()
    with pytest.raises(StoreError, match="damaged"):
        await store.replace(0, ONE)
    assert (tmp_path / "orders.json").read_text(encoding="latin-1") == text


async def test_a_pipe_in_the_files_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "orders.json")
    with pytest.raises(StoreError, match="no regular file"):
        await asyncio.wait_for(FileOrders(tmp_path).read(), 5.0)


async def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, not a directory")
    with pytest.raises(StoreError, match="state"):
        await FileOrders(tmp_path / "state").replace(0, ONE)


@pytest.mark.slow
async def test_a_lock_that_is_held_for_long_is_not_waited_for(tmp_path: Path) -> None:
    import fcntl

    lock = os.open(tmp_path / "orders.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    store = FileOrders(tmp_path)
    with pytest.raises(StoreError, match=f"held its lock for {LOCK_S:g} s"):
        await store.replace(0, ONE)
    os.close(lock)
    assert await store.replace(0, ONE)


async def test_fields_that_are_no_orders_are_an_error(redis: RedisServer) -> None:
    redis.cli("FLUSHALL")
    redis.cli("HSET", "{gir}:orders", "version", "many")
    store = RedisOrders(redis.url)
    with pytest.raises(StoreError, match="holds no orders"):
        await store.read()
    await store.close()


@pytest.mark.slow
async def test_a_redis_that_is_gone_or_frozen_is_an_error_in_time_and_comes_back(redis: RedisServer) -> None:
    redis.cli("FLUSHALL")
    store = RedisOrders(redis.url)
    await store.replace(0, ONE)
    redis.pause()
    loop = asyncio.get_running_loop()
    since_s = loop.time()
    with pytest.raises(StoreError):
        await store.read()
    assert loop.time() - since_s < 0.3
    redis.resume()
    assert await store.read() == ONE
    await store.close()
    nobody = RedisOrders("redis://user:secret@127.0.0.1:1")
    with pytest.raises(StoreError) as refused:
        await nobody.read()
    assert "secret" not in f"{refused.value}{nobody.place}"
    await nobody.close()


@pytest.mark.slow
async def test_a_redis_cluster_keeps_them_as_well() -> None:
    with redis_server("--cluster-enabled", "yes") as node:
        node.cli("CLUSTER", "ADDSLOTS", *map(str, range(16_384)))
        store = RedisOrders(f"redis+cluster://127.0.0.1:{node.port}")
        async with asyncio.timeout(10.0):
            while "cluster_state:ok" not in await asyncio.to_thread(node.cli, "CLUSTER", "INFO"):
                await asyncio.sleep(0.05)
        assert await store.replace(0, ONE)
        assert await store.read() == ONE
        assert not await store.replace(0, TWO)
        await store.close()
