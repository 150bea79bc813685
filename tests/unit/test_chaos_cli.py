"""Wrong command lines say what is wrong; nothing heavy is loaded for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaos import cli, load_cli
from chaos.engine import cli as engine_cli


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert "a command is needed" in shown
    assert all(name in shown for name in cli.COMMANDS)
    assert cli.main(["explode"]) == 2
    assert "'explode' is no command" in capsys.readouterr().err
    assert cli.main(["--help"]) == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pods: [{name: a, model: m, gpu: b200}]\n", "gpu is 'b200'"),
        ("pods: [{name: a, model: m, colour: red}]\n", "colour"),
        ("pods: [{name: a, model: m, slots: 0}]\n", "slots"),
        ("pods: [", "engines.yaml"),
    ],
)
def test_an_engine_file_that_is_wrong_is_refused_with_the_field(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(text)
    assert engine_cli.main("engine", ["-c", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_load_needs_an_address_it_can_send_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_cli.main("load", ["--url", "https://example.org", "--model", "m"]) == 2
    assert "http://host:port" in capsys.readouterr().err
    assert load_cli.main("load", ["--url", "http://127.0.0.1:1", "--model", "m", "--rps", "0"]) == 2
    assert "rps" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("duration", ["nan", "-1", "0", "inf", "soon"])
def test_a_demo_needs_a_duration_that_ends(duration: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(["demo", "--duration", duration])
    assert exited.value.code == 2
    assert f"argument --duration: invalid seconds value: '{duration}'" in capsys.readouterr().err


def test_listing_the_commands_loads_neither_a_loop_nor_a_server() -> None:
    script = (
        "import sys, chaos.cli; chaos.cli.main(['--help']); print({'uvloop', 'aiohttp', 'grpc'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.endswith("set()\n")
