"""`gir demo`: hand over to the local fleet, which lives outside this package and is run as its own process."""

import argparse
import os
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `gir demo`, passed on as they are."""
    parser.add_argument("--ready-file", metavar="F", help="write addresses and process ids as JSON once serving")
    parser.add_argument("--duration", metavar="S", type=float, help="stop after this many seconds; default: on Ctrl-C")
    parser.add_argument("--no-traffic", action="store_true", help="send no background requests")


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the fleet's."""
    command = [sys.executable, "-m", "chaos.cli", "demo"]
    if arguments.ready_file:
        command += ["--ready-file", arguments.ready_file]
    if arguments.duration is not None:
        command += ["--duration", str(arguments.duration)]
    if arguments.no_traffic:
        command.append("--no-traffic")
    os.execv(sys.executable, command)  # noqa: S606 - our own interpreter, no shell
