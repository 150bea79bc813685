"""The source tree, policed: limits on size, banned names, no debris. Style arguments end here."""

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gir", "tier1_agent", "chaos", "tests")
GENERATED = ROOT / "gir" / "wire" / "v1"
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70


def _sources(*packages: str) -> list[Path]:
    return [
        path for package in packages for path in sorted((ROOT / package).rglob("*.py")) if GENERATED not in path.parents
    ]


ALL = _sources(*PACKAGES)
SHIPPED = _sources("gir", "tier1_agent", "chaos")
TEXT = [
    path
    for path in map(
        ROOT.joinpath,
        subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n"),
    )
    if path.is_file()
    and path.suffix in {".py", ".md", ".yaml", ".yml", ".toml", ".proto", ".lua", ".html", ".js", ".css", ""}
]


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", ALL, ids=_id)
def test_file_is_short(path: Path) -> None:
    lines = _text(path).count("\n")
    assert lines <= FILE_LINES_MAX, f"{lines} lines: split by concern"


@pytest.mark.parametrize("path", ALL, ids=_id)
def test_functions_are_short(path: Path) -> None:
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, f"over {FUNCTION_LINES_MAX} lines: {', '.join(long)}"


@pytest.mark.parametrize("path", SHIPPED, ids=_id)
def test_modules_say_what_they_are(path: Path) -> None:
    source = _text(path)
    if source.strip():
        assert ast.get_docstring(_tree(path)), "module docstring: what, why this way, what it must never do"


MARKERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")


@pytest.mark.parametrize("path", ALL, ids=_id)
def test_no_debris(path: Path) -> None:
    source = _text(path)
    found = [marker for marker in MARKERS if re.search(rf"\b{marker}\b", source)]
    assert not found, f"finish it or file it: {found}"


@pytest.mark.parametrize("path", SHIPPED, ids=_id)
def test_durations_carry_their_unit(path: Path) -> None:
    """A number called `timeout` or `delay` is a bug waiting for its unit."""
    bare = {"timeout", "delay", "interval", "duration", "deadline", "ttl", "age", "elapsed", "latency"}
    found = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.arg) and node.arg in bare:
            found.append(f"line {node.lineno}: argument {node.arg}")
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in bare:
            found.append(f"line {node.lineno}: field {node.target.id}")
    assert not found, found


@pytest.mark.parametrize("path", SHIPPED, ids=_id)
def test_no_module_is_an_orphan(path: Path) -> None:
    """Every module is imported by another one, or is an entry point."""
    name = _module(path)
    if path.name in ("__init__.py", "__main__.py") or name in ENTRY_POINTS:
        return
    users = _users().get(name, set()) - {path}
    assert users, "nobody imports it"


@functools.cache
def _users() -> dict[str, set[Path]]:
    """Who mentions each module: in an import, or by its dotted name in a string."""
    found: dict[str, set[Path]] = {}
    for path in ALL:
        for node in ast.walk(_tree(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
                names = [node.value]
            for name in names:
                found.setdefault(name, set()).add(path)
    return found


_DOTTED = re.compile(r"[a-z_0-9]+(\.[a-z_0-9]+)+")


ENTRY_POINTS = {"gir.wire.regenerate"}


@pytest.mark.parametrize("path", TEXT, ids=_id)
def test_no_path_of_one_machine(path: Path) -> None:
    source = _text(path)
    home = "/" + "work/"
    assert home not in source, "a path of one machine"
