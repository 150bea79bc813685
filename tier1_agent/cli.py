"""Command line of the agent.

Exit codes: 0 stopped as asked (or the file is good), 1 streams had to be cut, 2 cannot start: bad configuration, bad
usage, or an address that is taken.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from gir.pipes import until_unread
from gir.settings import ConfigError

EXIT_OK = 0
EXIT_CUT = 1
EXIT_CANNOT_START = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gir-agent`; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        return until_unread(lambda: int(args.run(args)))
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"gir-agent: {line}", file=sys.stderr)
        return EXIT_CANNOT_START
    except KeyboardInterrupt:
        return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gir-agent", description="Tier 1: routes a cluster's requests to its pods and reports to the routers.",
        epilog="exit codes: 0 stopped as asked, or the file is good; 1 streams had to be cut; 2 cannot start",
    )  # fmt: skip
    parser.add_argument("-V", "--version", action="version", version=f"gir-agent {version('gir')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the agent")
    serve.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="configuration file (YAML)")
    serve.set_defaults(run=_serve)
    config = commands.add_parser("config", help="check a configuration file, or print its JSON Schema")
    actions = config.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="say what is wrong with a file")
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--json", action="store_true", help="machine-readable answer")
    check.set_defaults(run=_check)
    schema = actions.add_parser("schema", help="print the JSON Schema")
    schema.set_defaults(run=_schema)
    return parser


def _serve(args: argparse.Namespace) -> int:
    import uvloop

    from tier1_agent.app import serve
    from tier1_agent.config import load

    config = load(args.config)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            finished = runner.run(serve(config, base=args.config.parent, log_stream=sys.stderr))
    except OSError as error:
        print(f"gir-agent: {_cannot_listen(error, config.listen, config.admin.listen)}", file=sys.stderr)
        return EXIT_CANNOT_START
    return EXIT_OK if finished else EXIT_CUT


def _cannot_listen(error: OSError, *addresses: str) -> str:
    problem = error.strerror or str(error)
    if problem.startswith("cannot listen on"):
        return problem  # the data port's: it has said all of it
    return f"cannot listen on {' or '.join(addresses)}: {problem}; free the port or change the address"


def _check(args: argparse.Namespace) -> int:
    from tier1_agent.config import load
    from tier1_agent.discovery import read_pods

    try:
        config = load(args.file)
        pods = len(read_pods(args.file.parent / config.pods.file)) if config.pods.file else len(config.pods.static)
    except ConfigError as error:
        if not args.json:
            raise ConfigError(f"{error}{_other_kind(str(error))}") from None
        print(json.dumps({"ok": False, "error": str(error), "errors": str(error).splitlines()}))
        return EXIT_CANNOT_START
    lacking = {
        "no pod is listed": not pods,
        "no router is listed: none will send requests here": not config.routers,
    }
    warning = "; ".join(text for text, lacks in lacking.items() if lacks)
    if args.json:
        print(json.dumps({"ok": True, "cluster": config.cluster, "pods": pods, "warning": warning}))
    else:
        print(f"{args.file}: good: cluster {config.cluster}, {pods} pods{f'; warning: {warning}' if warning else ''}")
    return EXIT_OK


def _other_kind(error: str) -> str:
    """A further line when the file is not an agent's at all."""
    if "pods is a list" in error:
        return "\nthis looks like a file of pods; name it in the agent's file: pods: {file: FILE}"
    if "policy is no known key" in error:
        return "\nthis looks like the file of a router; check it with: gir config check FILE"
    return ""


def _schema(_: argparse.Namespace) -> int:
    from tier1_agent.config import AgentConfig

    print(json.dumps(msgspec.json.schema(AgentConfig), indent=2))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
