"""A router whose process is frozen keeps its sockets; agents must notice all the same, within 4 s.

With short intervals the deadline of an Ack tells; between long ones only the transport's ping can.
"""

import asyncio
import signal
import sys
import time

import pytest

from tests.integration.test_beats_stream import until
from tests.support.beats import agent

ROUTER = """
import asyncio, sys
from tests.support.beats import Router

async def main():
    router = Router(interval_s=float(sys.argv[1]))
    print(await router.start(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("interval_s", [2.0, 30.0])
async def test_a_frozen_router_is_noticed_within_four_seconds(interval_s: float) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ROUTER, str(interval_s)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        client = agent([(await process.stdout.readline()).decode().strip()])
        client.start()
        await until(lambda: client.state()[0].acknowledged == 1)
        process.send_signal(signal.SIGSTOP)
        started = time.perf_counter()
        await until(lambda: client.links_up == 0, 6.0)
        assert time.perf_counter() - started <= 4.2
        await client.close()
    finally:
        process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]
