"""What the documents name exists: commands with their options, configuration keys, metrics, files they link to."""

import argparse
import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.registry import CollectorRegistry

from chaos.cli import COMMANDS as CHAOS_COMMANDS
from gir.cli.main import COMMANDS
from gir.control.config import RouterConfig
from gir.model.policy import PolicySnapshot
from gir.shape import misfits
from gir.telemetry.metrics import AgentMetrics, RouterMetrics
from tier1_agent import cli as agent_cli
from tier1_agent.config import AgentConfig

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RULES = ROOT / "deploy" / "alerts" / "gir.rules.yaml"
FAMILIES = {
    family.name: family for metrics in (RouterMetrics, AgentMetrics) for family in metrics(CollectorRegistry()).families
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|[\s/(|;$])(gir|gir-agent|gir-chaos) +([a-z].*)")
_METRIC = re.compile(r"\bgir_[a-z0-9_]+")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
_KEY = re.compile(r"[a-z][a-z0-9_]*(?:(?:\[\d*\])?\.[a-z][a-z0-9_]*)+(?:\[\d*\])?")
_NO_KEYS = re.compile(
    r"\.(?:md|py|yaml|yml|json|txt|svg|toml|state|lua|csv|crt|key|token)$|^gir\.|^tests\.|^tier1|^chaos"
)
"""Dotted words that are files or modules."""


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def commands(text: str) -> Iterator[str]:
    """Every command line of ours in code spans and fences, without comments."""
    fenced = [body for language, body in _FENCE.findall(text) if language in ("", "sh")]
    fenced += re.findall(r"^    (.*)$", text, re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    for line in [line for body in fenced for line in body.splitlines()] + spans:
        for part in re.split(r";|\|(?! *jq)| && ", line.partition(" #")[0].partition("   ")[0]):
            found = _COMMAND.search(f" {part.strip()}")
            if found:
                yield f"{found[1]} {found[2].strip()}"


def _parser(program: str, command: str) -> argparse.ArgumentParser | None:
    if program == "gir":
        module = importlib.import_module(COMMANDS[command][0])
        parser = argparse.ArgumentParser(exit_on_error=False)
        module.add_arguments(parser)
        return parser
    return None


def complaint(command: str) -> str:
    """Why the command line could not be run; '' when it could."""
    program, name, *arguments = shlex.split(command)
    arguments = ["1" if re.fullmatch(r"[A-Z][A-Z-]*", word) else word for word in arguments]
    if program == "gir-agent":
        return _refused(agent_cli._parser(), [name, *arguments])
    if program == "gir-chaos":
        return "" if name in CHAOS_COMMANDS else f"no command {name}"
    if name not in COMMANDS:
        return f"no command {name}"
    choices = name.split("|")
    if len(choices) == 1 and arguments and "|" in arguments[0]:
        return next(filter(None, (_of_gir(name, [one, *arguments[1:]]) for one in arguments[0].split("|"))), "")
    return _of_gir(name, arguments)


def _of_gir(name: str, arguments: list[str]) -> str:
    parser = _parser("gir", name)
    assert parser is not None
    known = " ".join(parser.format_help().split())
    if not arguments or "..." in arguments:
        missing = [word for word in arguments if word.startswith("--") and word.split("=")[0] not in known]
        return f"unknown {missing}" if missing else ""
    return _refused(parser, arguments)


def _refused(parser: argparse.ArgumentParser, arguments: list[str]) -> str:
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(heard):
            parser.parse_args(arguments)
    except SystemExit as end:
        if end.code not in (0, None) and "required" not in heard.getvalue():
            return heard.getvalue().splitlines()[-1]
    except argparse.ArgumentError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", DOCS, ids=_id)
def test_commands_can_be_typed(path: Path) -> None:
    wrong = {command: said for command in commands(_text(path)) if (said := complaint(command))}
    assert not wrong


def test_commands_are_found_at_all() -> None:
    found = {" ".join(command.split()[:2]) for path in DOCS for command in commands(_text(path))}
    assert {f"gir {name}" for name in COMMANDS} - found <= {"gir demo"}  # people type `make demo`
    assert complaint("gir limits set x --tokens-per-hour 3")
    assert complaint("gir statsu")
    assert complaint("gir canary begin x")
    assert complaint("gir-agent config chekc F")


@pytest.mark.parametrize("path", [*DOCS, RULES], ids=_id)
def test_metrics_exist(path: Path) -> None:
    named = {_SUFFIX.sub("", name) if name not in FAMILIES else name for name in _METRIC.findall(_text(path))}
    prefixes = {name for name in named if name.endswith("_")}
    unknown = {name for name in named - prefixes if name not in FAMILIES}
    unknown |= {prefix for prefix in prefixes if not any(name.startswith(prefix) for name in FAMILIES)}
    assert not unknown


def _keys(type_: Any, path: str = "") -> Iterator[str]:
    """Every path a file of `type_` may have, without indexes, and those below each part of it."""
    todo: list[tuple[str, Any]] = [(path, msgspec.inspect.type_info(type_))]
    while todo:
        below, one = todo.pop()
        yield below
        if isinstance(one, msgspec.inspect.StructType):
            todo += [(f"{below}.{field.encode_name}".lstrip("."), field.type) for field in one.fields]
        for name in ("item_type", "type"):
            if hasattr(one, name):
                todo.append((below, getattr(one, name)))
        if isinstance(one, msgspec.inspect.DictType):
            todo.append((f"{below}.*", one.value_type))
        todo += [(below, each) for each in getattr(one, "types", ())]


KEYS = {*_keys(RouterConfig), *_keys(PolicySnapshot), *_keys(AgentConfig)}
NAMES = {part for key in KEYS for part in key.split(".")}


@pytest.mark.parametrize("path", DOCS, ids=_id)
def test_configuration_keys_exist(path: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", _FENCE.sub("", _text(path)))
    tops = {key.split(".")[0] for key in KEYS}
    unknown = set()
    for span in spans:
        word = span.partition(":")[0]
        if not _KEY.fullmatch(word) or _NO_KEYS.search(word) or word.split(".")[0].split("[")[0] not in tops:
            continue
        if re.sub(r"\[\d*\]", "", word) not in KEYS:
            unknown.add(word)
    assert not unknown


@pytest.mark.parametrize("path", [path for path in DOCS if "operations" in path.parts], ids=_id)
def test_knobs_in_tables_exist(path: Path) -> None:
    for table in re.findall(r"^\| knob \|.*\n\|[-| ]+\n((?:\|.*\n)+)", _text(path), re.MULTILINE):
        for row in table.splitlines():
            knobs = re.findall(r"`(\w+)`", row.split("|")[1])
            assert knobs
            assert set(knobs) <= NAMES, row


@pytest.mark.parametrize("path", DOCS, ids=_id)
def test_examples_of_files_are_taken(path: Path) -> None:
    for language, body in _FENCE.findall(_text(path)):
        if language == "yaml":
            data = yaml.safe_load(body)
            type_ = AgentConfig if "cluster" in data else RouterConfig
            faults = [said for where, said in misfits(data, type_) if where or "is missing" not in said]
            assert not faults


@pytest.mark.parametrize("path", DOCS, ids=_id)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", _text(path))
    assert not [target for target in targets if "://" not in target and not (path.parent / target).exists()]


def test_every_chapter_is_in_the_index() -> None:
    folder = ROOT / "docs" / "operations"
    index = _text(folder / "README.md")
    assert not [page.name for page in folder.glob("*.md") if page.name != "README.md" and f"({page.name})" not in index]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(_text(RULES))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_uses_labels_its_series_have_and_is_explained(rule: dict[str, Any]) -> None:
    expression = rule["expr"]
    assert expression.count("(") == expression.count(")")
    labels = {"le", "instance"}
    for name, inside in re.findall(r"(gir_\w+)(?:\{([^}]*)\})?", expression):
        own = set(FAMILIES[_SUFFIX.sub("", name) if name not in FAMILIES else name].labels)
        labels |= own
        assert set(re.findall(r"(\w+)(?:=~?|!=)", inside)) <= own
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    assert grouped <= labels
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert shown <= (grouped or labels)
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert f"`{rule['alert']}`" in _text(ROOT / "docs" / "operations" / "alerts.md")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_on_a_first_event_sees_a_series_that_is_born_with_it(rule: dict[str, Any]) -> None:
    """A counter with labels begins when it first counts, so its first step is no increase to Prometheus."""
    for name, window in re.findall(r"increase\((gir_\w+)\[(\w+)\]\) > 0", rule["expr"]):
        assert not FAMILIES[name].labels or f"or ({name} > 0 unless {name} offset {window})" in rule["expr"]
