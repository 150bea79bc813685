"""The `gir` command. Each subcommand lives in its own module, loaded only when it is called.

Exit codes: 0 done; 1 the command ran and the answer is no (a check failed, a request was refused); 2 wrong usage,
unusable configuration or a port in use; 3 the router or agent could not be reached.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from gir.pipes import until_unread

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("gir.cli.serve_cmd", "run a router from a configuration file"),
    "demo": ("gir.cli.demo_cmd", "start a whole local fleet and send it a little traffic"),
    "status": ("gir.cli.status_cmd", "show clusters, health and traffic of a running router"),
    "explain": ("gir.cli.explain_cmd", "say where a request would go, and why"),
    "drain": ("gir.cli.cluster_cmd", "stop sending new requests to a cluster"),
    "undrain": ("gir.cli.cluster_cmd", "let a drained cluster serve again"),
    "maintenance": ("gir.cli.cluster_cmd", "drain a cluster and raise no alarms about it; undrain ends it"),
    "canary": ("gir.cli.canary_cmd", "start, watch, promote or abort a canary"),
    "config": ("gir.cli.config_cmd", "check a configuration file, print its schema, compare two"),
    "keys": ("gir.cli.keys_cmd", "create, list and revoke API keys"),
    "limits": ("gir.cli.limits_cmd", "show and change global limits"),
}


def parser() -> argparse.ArgumentParser:
    """Parser of the whole command line; each subcommand's module adds its own arguments."""
    top = argparse.ArgumentParser(
        prog="gir", description="Multi-cluster global inference router.", epilog=__doc__.split("\n\n")[1]
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary, add_help=False)
        sub.set_defaults(module=module)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        parser().print_help()
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from importlib.metadata import version

        sys.stdout.write(f"gir {version('gir')}\n")
        return 0
    entry = COMMANDS.get(arguments[0])
    if entry is None:
        sys.stderr.write(f"gir: no command '{arguments[0]}'; choose from {', '.join(COMMANDS)}\n")
        return 2
    module = importlib.import_module(entry[0])
    add_arguments: Callable[[argparse.ArgumentParser], None] = module.add_arguments
    run: Callable[[argparse.Namespace], int] = module.run
    sub = argparse.ArgumentParser(prog=f"gir {arguments[0]}", description=entry[1])
    sub.set_defaults(command=arguments[0])
    add_arguments(sub)
    try:
        return until_unread(lambda: run(sub.parse_args(arguments[1:])))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
