"""`gir demo`: a whole fleet on this machine, a little traffic through it, and a screen that shows what it does.

Ctrl-C, SIGTERM, SIGHUP, the end of `--duration` and any error all end the same way: every process is gone.
"""

import argparse
import asyncio
import json
import shlex
import signal
import sys
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chaos import topology
from chaos.caretaker import Caretaker
from chaos.children import ChildError
from chaos.engine.server import write_ready
from chaos.fleet import Fleet, get
from chaos.history import Record, percentile
from chaos.load import Load, LoadPlan
from gir.clock import SystemClock

TRAFFIC_RPS = 4.0
BASE_SHARE = 4
"""Requests for the base model beside each one for an adapter."""
FOREVER_S = 1e9
RECENT_S = 10.0
"""Shares are of the requests sent in so many seconds: enough to be steady, few enough to see traffic move."""
RECENT_MAX = 200
LINE_EVERY_S = 5.0
RETURN_S = 20.0
"""How long a killed cluster stays away: long enough to see it called dead."""
EVENTS_SHOWN = 4
COLOURS = {"healthy": "green", "ramping": "cyan", "suspect": "yellow", "dead": "red"}


def main(command: str, arguments: Sequence[str]) -> int:
    """Exit codes: 0 ended as asked, 1 a process failed or the ready file cannot be written, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog=f"gir {command}", description=__doc__)
    parser.add_argument("--ready-file", type=Path, metavar="F", help="write addresses and pids as JSON once serving")
    parser.add_argument("--duration", type=seconds, metavar="S", help="end after so many seconds; default: on Ctrl-C")
    parser.add_argument("--no-traffic", action="store_true", help="send no background requests")
    options = parser.parse_args(arguments)
    # A shell starts what it puts in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    code = 0
    try:
        _run(options)
    except KeyboardInterrupt:
        pass
    except (ChildError, OSError) as error:
        sys.stderr.write(f"gir demo: {error}\n")
        code = 1
    _say("Everything is stopped.")
    return code


def seconds(text: str) -> float:
    """A duration of the command line; ValueError unless it is a number > 0."""
    duration_s = float(text)
    if not 0.0 < duration_s <= FOREVER_S:
        raise ValueError(f"{text} is no duration")
    return duration_s


def _run(options: argparse.Namespace) -> None:
    shape = topology.demo()
    regions = {cluster.region for cluster in shape.clusters}
    _say(f"Starting {len(shape.clusters)} clusters in {len(regions)} Regions and a router ...")
    with Fleet.start(shape) as fleet:
        _say(introduction(fleet.describe()))
        if options.ready_file is not None:
            write_ready(options.ready_file, fleet.describe())
        traffic = None if options.no_traffic else Traffic(fleet)
        with asyncio.Runner() as runner:
            runner.run(_show(fleet, traffic, FOREVER_S if options.duration is None else options.duration))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def introduction(ready: dict[str, Any]) -> str:
    """What to paste, for the fleet of a ready file."""
    url, key, model = ready["router_url"], ready["api_key"], ready["models"][0]
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]})
    first, canary = ready["clusters"][0]["name"], ready["models"][-1]
    pids = "\n".join(f"  kill -9 {' '.join(map(str, c['pids']))}   # {c['name']}" for c in ready["clusters"])
    return f"""
One address: {url}/v1   (API key {key})
Admin:       {ready["admin_url"]}

