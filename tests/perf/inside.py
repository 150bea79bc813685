"""The router without its sockets: user CPU per request of everything between two transports.

`python -m tests.perf.inside [--prompt-bytes N] [--profile SORT]`

Client and upstream connections are the real protocol objects over transports that answer at once, so that parsing,
pipeline, placement and accounting are all that is measured. The figure is steady to a few percent on a busy machine,
which the bench over sockets is not: this is the one to optimise by. `--profile` prints where the time goes.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import time
from typing import Any, NamedTuple, cast

import uvloop

from gir.account.recorder import Recorder
from gir.model.ids import ModelId
from gir.net.connection import ServerConnection
from gir.net.link import UpstreamLink
from gir.net.pool import UpstreamPool
from tests.perf.load import chat_target
from tests.perf.mock_engine import COMPLETION
from tests.support import router as support
from tests.support.router import TestRouter

CONNECTIONS = 8
SLOTS = 4_096


class _Transport:
    """The part of a transport that connections use, with nothing behind it."""

    def set_write_buffer_limits(self, high: int) -> None:
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
        assert data.startswith(b"HTTP/1.1 200 "), data[:300]
        asyncio.get_running_loop().call_soon(self.ask)

    def ask(self) -> None:
        """Send the next request, or be done."""
        self._left -= 1
        if self._left < 0:
            self.done.set_result(None)
            return
        assert self.connection is not None
        self.connection.data_received(self._requests[self._left % len(self._requests)])


class _Cluster(NamedTuple):
    name: str
    url: str = "http://127.0.0.1:1"


async def _connected(pool: UpstreamPool, total_at_s: float = 0.0) -> UpstreamLink:
    link = UpstreamLink(pool)
    link.connection_made(cast("Any", _Engine(link)))
    pool._links.add(link)
    return link


async def start() -> TestRouter:
    """A router whose two clusters are always there and never full."""
    support.API_KEY, support.MODEL = "sk-gir-bench", ModelId("bench")
    UpstreamPool.connect = _connected  # type: ignore[method-assign]
    clusters = [_Cluster("bench-0"), _Cluster("bench-1")]
    router = TestRouter(cast("Any", clusters))
    router.recorder = cast("Any", Recorder(router.metrics, router.clock, None))
    await router.start()
    for cluster in clusters:
        router.beat(cast("Any", cluster), slots=SLOTS)
    router.registry.reconcile(router.clock.monotonic_s())
    return router


async def request_us(router: TestRouter, *, count: int, prompt_bytes: int) -> float:
    """CPU microseconds each of `count` requests takes."""
    server = router._server
    assert server is not None
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
