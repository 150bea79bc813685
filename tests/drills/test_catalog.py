"""Drills with real processes, at a tenth of their durations: every promise kept."""

import json
from pathlib import Path

import pytest

from chaos import drill_cli
from chaos.catalog import DRILLS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet"), pytest.mark.timeout(180)]
SHORT_SLICE = {"F01", "F03", "F09", "F18", "F26"}
"""Run by every `make test`; the others with `-m full`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT_SLICE else pytest.mark.full) for name in DRILLS]
)
def test_a_drill_keeps_its_promises(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = drill_cli.main("run", [name, "--scale", "0.1", "--out", str(tmp_path), "--lever", str(tmp_path / "stop")])
    shown = capsys.readouterr().out
    assert code == 0, shown
    (directory,) = tmp_path.iterdir()
    assert drill_cli.main("report", [str(directory), "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert all(verdict["kept"] for verdict in verdicts)
    assert (directory / "report.md").read_text().startswith(f"# {name}: ")


def test_the_safety_lever_stops_every_drill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lever = tmp_path / "stop"
    lever.touch()
    arguments = ["F01", "--scale", "0.1", "--out", str(tmp_path / "out"), "--lever", str(lever), "--json"]
    assert drill_cli.main("run", arguments) == 1
    assert "safety lever" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["F99"], [], ["F01", "--scale", "7"]])
def test_a_wrong_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert drill_cli.main("run", arguments) == 2
    assert capsys.readouterr().err.startswith("gir-chaos run: ")