curl -N {url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' -d {shlex.quote(body)}

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
for chunk in client.chat.completions.create(
    model="{model}", stream=True, messages=[{{"role": "user", "content": "Hello"}}]
):
    print(chunk.choices[0].delta.content or "", end="")

Models: {", ".join(ready["models"])}   (.venv/bin/python has the openai package)

export GIR_ADMIN_URL={ready["admin_url"]}
.venv/bin/gir status
.venv/bin/gir explain --model {model}

Kill a cluster and watch where its traffic goes. It is started again {RETURN_S:.0f} s later, proves itself and ramps:
{pids}

What else to try:
  kill -STOP and kill -CONT with those numbers     freeze a cluster, and thaw it
  .venv/bin/gir drain {first}; .venv/bin/gir undrain {first}     move work away by hand, and back
  .venv/bin/gir canary start try --model {model} --to {canary} --weight 20; .venv/bin/gir canary status
  .venv/bin/gir explain ID                         of any answer's x-request-id: why that cluster
  kill everything at once                          503 with Retry-After, and how soon it serves again
Then the same with your own engines: deploy/examples, and "With your own engines" in README.md
"""


class Traffic:
    """A little background load, and what became of the latest requests."""

    def __init__(self, fleet: Fleet) -> None:
        plan = LoadPlan(
            url=fleet.router_url,
            rps=TRAFFIC_RPS,
            duration_s=FOREVER_S,
            models=(*fleet.topology.models, *BASE_SHARE * (fleet.topology.clusters[0].model,)),
            keys=(("demo", fleet.api_key),),
            output_tokens=48,
            prefixes=12,
            prefix_tokens=80,  # long ones keep traffic from a cluster that returns with cold caches
            users=500,
            in_flight_max=100,
        )
        self._clock = SystemClock()
        self.load = Load(plan, self._clock, self._ended, keep=False)
        self.requests = 0
        self.failed = 0
        self.broken = 0
        self._recent: deque[Record] = deque(maxlen=RECENT_MAX)

    def _ended(self, record: Record) -> None:
        self.requests += 1
        self.failed += record.failed_before_token
        self.broken += record.failed_after_token
        self._recent.append(record)

    def share(self, cluster: str) -> float:
        """Part of the latest requests that a cluster answered."""
        since_s = self._clock.monotonic_s() - RECENT_S
        answered = Counter(record.cluster for record in self._recent if record.sent_s >= since_s)
        return answered[cluster] / max(1, answered.total())

    def line(self) -> str:
        """One line on the latest requests."""
        ttft = [r.first_token_s - r.sent_s for r in self._recent if r.stream and r.first_token_s is not None]
        median_s = percentile(ttft, 0.5)
        shown = "-" if median_s is None else f"{median_s * 1e3:.0f} ms"
        return (
            f"{self.requests} requests, {self.failed} failed, {self.broken} broken off later, first token p50 {shown}"
        )


async def _show(fleet: Fleet, traffic: Traffic | None, duration_s: float) -> None:
    """The screen (or plain lines) until the time is up; ChildError when a router ends."""
    async with asyncio.TaskGroup() as group:
        load = group.create_task(traffic.load.run()) if traffic is not None else None
        try:
            await _watch(fleet, traffic, duration_s)
        finally:
            if load is not None:
                load.cancel()


async def _watch(fleet: Fleet, traffic: Traffic | None, duration_s: float) -> None:
    console, clock = Console(), SystemClock()
    end_s = clock.monotonic_s() + duration_s
    caretaker = Caretaker(fleet, RETURN_S)
    if console.is_terminal:
        events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while await _pause(clock, min(1.0, end_s - clock.monotonic_s())):
                rows = await _rows(fleet)
                events.extend(caretaker.look(_states(rows), clock.monotonic_s()))
                live.update(Group(*_screen(rows, fleet, traffic), *map(Text, events)))
                _check(fleet)
        return
    line_s = clock.monotonic_s() + LINE_EVERY_S
    while await _pause(clock, min(1.0, end_s - clock.monotonic_s())):
        rows = await _rows(fleet)
        for event in caretaker.look(_states(rows), clock.monotonic_s()):
            _say(event)
        _check(fleet)
        if clock.monotonic_s() >= line_s:
            line_s += LINE_EVERY_S
            states = [f"{row['cluster']}:{row['state']}{_share(traffic, row)}" for row in rows]
            _say("  ".join([*states, traffic.line() if traffic is not None else ""]).rstrip())


def _states(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["cluster"]: row["state"] for row in rows}


async def _pause(clock: SystemClock, duration_s: float) -> bool:
    """Wait; False when the time is up."""
    await clock.sleep_s(duration_s)
    return duration_s > 0


def _check(fleet: Fleet) -> None:
    """Clusters may be killed, that is what a demo is for; without its router there is none."""
    for router in fleet.routers:
        if router.process is not None and not router.process.alive:
            raise router.process.trouble("ended unexpectedly")


async def _rows(fleet: Fleet) -> list[dict[str, Any]]:
    status, body = await asyncio.to_thread(get, f"{fleet.admin_url}/admin/clusters")
    rows: list[dict[str, Any]] = json.loads(body)["clusters"] if status == 200 else []
    return rows


def _screen(rows: list[dict[str, Any]], fleet: Fleet, traffic: Traffic | None) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False)
    for name in ("Region", "cluster", "tier", "state", "busy", f"last {RECENT_S:.0f} s", ""):
        table.add_column(name, no_wrap=True)
    for row in rows:
        busy = f"{row['slots_total'] - row['slots_free']}/{row['slots_total']}" if row["figures"] == "current" else "-"
        status = Text(row["state"], style=COLOURS.get(row["state"], ""))
        table.add_row(
            row["region"], row["cluster"], row["tier"], status, busy, _share(traffic, row), Text(row["reason"], "dim")
        )
    lines = [traffic.line()] if traffic is not None else []
    lines += [f"{fleet.router_url}/v1   key {fleet.api_key}", "Ctrl-C ends everything; what to try stands above"]
    return [table, *(Text(line, "dim") for line in lines)]


def _share(traffic: Traffic | None, row: dict[str, Any]) -> str:
    return f" {traffic.share(row['cluster']):.0%}" if traffic is not None else ""
