"""`gir status`: the fleet on one screen, once or live."""

import argparse
import sys
import threading
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gir.cli.client import AdminError, add_client_arguments, call, orders_line, report, show_json

_PAUSE = threading.Event()
"""Never set: waiting on it is a pause that Ctrl-C ends."""
_PIPE_COLUMNS = 160
_COLOURS = {"healthy": "green", "ramping": "cyan", "suspect": "yellow", "dead": "red", "unknown": "dim"}
_RIGHT = ("weight", "last heard", "RTT", "pods", "slots free")
_TENTHS_SHOWN_MAX = 10.0
_SECONDS_SHOWN_MAX = 600.0
_SERVING = ("healthy", "ramping")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the router is, and whether to keep watching."""
    add_client_arguments(parser)
    parser.add_argument("--watch", action="store_true", help="refresh until Ctrl-C")
    parser.add_argument("--every", metavar="S", type=float, default=1.0, help="seconds between two looks (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; exit code 1 when a cluster that should serve does not, or when there is none."""
    try:
        answer = _ask(arguments)
        if arguments.json:
            show_json(answer)
        elif arguments.watch and sys.stdout.isatty():
            _watch(arguments)
        else:
            # A pipe has no width of its own; wrapped names would be useless to whoever reads it.
            Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS).print(screen(answer))
    except AdminError as error:
        return report(error, "status")
    return 0 if answer["clusters"] and all(_fine(row) for row in answer["clusters"]) else 1


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    answer: dict[str, Any] = call(arguments, "/admin/clusters")
    config = call(arguments, "/admin/config")
    answer["config"] = {name: value for name, value in config.items() if name != "policy"}
    return answer


def _watch(arguments: argparse.Namespace) -> None:
    with Live(console=Console(), refresh_per_second=4, screen=True) as live:
        while True:
            live.update(screen(_ask(arguments)))
            _PAUSE.wait(max(0.2, arguments.every))


def _fine(row: dict[str, Any]) -> bool:
    return row["intent"] != "serve" or row["state"] in _SERVING


def screen(answer: dict[str, Any]) -> RenderableType:
    """The table of clusters, and below it what an operator should know about the router's own file."""
    rows, config = answer["clusters"], answer["config"]
    top: RenderableType = table(rows) if rows else Text(_nobody(config["agents"]))
    return Group(top, *(Text(note, "yellow") for note in _notes(rows, config)), _orders(answer["orders"]))


def _orders(where: dict[str, Any]) -> Text:
    """Where drains, canaries and changed limits are kept; loud when some router does not hear of them."""
    return Text(orders_line(where).rstrip(), "dim" if where["up"] and where["everywhere"] else "yellow")


def _nobody(agents: list[str]) -> str:
    if not agents:
        return (
            "No cluster can report to this router: `agents` in its file is empty. Add an entry for each cluster "
            "(cluster, token), restart the router, and start the agents: gir-agent serve -c FILE"
        )
    return (
        f"No cluster has reported to this router yet; it waits for {', '.join(agents)}. Start their agents "
        "(gir-agent serve -c FILE) and have `routers` in each agent's file name this router's beats.listen; an agent "
        "that is refused says why in its log."
    )


def _notes(rows: list[dict[str, Any]], config: dict[str, Any]) -> list[str]:
    """What is not as the file wants it, one line each."""
    missing = [name for name in config["agents"] if name not in {row["cluster"] for row in rows}]
    notes = [f"never heard of since the router started: {', '.join(missing)}"] if rows and missing else []
    if config["rejected"]:
        notes.append(f"the configuration file is refused, version {config['version']} stays:")
        notes += [f"  {line}" for line in config["rejected"].splitlines()]
    notes += [f"the policy asks for what the fleet lacks: {warning}" for warning in config.get("warnings", ())]
    if config["restart_needed"]:
        notes.append(f"changed in the file, in force after a restart: {', '.join(config['restart_needed'])}")
    return notes


def table(rows: list[dict[str, Any]]) -> Table:
    """Clusters with their health, load and the reason of their state. What is not known now is a dash."""
    shown = Table(title="GIR fleet", title_justify="left")
    for name in ("Region", "cluster", "tier", "state", *_RIGHT, "why"):
        shown.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=name != "why")
    for row in rows:
        word = row["state"]
        intent = "" if row["intent"] == "serve" else f" ({row['intent']})"
        rtt_ms = row["probes"]["rtt_ms"] if row["probes"]["state"] == "ok" else None
        shown.add_row(
            row["region"],
            row["cluster"],
            row["tier"],
            Text(word + intent, _COLOURS.get(word, "yellow")),
            f"{row['weight']:.2f}",
            _heard(row["beats"]),
            "-" if rtt_ms is None else f"{rtt_ms:.1f} ms",
            _figure(row, f"{row['pods_ready']}"),
            _figure(row, f"{row['slots_free']}/{row['slots_total']}"),
            row["reason"],
        )
    return shown


def _heard(beats: dict[str, Any]) -> str:
    if beats["state"] == "unheard":
        return "never"
    age_s = beats["age_s"]
    if age_s >= _SECONDS_SHOWN_MAX:
        return f"{age_s / 60.0:.0f} min ago"
    return f"{age_s:.1f} s ago" if age_s < _TENTHS_SHOWN_MAX else f"{age_s:.0f} s ago"


def _figure(row: dict[str, Any], text: str) -> str:
    """A number of the last beat: in brackets when that is too old to count on, a dash when it says nothing any more."""
    return {"current": text, "old": f"({text})"}.get(row["figures"], "-")
