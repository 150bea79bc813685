"""The command: what it prints, what it returns, and that a finding can be repeated by one line."""

import json

import pytest

from chaos.cli import main
from chaos.sim.bugs import forwarding


def test_a_clean_run_prints_its_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--seeds", "1..3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seeds"], told["failed"]) == (3, [])
    assert told["events"] > 1_000
    assert told["speedup"] > 100


def test_a_finding_gives_exit_code_1_and_the_line_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    bug = next(bug for bug in forwarding.BUGS if bug.name == "leak-on-disconnect")
    with bug.planted():
        assert main(["sim", "--seeds", "1..2", "--clusters", "3", "--json"]) == 1
    failed = json.loads(capsys.readouterr().out)["failed"]
    assert failed[0]["findings"][0].startswith("I2: ")
    assert failed[0]["repro"] == f"gir-chaos sim --seeds {failed[0]['seed']} --clusters 3 --trace"


def test_findings_are_told_in_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    bug = next(bug for bug in forwarding.BUGS if bug.name == "leak-on-disconnect")
    with bug.planted():
        main(["sim", "--seeds", "1"])
    told = capsys.readouterr().out
    assert "seed 1: I2: " in told
    assert "again: gir-chaos sim --seeds 1 --trace" in told
    assert "1 seeds, 1 with findings" in told


def test_a_trace_tells_the_history_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--seeds", "2", "--faults", "freeze", "--trace"]) == 0
    told = capsys.readouterr().out
    assert " fault freeze " in told
    assert " place req-" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "9..1"], "write one number, or A..B with A <= B"),
        (["--seeds", "x"], "write one number"),
        (["--faults", "freeze,earthquake"], "unknown kinds: earthquake"),
        (["--clusters", "1"], "a fleet has two or more"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sim", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
