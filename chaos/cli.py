"""`gir-chaos`: simulated engines, the local fleet, load, drills and the whole-system simulation."""

import importlib
import sys
from collections.abc import Sequence

from gir.pipes import until_unread

COMMANDS = {
    "engine": ("chaos.engine.cli", "host simulated engines"),
    "demo": ("chaos.demo", "run a whole fleet on this machine"),
    "load": ("chaos.load_cli", "send open-loop load to an OpenAI-compatible address"),
    "list": ("chaos.drill_cli", "list the drills"),
    "run": ("chaos.drill_cli", "run drills against a local fleet"),
    "report": ("chaos.drill_cli", "judge a drill's history again"),
    "sim": ("chaos.sim.cli", "simulate a whole fleet from a seed; with --policy FILE, try a policy on a trace"),
}
"""Command to the module that has its `main(command, arguments) -> exit code`; loaded only when it is asked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (2 for a wrong command line)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = (given[0], given[1:]) if given else ("", [])
    if command in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0
    if command not in COMMANDS:
        problem = f"{command!r} is no command" if command else "a command is needed"
        sys.stderr.write(f"gir-chaos: {problem}\n{usage()}")
        return 2
    what_if = command == "sim" and any(word.partition("=")[0] == "--policy" for word in rest)
    module = importlib.import_module("chaos.whatif" if what_if else COMMANDS[command][0])
    return until_unread(lambda: int(module.main(command, rest)))


def usage() -> str:
    """Help of the command as a whole; each command has its own."""
    rows = "\n".join(f"  {name:8} {what}" for name, (_, what) in COMMANDS.items())
    return f"{__doc__}\n\nusage: gir-chaos COMMAND [--help]\n\n{rows}\n"


if __name__ == "__main__":
    sys.exit(main())
