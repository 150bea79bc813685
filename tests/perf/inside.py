"""The router without its sockets: user CPU per request of everything between two transports.

`python -m tests.perf.inside [--prompt-bytes N] [--profile SORT]`

Client and upstream connections are the real protocol objects over transports that answer at once, so that parsing,
pipeline, placement and accounting are all that is measured. The figure is steady to a few percent on a busy machine,
which the bench over sockets is not: this is the one to optimise by. `--profile` prints where the time goes.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import os
import pstats
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import uvloop

from gir.app import Router
from gir.control.config import from_text
from gir.model.beat import AgentHello
from gir.model.ids import ClusterId, RegionId, TierName
from gir.net.connection import ServerConnection
from gir.net.link import UpstreamLink
from gir.net.pool import UpstreamPool
from tests.perf.fake_agent import report
from tests.perf.gir_process import config
from tests.perf.load import chat_target
from tests.perf.mock_engine import COMPLETION

CONNECTIONS = 8


class _Transport:
    """The part of a transport that connections use, with nothing behind it."""

    def set_write_buffer_limits(self, **limits: int) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass


class _Engine(_Transport):
    """An upstream that has answered by the next turn of the loop."""

    def __init__(self, link: UpstreamLink) -> None:
        self._link = link

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.write(parts[0])

    def write(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._link.data_received, COMPLETION)


class _Client(_Transport):
    """A client that asks again as soon as it has its answer."""

    def __init__(self, requests: list[bytes], count: int) -> None:
        self._requests = requests
        self._left = count
        self.done = asyncio.get_running_loop().create_future()
        self.connection: ServerConnection | None = None

    def write(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200 "):
            self.done.set_exception(AssertionError(data[:300]))
            return
        asyncio.get_running_loop().call_soon(self.ask)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.write(parts[0])

    def ask(self) -> None:
        """Send the next request, or be done."""
        self._left -= 1
        if self._left < 0:
            self.done.set_result(None)
            return
        assert self.connection is not None
        self.connection.data_received(self._requests[self._left % len(self._requests)])


async def _connected(pool: UpstreamPool, total_at_s: float = 0.0) -> UpstreamLink:
    link = UpstreamLink(pool)
    link.connection_made(cast("Any", _Engine(link)))
    pool._links.add(link)
    return link


async def start() -> Router:
    """A router with every feature on, as the bench over sockets runs it, and two clusters that are never full."""
    UpstreamPool.connect = _connected  # type: ignore[method-assign]
    clusters = ("bench-0", "bench-1")
    text = json.dumps(config(0, 0, 0, clusters))
    # Beats and probes would come from outside; here the registry is told once, and believes it for the run's seconds.
    router = Router(from_text(text, source="bench"), log_stream=sys.stderr)
    await router.start()
    for name in clusters:
        now_s = router._clock.monotonic_s()
        hello = AgentHello(
            cluster=ClusterId(name),
            region=RegionId("bench"),
            url="http://127.0.0.1:1",
            tier=TierName("reserved"),
            epoch=1,
        )
        router._registry.hello(hello, now_s)
        router._registry.beat(report(ClusterId(name)), now_s)
    router._registry.reconcile(router._clock.monotonic_s())
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    return router


async def request_us(router: Router, *, count: int, prompt_bytes: int) -> float:
    """CPU microseconds each of `count` requests takes."""
    server = router._server
    requests = list(chat_target(1, prompt_bytes=prompt_bytes).requests)
    clients = [_Client(requests, count // CONNECTIONS) for _ in range(CONNECTIONS)]
    for client in clients:
        client.connection = ServerConnection(server, "127.0.0.1")
        client.connection.connection_made(cast("Any", client))
    started_s = time.process_time()
    for client in clients:
        client.ask()
    await asyncio.gather(*(client.done for client in clients))
    return (time.process_time() - started_s) / count * 1e6


async def _main(prompt_bytes: int, sort: str | None) -> None:
    router = await start()
    await request_us(router, count=2_000, prompt_bytes=prompt_bytes)
    if sort is not None:
        profile = cProfile.Profile()
        profile.enable()
        await request_us(router, count=8_000, prompt_bytes=prompt_bytes)
        profile.disable()
        pstats.Stats(profile).sort_stats(sort).print_stats(80)
    rounds = [await request_us(router, count=4_000, prompt_bytes=prompt_bytes) for _ in range(8)]
    print(f"{min(rounds):.1f} us/request at best, " + " ".join(f"{took_us:.1f}" for took_us in rounds), flush=True)
    os._exit(0)  # the stand-ins cannot be closed in good order, and need not be


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-bytes", type=int, default=400)
    parser.add_argument("--profile", choices=["tottime", "cumtime"])
    options = parser.parse_args()
    uvloop.run(_main(options.prompt_bytes, options.profile))


if __name__ == "__main__":
    main()
