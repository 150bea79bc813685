"""Clients that misbehave: dripping, hardly reading, sending without measure.

Their deadlines are the server's own and do not scale, so each drill takes as long as they say whatever the scale.
"""

import asyncio
import gzip
from pathlib import Path

import msgspec

from chaos.drill import Drill
from chaos.engine.driver import Stats
from chaos.evidence import samples
from chaos.figures import figure_at_least, figure_at_most
from chaos.fleet import get
from chaos.promises import (
    RUDE,
    Promise,
    control_unmoved,
    no_error_at_all,
    others_unmoved,
)
from chaos.rude import Caller, chat, chunks
from chaos.stage import EXPERIMENT_MODEL, Stage
from chaos.topology import PodShape

DRIPS = 200
HEAD_S = 10.0
"""Time a head may take."""
BODY_S = 10.0
"""Window in which a body must keep its rate; the first one begins with its first byte, so two may pass."""
DRIP_S = 1.0
"""Between two bytes: what the client itself needs to notice."""
DRIP_PATIENCE_S = 60
HEADS, BODIES = "slowest head closed after", "slowest body closed after"
DRIPPED = "dripping clients closed"
STALLED = 16
SIPPING = 8
LONG_TOKENS = 24_000
"""More of a stream than the kernel takes on the way to a client."""
STALL_S = 30.0
WHEEL_S = 2.0
"""How often deadlines of connections are looked at."""
SIP_S = 150.0
GONE = "clients that read nothing written off, after the last token moved"
STREAM_MEMORY = "router's memory for each such stream"
STREAM_BYTES_MAX = 256 * 1024
LIMIT_BYTES = 1024 * 1024
PARALLEL = 1_000
GROWTH_MAX = 10.0
BLOCK_S = 0.03


async def _nothing(stage: Stage) -> None:
    stage.mark("idle")


def _caller(stage: Stage) -> Caller:
    return Caller(stage.fleet.router_url, stage.fleet.keys["experiment"], stage.clock)


def _rss_bytes(stage: Stage) -> int:
    """Resident memory of the router."""
    fields = Path(f"/proc/{stage.router_pids[0]}/statm").read_text().split()
    return int(fields[1]) * 4_096


async def _drip(stage: Stage) -> None:
    """Two hundred heads and two hundred bodies, a byte a second each."""
    caller = _caller(stage)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: drill\r\nx-slow: "
    body = caller.head(10_000) + b'{"model":"'
    heads = [caller.drip(head, b"y" * DRIP_PATIENCE_S) for _ in range(DRIPS)]
    bodies = [caller.drip(body, b"y" * DRIP_PATIENCE_S) for _ in range(DRIPS)]
    took_s = await asyncio.gather(*heads, *bodies)
    stage.measured(HEADS, max(took_s[:DRIPS]))
    stage.measured(BODIES, max(took_s[DRIPS:]))
    stage.measured(DRIPPED, sum(seconds < DRIP_PATIENCE_S for seconds in took_s))


async def _sip(stage: Stage) -> None:
    """Streams that nobody reads, and some that are read at a hundred bytes a second."""
    caller, peak = _caller(stage), _Peak(stage)
    loop = asyncio.get_running_loop()
    readers = [
        loop.create_task(caller.sip(EXPERIMENT_MODEL, LONG_TOKENS, bytes_per_s=bytes_per_s))
        for bytes_per_s in [0] * STALLED + [100] * SIPPING
    ]
    watching = loop.create_task(peak.watch())
    made, moved_s = 0, stage.clock.monotonic_s()
    give_up_s = moved_s + SIP_S
    try:
        while (now_s := stage.clock.monotonic_s()) < give_up_s:
            await stage.clock.sleep_s(0.25)
            tokens = await _tokens_made(stage)
            if tokens > made + OTHERS_TOKENS:
                moved_s = now_s
            made = tokens
            if await _gone(stage) >= STALLED:
                stage.measured(GONE, now_s - moved_s)
                break
    finally:
        for task in (watching, *readers):
            task.cancel()
        _ = await asyncio.wait([watching, *readers])
    stage.measured(STREAM_MEMORY, peak.bytes / len(readers) / 1024)


OTHERS_TOKENS = 1_000
"""More than everybody else gets in a quarter of a second, less than one long stream."""


async def _tokens_made(stage: Stage) -> int:
    """Tokens that all engines of the experiment sent so far."""
    tokens = 0
    for pod in stage.experiment_pods:
        status, body = await asyncio.to_thread(get, f"{pod['url']}/debug/stats")
        tokens += msgspec.json.decode(body, type=Stats).tokens_delivered if status == 200 else 0
    return tokens


async def _gone(stage: Stage) -> float:
    """Requests that the router has written off because their client was gone."""
    _, page = await asyncio.to_thread(get, f"{stage.fleet.admin_url}/metrics")
    counts = samples(page.decode()).items()
    return sum(v for name, v in counts if name.startswith("gir_requests_total") and 'outcome="client_gone"' in name)


