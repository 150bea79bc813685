"""What a router costs: CPU time per request and per SSE chunk, added latency, memory per open stream.

`python -m tests.perf.overhead [--json] [--quick] [--streams N] [--peer NAME]`

One router at a time is under load, pinned to core 0; load client and engines share core 1. Peers take turns (A B C,
A B C, ...) and every ratio is the median of the ratios of single turns, so a machine that slows down for a while slows
both sides. CPU time comes from the kernel. Exit code 1 when a bar is missed, 2 when GIR itself could not be measured.
"""

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop

from tests.perf import load, machine, mock_engine, peers
from tests.perf.gir_process import gir

CONNECTIONS = 32
STREAMS = 200
MEMORY_STREAMS = 2_000
BARS = {
    "request_vs_sglang_router": 0.75,
    "request16k_vs_sglang_router": 0.75,
    "chunk_vs_sglang_router": 1.0,
}
"""Highest ratio allowed. The last word is design section 3: every feature on."""
ADDED_P50_MS_MAX, ADDED_P99_MS_MAX = 0.5, 2.0
STREAM_BYTES_MAX = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long to measure."""

    turns: int
    warm_s: float
    window_s: float
    streams: int


QUICK = Plan(turns=2, warm_s=0.3, window_s=1.0, streams=MEMORY_STREAMS)
FULL = Plan(turns=5, warm_s=0.5, window_s=2.0, streams=MEMORY_STREAMS)


@dataclasses.dataclass(frozen=True)
class Turn:
    """One turn of one router."""

    requests_per_s: float
    request_cpu_us: float
    request16k_cpu_us: float
    chunk_cpu_us: float
    added_p50_ms: float
    added_p99_ms: float
    first_chunk_p50_ms: float
    late_chunk_share: float
    errors: int


async def take_turn(router: peers.Running, direct_port: int, plan: Plan) -> Turn:
    """Measure `router` once: short and long prompts at its limit, half of that limit against direct, streams."""
    closed = _closed(router, plan)
    short = await closed(load.chat_target(router.port), CONNECTIONS, False)
    long = await closed(load.chat_target(router.port, prompt_bytes=16_000), CONNECTIONS, False)
    rate_per_s = short.requests / short.duration_s / 2
    half = await _paced(router.port, rate_per_s, plan)
    bare = await _paced(direct_port, rate_per_s, plan)
    streams = await closed(load.chat_target(router.port, stream=True), STREAMS, True)
    return Turn(
        requests_per_s=short.requests / short.duration_s,
        request_cpu_us=_per(short.cpu_s, short.requests),
        request16k_cpu_us=_per(long.cpu_s, long.requests),
        chunk_cpu_us=_per(streams.cpu_s, streams.chunks),
        added_p50_ms=(half.quantile_s(0.50) - bare.quantile_s(0.50)) * 1e3,
        added_p99_ms=(half.quantile_s(0.99) - bare.quantile_s(0.99)) * 1e3,
        first_chunk_p50_ms=statistics.median(streams.first_chunk_s or [0.0]) * 1e3,
        late_chunk_share=streams.chunks_late / max(1, streams.chunks),
        errors=short.errors + long.errors + half.errors + streams.errors,
    )


def _per(cpu_s: float, count: int) -> float:
    """Microseconds each."""
    return cpu_s / count * 1e6 if count else 0.0


def _closed(router: peers.Running, plan: Plan) -> Callable[[load.Target, int, bool], Awaitable[load.Window]]:
    async def run(target: load.Target, connections: int, streams: bool) -> load.Window:
        async with load.Load(target, connections=connections, streams=streams) as clients:
            return await clients.closed(warm_s=plan.warm_s, window_s=plan.window_s, cpu=router.cpu_s)

    return run


async def _paced(port: int, rate_per_s: float, plan: Plan) -> load.Window:
    async with load.Load(load.chat_target(port), connections=CONNECTIONS) as clients:
        return await clients.paced(rate_per_s, warm_s=plan.warm_s, window_s=plan.window_s, cpu=lambda: 0.0)


async def bytes_per_stream(router: peers.Running, streams: int) -> float:
    """Resident memory one open stream adds to `router`, in bytes.

    A few hundred streams come and go first, so that what a process keeps for good is not charged to streams.
    """
    slow = load.chat_target(router.port, stream=True, tokens_max=100_000, system=mock_engine.SLOW_WORD.decode())
    async with load.Load(
        load.chat_target(router.port, stream=True, tokens_max=5), connections=200, streams=True
    ) as one:
        await one.closed(warm_s=0.2, window_s=0.3, cpu=router.cpu_s)
    before = router.resident_bytes()
    async with load.Load(slow, connections=streams, streams=True) as many:
        await many.closed(warm_s=1.0, window_s=2.0, cpu=router.cpu_s)
        return (router.resident_bytes() - before) / streams


async def measure(names: Sequence[str], plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Run every router and return the report; `say` hears how it goes."""
    turns: dict[str, list[Turn]] = {}
    skipped: dict[str, str] = {}
    memory: dict[str, float] = {}
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(peers.mock_engines(2))
        running: dict[str, peers.Running] = {}
        for name in ("gir", *names):
            start = gir(engines) if name == "gir" else peers.peer(name, engines)
            try:
                running[name] = await stack.enter_async_context(start)
                turns[name] = []
            except peers.PeerMissingError as missing:
                skipped[name] = str(missing)
                say(f"{name}: skipped, {missing}")
        for turn in range(plan.turns):
            for name, router in running.items():
                turns[name].append(await take_turn(router, engines[0], plan))
                say(f"turn {turn + 1}/{plan.turns} {name}: {_line(turns[name][-1])}")
        if "gir" in running:
            memory["gir"] = await bytes_per_stream(running["gir"], _streams_possible(plan.streams, say))
    return report(turns, skipped, memory)


