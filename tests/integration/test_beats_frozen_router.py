"""A router whose process is frozen keeps its sockets; agents must notice all the same, within 4 s."""

import asyncio
import signal
import sys
import time

import pytest

from tests.integration.test_beats_stream import until
from tests.support.beats import agent

ROUTER = """
import asyncio
from tests.support.beats import Router

async def main():
    router = Router(interval_s=2.0)
    print(await router.start(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_frozen_router_is_noticed_within_four_seconds() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ROUTER, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        client = agent([(await process.stdout.readline()).decode().strip()])
        client.start()
        await until(lambda: client.links_up == 1)
        process.send_signal(signal.SIGSTOP)
        started = time.perf_counter()
        await until(lambda: client.links_up == 0, 6.0)
        assert time.perf_counter() - started <= 4.2
        await client.close()
    finally:
        process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]