class _Peak:
    """Largest resident memory of the router while it is watched, above what it had before."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._base_bytes = _rss_bytes(stage)
        self.bytes = 0

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self.bytes = max(self.bytes, _rss_bytes(self._stage) - self._base_bytes)
            await self._stage.clock.sleep_s(0.02)


async def _flood(stage: Stage) -> None:
    """Bodies one byte too long, without end, compressed, full of nothing, and a thousand at once."""
    caller, peak = _caller(stage), _Peak(stage)
    watching = asyncio.get_running_loop().create_task(peak.watch())
    try:
        await _refused(stage, caller)
        await _empty_objects(stage, caller)
        await _at_the_limit(stage, caller)
    finally:
        watching.cancel()
    stage.measured(MEMORY, peak.bytes / (PARALLEL * LIMIT_BYTES))


async def _refused(stage: Stage, caller: Caller) -> None:
    over = _padded(LIMIT_BYTES + 1)
    for expected, head, pieces in (
        (413, caller.head(10 * 1024**3), iter([b"x" * 65_536] * 4)),
        (413, caller.head(len(over)), iter([over])),
        (413, caller.head(None), chunks(b"x" * 65_536, 4_096)),
        (415, caller.head(1_000, "content-encoding: gzip"), iter([gzip.compress(bytes(10_000_000))[:1_000]])),
    ):
        status, _, _ = await caller.post(head, pieces)
        stage.measured(NOT_REFUSED, stage.facts.figures.get(NOT_REFUSED, 0.0) + (status != expected))


async def _empty_objects(stage: Stage, caller: Caller) -> None:
    """0.9 MB of empty objects, ten times over, while others ask for something small."""
    body = b'{"model":"nobody-serves-this","messages":[' + b"{}," * 300_000 + b"{}]}"
    small = chat("nobody-serves-this")
    idle_s = [(await caller.post(caller.head(len(small)), iter([small])))[2] for _ in range(20)]
    for _ in range(10):
        sending = asyncio.get_running_loop().create_task(caller.post(caller.head(len(body)), iter([body])))
        while not sending.done():
            _, _, took_s = await caller.post(caller.head(len(small)), iter([small]))
            stage.measured(HELD_UP, took_s - min(idle_s))


async def _at_the_limit(stage: Stage, caller: Caller) -> None:
    """A thousand bodies of which the first halves all arrive before any second one."""
    body = _padded(LIMIT_BYTES)
    statuses = await asyncio.to_thread(caller.post_together, caller.head(len(body)), body, PARALLEL)
    stage.measured(ANSWERED, sum(status in (404, 503) for status in statuses))


def _padded(size: int) -> bytes:
    """A chat request of exactly `size` bytes."""
    return chat("nobody-serves-this", padding="x" * (size - len(chat("nobody-serves-this", padding=""))))


NOT_REFUSED = "bodies not refused as they should be"
HELD_UP = "others held up by a body of empty objects"
ANSWERED = "bodies at the limit answered, of a thousand at once"
MEMORY = "router's memory for a thousand bodies at the limit, in their own size"

LEFT_ALONE: tuple[Promise, ...] = (*RUDE, no_error_at_all, control_unmoved, others_unmoved)

DRILLS = (
    Drill(
        id="F06",
        title="clients drip",
        hypothesis="Two hundred heads and two hundred bodies arrive at a byte a second: heads are closed within 10 s, "
        "bodies when they miss 1 kB/s for a window of 10 s, and others are as fast as before.",
        fault=_drip,
        heal=_nothing,
        victims=(),
        during_s=1.0,
        rude=True,
        promises=(
            *LEFT_ALONE,
            figure_at_least(DRIPPED, 2.0 * DRIPS),
            figure_at_most(HEADS, HEAD_S + DRIP_S),
            figure_at_most(BODIES, 2.0 * BODY_S + DRIP_S),
        ),
    ),
    Drill(
        id="F07",
        title="clients hardly read",
        hypothesis="Streams of which nobody reads a byte, and some read at 100 bytes a second: the router keeps at "
        "most 256 KiB for each, a client that takes nothing for 30 s is written off, and others are as fast as before.",
        fault=_sip,
        heal=_nothing,
        victims=(),
        during_s=1.0,
        rude=True,
        engine=PodShape(gpu="llama2-70b/h100-80gb/tp8", slots=16, context_tokens_max=65_536),
        time_scale=0.2,
        promises=(
            *LEFT_ALONE,
            figure_at_most(STREAM_MEMORY, STREAM_BYTES_MAX / 1024, unit="KiB"),
            figure_at_most(GONE, STALL_S + WHEEL_S),
        ),
    ),
    Drill(
        id="F32",
        title="bodies without measure",
        hypothesis="Bodies of 10 GB, one byte over the limit, without end, compressed, of 0.9 MB of empty objects, and "
        "a thousand at the limit at once: refused with 413 and 415, nobody waits 30 ms for another's, memory stays "
        "within ten times what was sent, and others are as fast as before.",
        fault=_flood,
        heal=_nothing,
        victims=(),
        before_s=60.0,
        during_s=1.0,
        rude=True,
        settings=lambda _: {"policy": {"forward": {"body_bytes_max": LIMIT_BYTES}}},
        promises=(
            *LEFT_ALONE,
            figure_at_most(NOT_REFUSED, 0.0, unit="of 4"),
            figure_at_most(HELD_UP, BLOCK_S),
            figure_at_least(ANSWERED, PARALLEL),
            figure_at_most(MEMORY, GROWTH_MAX, unit="times"),
        ),
    ),
)