def _streams_possible(wanted: int, say: Callable[[str], None]) -> int:
    """A router holds two descriptors for each stream; more than the system allows cannot be measured."""
    possible = (machine.raise_descriptor_limit() - 200) // 2
    if wanted > possible:
        say(f"{wanted} open streams need {2 * wanted} descriptors; the hard limit allows {possible} streams")
    return min(wanted, possible)


def report(turns: dict[str, list[Turn]], skipped: dict[str, str], memory: dict[str, float]) -> dict[str, Any]:
    """Medians by router and the ratios of GIR to the peers."""
    figures: dict[str, dict[str, Any]] = {name: _median(mine) for name, mine in turns.items()}
    figures |= {name: {"skipped": reason} for name, reason in skipped.items()}
    for name, size in memory.items():
        figures[name]["bytes_per_open_stream"] = round(size)
    mine = figures.pop("gir")
    return {
        "gir": mine,
        "peers": figures,
        "ratios": {
            "request_vs_sglang_router": _ratio(turns, "sglang_router", "request_cpu_us"),
            "request16k_vs_sglang_router": _ratio(turns, "sglang_router", "request16k_cpu_us"),
            "chunk_vs_sglang_router": _ratio(turns, "sglang_router", "chunk_cpu_us"),
            "request_vs_envoy": _ratio(turns, "envoy", "request_cpu_us"),
        },
        "added_latency_ms": {"p50": mine.get("added_p50_ms"), "p99": mine.get("added_p99_ms")},
    }


def _median(turns: Sequence[Turn]) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(Turn) if field.name != "errors"]
    medians: dict[str, Any] = {
        name: round(statistics.median(getattr(turn, name) for turn in turns), 3) for name in fields
    }
    return medians | {"errors": sum(turn.errors for turn in turns)}


def _ratio(turns: dict[str, list[Turn]], peer: str, field: str) -> float | None:
    """Median over the turns of GIR's figure to the peer's in the same turn; None when either is missing."""
    pairs = zip(turns.get("gir", []), turns.get(peer, []), strict=False)
    ratios = [getattr(mine, field) / getattr(theirs, field) for mine, theirs in pairs if getattr(theirs, field)]
    return round(statistics.median(ratios), 3) if ratios else None


def missed(result: dict[str, Any]) -> list[str]:
    """One line for each bar that was measured and not met."""
    found = [
        f"{name} is {ratio}: the bar is {BARS[name]}"
        for name, ratio in result["ratios"].items()
        if name in BARS and ratio is not None and ratio > BARS[name]
    ]
    for share, limit_ms in (("p50", ADDED_P50_MS_MAX), ("p99", ADDED_P99_MS_MAX)):
        added_ms = result["added_latency_ms"][share]
        if added_ms is not None and added_ms > limit_ms:
            found.append(f"added latency {share} is {added_ms} ms at half load: the bar is {limit_ms} ms")
    size = result["gir"].get("bytes_per_open_stream")
    if size is not None and size > STREAM_BYTES_MAX:
        found.append(f"an open stream takes {size} bytes: the bar is {STREAM_BYTES_MAX}")
    if result["gir"].get("errors"):
        found.append(f"GIR answered {result['gir']['errors']} requests with an error: the bar is none")
    return found


def _line(turn: Turn) -> str:
    return (
        f"{turn.requests_per_s:7.0f} req/s  {turn.request_cpu_us:6.1f} us/request  "
        f"{turn.request16k_cpu_us:6.1f} us/16k  {turn.chunk_cpu_us:5.1f} us/chunk  "
        f"added p50 {turn.added_p50_ms:6.3f} p99 {turn.added_p99_ms:6.3f} ms  errors {turn.errors}"
    )


def _print(result: dict[str, Any]) -> None:
    for name, figures in {"gir": result["gir"], **result["peers"]}.items():
        print(f"{name:14} " + "  ".join(f"{key}={value}" for key, value in figures.items()))
    for name, ratio in result["ratios"].items():
        print(f"{name:28} {ratio}")
    print(f"added_latency_ms             {result['added_latency_ms']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    parser.add_argument("--streams", type=int, default=MEMORY_STREAMS, help="open streams for the memory figure")
    parser.add_argument("--peer", action="append", choices=["direct", *peers.COMMANDS], help="only these peers")
    options = parser.parse_args()
    machine.raise_descriptor_limit()
    machine.pin(machine.LOAD_CORE)
    plan = dataclasses.replace(QUICK if options.quick else FULL, streams=options.streams)
    names = options.peer or ["direct", "envoy", "sglang_router", "vllm_router"]
    result = uvloop.run(measure(names, plan, lambda line: print(line, file=sys.stderr, flush=True)))
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)
    bad = missed(result)
    for line in bad:
        print(f"MISSED: {line}", file=sys.stderr)
    sys.exit(2 if "skipped" in result["gir"] else bool(bad))


if __name__ == "__main__":
    main()
