"""Clusters that exist in beats only: the real beat client, a constant report, no data path of their own.

`python -m tests.perf.fake_agent --router 127.0.0.1:7070 --cluster NAME URL TOKEN ...`

Each cluster claims slots enough never to be full and names the engine at URL as its data path. Ends with its standard
input.
"""

import argparse
import asyncio
import sys

import uvloop
from prometheus_client.registry import CollectorRegistry

from gir.clock import SystemClock
from gir.model.beat import AgentHello, BeatReport
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId, RegionId, TierName
from gir.telemetry.logs import LogSink, make_logger
from gir.telemetry.metrics import AgentMetrics
from tests.perf.mock_engine import MODEL
from tier1_agent.beats import BeatClient

SLOTS = 100_000


def report(cluster: ClusterId) -> BeatReport:
    """A big idle cluster."""
    pool = PoolState(
        model=ModelId(MODEL),
        pods_ready=16,
        slots_total=SLOTS,
        slots_free=SLOTS,
        running=0,
        waiting=0,
        prefill_tokens_per_s=20_000.0,
        service_rate_per_s=10_000.0,
    )
    return BeatReport(cluster=cluster, epoch=1, seq=1, pools=(pool,))


def client(name: str, url: str, router: str, token: str) -> BeatClient:
    """The beat client of one cluster, not yet started."""
    clock = SystemClock()
    cluster = ClusterId(name)
    hello = AgentHello(
        cluster=cluster,
        region=RegionId("bench"),
        url=url,
        tier=TierName("reserved"),
        price_per_slot_hour=1.0,
        epoch=int(clock.wall_s()),
    )
    log = make_logger(LogSink(sys.stderr), clock, component="fake-agent", level="warning")
    metrics = AgentMetrics(CollectorRegistry())
    return BeatClient(hello, lambda: report(cluster), [router], token, clock=clock, metrics=metrics, log=log)


async def _beat(clusters: list[list[str]], router: str) -> None:
    clients = [client(name, url, router, token) for name, url, token in clusters]
    for one in clients:
        one.start()
    # Whoever started this process holds the other end of stdin: when that process dies, so does this one.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await asyncio.gather(*(one.close() for one in clients))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", required=True, help="host:port of the router's beat server")
    parser.add_argument("--cluster", nargs=3, action="append", required=True, metavar=("NAME", "URL", "TOKEN"))
    options = parser.parse_args()
    uvloop.run(_beat(options.cluster, options.router))


if __name__ == "__main__":
    main()
