"""`gir canary start|status|promote|abort`: watch and steer the rules that split a model's callers."""

import argparse
import sys
import urllib.parse
from typing import Any

from gir.cli.client import AdminError, add_client_arguments, call, orders_line, report, show_json, warn_of_reach

_EPILOG = """examples:
  gir canary status
  gir canary start next                                     a rule of the policy, from its first stage
  gir canary start next --model llama --to llama-2 --weight 5 --plan 0:5 300:25 900:50
  gir canary promote next
  gir canary abort next --reason "wrong answers in German"
  gir canary remove next                                    a rule that was started by command, in any state
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An action, the rule, and what a new rule needs."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=("start", "status", "promote", "abort", "remove"))
    parser.add_argument("rule", nargs="?", help="name of the rule (all of them for status)")
    new = parser.add_argument_group("a new rule, beside the policy until it is removed")
    new.add_argument("--model", help="model that clients ask for; it stays the control")
    new.add_argument("--to", help="model of the canary")
    new.add_argument("--weight", type=int, default=5, metavar="PERCENT", help="share of callers (default: %(default)s)")
    new.add_argument("--plan", nargs="+", default=[], metavar="S:PERCENT", help="raise to PERCENT after S seconds")
    new.add_argument("--no-guard", action="store_true", help="do not abort when it does worse than the control")
    new.add_argument("--dry-run", action="store_true", help="draw and count, but send everything to the control")
    parser.add_argument("--reason", default="", help="words for the audit log (abort)")
    add_client_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do it and print the rule's state; exit code 1 when `status RULE` finds it aborted."""
    try:
        if arguments.action == "status":
            return _status(arguments)
        if not arguments.rule:
            raise AdminError(f"{arguments.action} needs the name of a rule; gir canary status lists them", 2)
        row = _act(arguments)
    except AdminError as error:
        return report(error, "canary")
    warn_of_reach(row, "canary")
    if arguments.json:
        show_json(row)
    elif arguments.action == "remove":
        sys.stdout.write(f"{arguments.rule}  removed\n")
    else:
        sys.stdout.write(describe(row))
    return 0


def describe(row: dict[str, Any]) -> str:
    """One rule as a few lines."""
    stage = f", stage {row['stage']} of {row['stages']}" if row["stages"] else ""
    dry = ", dry run" if row["dry_run"] else ""
    said = row["reason"]
    state = said if said.startswith(row["state"]) else ": ".join(word for word in (row["state"], said) if word)
    lines = [f"{row['rule']}  {state} ({row['running_s']:.0f} s{stage}{dry})"]
    lines += [
        f"  {each['role']:<8} {each['model']:<32} {each['share']:>6.1%}  "
        f"{each['requests']} requests, {each['errors']} errors"
        f"{'' if each.get('live', True) else '; no live cluster, so nobody is sent there'}"
        for each in row["targets"]
    ]
    return "\n".join(lines) + "\n"


def _act(arguments: argparse.Namespace) -> Any:
    rule = urllib.parse.quote(arguments.rule, safe="")
    if arguments.action == "remove":
        return call(arguments, f"/admin/canaries/{rule}", method="DELETE")
    fresh = arguments.action == "start" and (arguments.model or arguments.to)
    path = "/admin/canaries" if fresh else f"/admin/canaries/{rule}/{arguments.action}"
    return call(arguments, path, method="POST", body=_body(arguments))


def _status(arguments: argparse.Namespace) -> int:
    answer = call(arguments, "/admin/canaries")
    rows = [row for row in answer["canaries"] if arguments.rule in (None, row["rule"])]
    if arguments.rule and not rows:
        raise AdminError(f"no rule is called {arguments.rule}; gir canary status lists them", 1)
    if arguments.json:
        show_json(rows[0] if arguments.rule else answer)
    elif rows:
        sys.stdout.write("".join(describe(row) for row in rows) + orders_line(answer["orders"]))
    else:
        sys.stdout.write("no canaries: the policy has no rewrites, and none was started\n")
    return 1 if arguments.rule and rows[0]["state"] == "aborted" else 0


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.action == "abort":
        return {"reason": arguments.reason}
    if arguments.action != "start" or not (arguments.model or arguments.to):
        return {}
    if not (arguments.model and arguments.to):
        raise AdminError("a new rule needs both --model and --to", 2)
    if not 0 <= arguments.weight <= 100:
        raise AdminError(f"--weight is {arguments.weight}; use 0 to 100", 2)
    return {
        "name": arguments.rule,
        "matches": [{"model": arguments.model}],
        "targets": [
            {"model": arguments.model, "weight": 100 - arguments.weight},
            {"model": arguments.to, "weight": arguments.weight},
        ],
        "guard": None if arguments.no_guard else {},
        "plan": [_stage(each) for each in arguments.plan],
        "dry_run": arguments.dry_run,
    }


def _stage(text: str) -> tuple[float, int]:
    after, colon, percent = text.partition(":")
    try:
        if not colon:
            raise ValueError(text)
        return float(after), int(percent)
    except ValueError:
        raise AdminError(f"--plan has '{text}'; write SECONDS:PERCENT, such as 300:25", 2) from None
