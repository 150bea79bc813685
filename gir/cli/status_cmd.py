"""`gir status`: the fleet on one screen, once or live."""

import argparse
import sys
import threading
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from gir.cli.client import AdminError, add_client_arguments, call, report, show_json

_PAUSE = threading.Event()
"""Never set: waiting on it is a pause that Ctrl-C ends."""
_PIPE_COLUMNS = 160
_COLOURS = {"healthy": "green", "ramping": "cyan", "suspect": "yellow", "dead": "red", "unknown": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the router is, and whether to keep watching."""
    add_client_arguments(parser)
    parser.add_argument("--watch", action="store_true", help="refresh until Ctrl-C")
    parser.add_argument("--every", metavar="S", type=float, default=1.0, help="seconds between two looks (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; exit code 1 when a cluster that should serve does not."""
    try:
        answer = call(arguments, "/admin/clusters")
        if arguments.json:
            show_json(answer)
        elif arguments.watch and sys.stdout.isatty():
            _watch(arguments)
        else:
            # A pipe has no width of its own; wrapped names would be useless to whoever reads it.
            Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS).print(table(answer["clusters"]))
    except AdminError as error:
        return report(error, "status")
    return 0 if all(_fine(row) for row in answer["clusters"]) else 1


def _watch(arguments: argparse.Namespace) -> None:
    with Live(console=Console(), refresh_per_second=4, screen=True) as live:
        while True:
            live.update(table(call(arguments, "/admin/clusters")["clusters"]))
            _PAUSE.wait(max(0.2, arguments.every))


def _fine(row: dict[str, Any]) -> bool:
    return row["intent"] != "serve" or row["status"] in ("healthy", "ramping")


def table(rows: list[dict[str, Any]]) -> Table:
    """Clusters with their health, load and the reason of their state."""
    shown = Table(title="GIR fleet", title_justify="left")
    for name in ("Region", "cluster", "tier", "status", "weight", "beat age", "RTT", "slots free", "why"):
        shown.add_column(
            name,
            justify="right" if name in ("weight", "beat age", "RTT", "slots free") else "left",
            no_wrap=name != "why",
        )
    for row in rows:
        colour = _COLOURS.get(row["status"], "white")
        state = row["status"] if row["intent"] == "serve" else f"{row['status']} ({row['intent']})"
        rtt_ms = row["probes"]["rtt_ms"]
        shown.add_row(
            row["region"],
            row["cluster"],
            row["tier"],
            f"[{colour}]{state}[/{colour}]",
            f"{row['weight']:.2f}",
            f"{row['beats']['age_s']:.1f} s",
            "-" if rtt_ms is None else f"{rtt_ms:.1f} ms",
            f"{row['slots_free']}/{row['slots_total']}",
            row["reason"],
        )
    return shown
