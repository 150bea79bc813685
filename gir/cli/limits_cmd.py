"""`gir limits show|top|set|reset`: what is limited, who is close to it, and other numbers until further notice."""

import argparse
import sys
import urllib.parse
from typing import Any

from gir.cli.client import AdminError, add_client_arguments, call, report, show_json, warn_of_reach

_EPILOG = """examples:
  gir limits show
  gir limits top --count 20
  gir limits set per-tenant --tokens-per-min 200000     on every router, until reset (a policy reload does not undo it)
  gir limits reset per-tenant                           back to the policy's numbers
"""
_NUMBERS = ("requests_per_min", "tokens_per_min", "concurrency_max")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An action, the rule and its new numbers, and where the router is."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=("show", "top", "set", "reset"))
    parser.add_argument("rule", nargs="?", help="name of the rule (set, reset)")
    parser.add_argument("--count", type=int, default=20, help="counters to show (top; default: %(default)s)")
    for name in _NUMBERS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")
    add_client_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do it and print what holds now."""
    try:
        if arguments.action in ("show", "top"):
            return _show(arguments)
        if not arguments.rule:
            raise AdminError(f"{arguments.action} needs the name of a rule; gir limits show lists them", 2)
        path = f"/admin/limits/{urllib.parse.quote(arguments.rule, safe='')}"
        if arguments.action == "reset":
            rule = call(arguments, path, method="DELETE")
        else:
            change = {name: getattr(arguments, name) for name in _NUMBERS if getattr(arguments, name) is not None}
            if not change:
                raise AdminError("set needs a number, such as --requests-per-min 60", 2)
            rule = call(arguments, path, method="PUT", body=change)
    except AdminError as error:
        return report(error, "limits")
    warn_of_reach(rule, "limits")
    if arguments.json:
        show_json(rule)
    else:
        sys.stdout.write(_rule_line(rule, overridden=arguments.action == "set"))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    answer = call(arguments, f"/admin/limits?top={max(1, arguments.count)}")
    if arguments.json:
        show_json(answer)
        return 0
    if not answer["store_up"]:
        sys.stdout.write("the shared store is away: this router judges alone, by its share of each limit\n")
    if arguments.action == "show":
        lines = [_rule_line(rule, overridden=rule["name"] in answer["overrides"]) for rule in answer["rules"]]
        sys.stdout.write("".join(lines) or "no limits: the policy has none\n")
    else:
        lines = [_counter_line(row) for row in answer["counters"]]
        sys.stdout.write("".join(lines) or "no counters: nobody has met a limit yet\n")
    return 0


def _rule_line(rule: dict[str, Any], *, overridden: bool) -> str:
    if "per" not in rule:
        return f"{rule['name']:<24} what was set is taken back; the policy has no such limit now\n"
    numbers = ", ".join(f"{rule[name]} {name}" for name in _NUMBERS if rule.get(name) is not None)
    matched = ", ".join(f"{name} {rule[name]}" for name in ("tenant", "model", "key", "region") if rule.get(name))
    per = " and ".join(rule["per"]) or "everybody together"
    note = "  (changed by an operator)" if overridden else ""
    return f"{rule['name']:<24} {numbers}, per {per}{', for ' + matched if matched else ''}{note}\n"


def _counter_line(row: dict[str, Any]) -> str:
    used = row["limit"] - row["remaining"]
    return f"{row['counter']:<48} {used:>10} of {row['limit']:>10}  {used / row['limit']:>6.1%}\n"
