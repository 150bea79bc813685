"""`gir-chaos load`: send open-loop load to an OpenAI-compatible address and say what came back."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from chaos.history import summarize, write
from chaos.load import Load, LoadPlan
from gir.clock import SystemClock


def main(command: str, arguments: Sequence[str]) -> int:
    """Exit codes: 0 every request came back whole, 1 some failed, 2 wrong arguments."""
    options = _parser(command).parse_args(arguments)
    plan = {
        "url": options.url,
        "rps": options.rps,
        "duration_s": options.duration,
        "models": options.model,
        "keys": [("key", options.key)],
        "stream_share": options.stream_share,
        "poisson": not options.even,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        "prefixes": options.prefixes,
        "prefix_tokens": options.prefix_tokens,
        "in_flight_max": options.in_flight_max,
        "within_s": options.within,
        "seed": options.seed,
    }
    try:
        load = Load(msgspec.convert(plan, LoadPlan), SystemClock())
    except (msgspec.ValidationError, ValueError) as error:
        sys.stderr.write(f"gir-chaos load: {error}\n")
        return 2
    try:
        records = uvloop.run(load.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        records = load.records
    if options.history is not None:
        write(options.history, records)
    summary = summarize(records)
    sys.stdout.write(json.dumps(summary, indent=2) + "\n" if options.json else table(summary))
    return 0 if all(record.ok for record in records) else 1


def table(summary: dict[str, Any]) -> str:
    """The summary for people."""
    lines = []
    for name, value in summary.items():
        text = value
        if isinstance(value, dict):
            text = "  ".join(f"{key} {number}" for key, number in value.items())
        lines.append(f"{name:20} {text}")
    return "\n".join(lines) + "\n"


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"gir-chaos {command}", description=__doc__)
    parser.add_argument("--url", required=True, help="base address, such as http://127.0.0.1:8080")
    parser.add_argument("--key", default="", help="API key")
    parser.add_argument("--model", action="append", required=True, help="model to ask for; may be repeated")
    parser.add_argument("--rps", type=float, default=5.0, help="requests each second (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=10.0, help="seconds (default: %(default)s)")
    parser.add_argument("--even", action="store_true", help="evenly spaced instead of at random (Poisson)")
    parser.add_argument("--stream-share", type=float, default=0.7, help="share that streams (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--prefixes", type=int, default=0, help="number of shared prompt beginnings (default: none)")
    parser.add_argument("--prefix-tokens", type=int, default=500)
    parser.add_argument(
        "--in-flight-max", type=int, default=2_000, help="bound of the open loop (default: %(default)s)"
    )
    parser.add_argument("--within", type=float, default=60.0, help="patience with one request, seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--history", type=Path, metavar="F", help="write what became of each request as JSON lines")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser
