"""`gir config check FILE`, `gir config schema`, `gir config diff A B`.

Exit codes: 0 fine, or no difference; 1 the file has faults, or the two differ.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from gir.control.config import RouterConfig, load
from gir.control.validate import examine
from gir.settings import ConfigError

_MISSING = "(absent)"
_NAMED_BY = ("name", "id", "cluster", "issuer")
"""Fields that tell the entries of a list apart, so that inserting one is not a change of all after it."""
_HIDDEN = frozenset({"value", "url"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One of three things to do with configuration files."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="say what is wrong with a configuration file")
    check.add_argument("file", type=Path, help="configuration file (YAML)")
    actions.add_parser("schema", help="print the JSON Schema of the file, for editors and other tools")
    diff = actions.add_parser("diff", help="say what would change from one file to another")
    diff.add_argument("before", type=Path, help="file in force")
    diff.add_argument("after", type=Path, help="file to come")
    for each in (check, diff):
        each.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    match arguments.action:
        case "check":
            return _check(arguments)
        case "schema":
            from gir.control.schema import config_schema

            _print_json(config_schema())
            return 0
        case _:
            return _diff(arguments)


def _check(arguments: argparse.Namespace) -> int:
    try:
        config = load(arguments.file)
    except ConfigError as error:
        return _report_faults(arguments, str(error).splitlines())
    warnings = examine(config).warnings
    if arguments.json:
        _print_json({"ok": True, "errors": [], "warnings": warnings, "digest": config.policy.digest})
        return 0
    for warning in warnings:
        sys.stderr.write(f"warning: {warning}\n")
    policy = config.policy
    sys.stdout.write(
        f"{arguments.file}: ok ({len(config.agents)} clusters may report, {len(policy.models)} models, "
        f"{len(policy.tenants)} tenants, {len(policy.limits)} limits, digest {policy.digest})\n"
    )
    return 0


def _report_faults(arguments: argparse.Namespace, errors: list[str]) -> int:
    if arguments.json:
        _print_json({"ok": False, "errors": errors, "warnings": []})
    else:
        sys.stderr.write("".join(f"{error}\n" for error in errors))
        if any("cluster is no known key" in error for error in errors):
            sys.stderr.write("this looks like the file of an agent; check it with: gir-agent config check FILE\n")
    return 1


def _diff(arguments: argparse.Namespace) -> int:
    try:
        before, after = flat(load(arguments.before)), flat(load(arguments.after))
    except ConfigError as error:
        return _report_faults(arguments, str(error).splitlines())
    changes = [
        {
            "field": field,
            "before": before.get(field, _MISSING),
            "after": after.get(field, _MISSING),
            "restart": not field.startswith("policy"),
        }
        for field in sorted(before.keys() | after.keys())
        if before.get(field, _MISSING) != after.get(field, _MISSING)
    ]
    if arguments.json:
        _print_json({"changes": changes})
    else:
        for change in filter(_telling, changes):
            note = "   (needs a restart)" if change["restart"] else ""
            sys.stdout.write(f"{change['field']}: {change['before']} -> {change['after']}{note}\n")
        if not changes:
            sys.stdout.write("no difference\n")
    return 1 if changes else 0


def _telling(change: dict[str, Any]) -> bool:
    """Whether a change tells a reader something: what comes or goes with an entry and says nothing in it does not."""
    before, after = change["before"], change["after"]
    if _MISSING not in (before, after):
        return True
    return (after if before == _MISSING else before) not in (None, "", (), [])


def flat(config: RouterConfig) -> dict[str, Any]:
    """Every value of a configuration by its path; secrets as marks. The policy's digest is left out."""

    leaves: dict[str, Any] = {}
    _flatten("", msgspec.to_builtins(config), leaves)
    return {field: value for field, value in leaves.items() if field not in {"policy.digest", "policy.version"}}


def _flatten(path: str, value: Any, leaves: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            below = f"{path}.{name}" if path else name
            _flatten(below, "(secret)" if name in _HIDDEN and isinstance(item, str) else item, leaves)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            label = next((str(item[name]) for name in _NAMED_BY if item.get(name)), str(index))
            _flatten(f"{path}[{label}]", item, leaves)
    else:
        leaves[path] = value


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
