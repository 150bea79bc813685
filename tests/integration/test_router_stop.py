"""A router process comes up when its fleet has, and goes down in order (F36)."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.beats import agent, hello
from tests.support.routers import RouterProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]
LISTEN_S = 1.0
AGENTS = [{"cluster": "eu-1", "token": {"value": "token-eu"}}, {"cluster": "us-1", "token": {"value": "token-us"}}]
UPLOAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n" + b"x" * 50_000


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[RouterProcess]:
    made = RouterProcess(tmp_path, "one", agents=AGENTS, drain={"listen_s": LISTEN_S, "finish_s": 30.0})
    await made.start()
    yield made
    made.kill()


async def accepts(router: RouterProcess) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", router.port)
    except OSError:
        return False
    writer.close()
    return True


async def until_ready(router: RouterProcess, *, within_s: float) -> None:
    since_s = time.perf_counter()
    while (await router.ask("GET", "/readyz"))[0] != 200:
        assert time.perf_counter() - since_s < within_s
        await asyncio.sleep(0.05)


async def test_traffic_is_taken_when_every_expected_cluster_has_reported(router: RouterProcess) -> None:
    assert await router.ask("GET", "/readyz") == (503, {"ready": False, "reasons": ["no cluster has reported yet"]})
    one = agent(router.beat_addresses, token="token-eu", hello=hello("eu-1"))
    other = agent(router.beat_addresses, token="token-us", hello=hello("us-1"))
    one.start()
    waiting = {"ready": False, "reasons": ["waiting for us-1 to report"]}
    while await router.ask("GET", "/readyz") != (503, waiting):
        await asyncio.sleep(0.05)
    other.start()
    await until_ready(router, within_s=5.0)
    await one.close()
    await other.close()


@pytest.mark.full
async def test_a_cluster_that_never_comes_is_not_waited_for_for_ever(router: RouterProcess) -> None:
    one = agent(router.beat_addresses, token="token-eu", hello=hello("eu-1"))
    one.start()
    await until_ready(router, within_s=20.0)
    await one.close()


async def test_told_once_it_listens_a_while_and_ends_well_told_twice_it_ends_at_once(router: RouterProcess) -> None:
    since_s = time.perf_counter()
    router.terminate()
    while "stopping" not in (await router.ask("GET", "/readyz"))[1]["reasons"]:
        assert time.perf_counter() - since_s < 0.5
        await asyncio.sleep(0.01)
    while await accepts(router):
        await asyncio.sleep(0.02)
    assert LISTEN_S - 0.1 <= time.perf_counter() - since_s <= LISTEN_S + 1.0
    code, log = await router.ended()
    assert code == 0, log
    await router.start()
    _, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(UPLOAD)
    await writer.drain()
    router.terminate()
    await asyncio.sleep(LISTEN_S + 0.5)
    since_s = time.perf_counter()
    router.terminate()
    code, log = await router.ended()
    assert time.perf_counter() - since_s <= 1.5
    assert code == 1, f"a request was cut, and that must show: {log}"
    with contextlib.suppress(OSError):
        writer.close()
