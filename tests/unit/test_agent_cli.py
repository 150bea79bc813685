"""`gir-agent` on the command line: what it checks, prints and returns."""

import json
import socket
from pathlib import Path

import pytest

from tests.unit.test_agent_config import GOOD
from tier1_agent.cli import EXIT_CANNOT_START, EXIT_OK, main


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return str(path)


def test_a_good_file_is_called_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", write(tmp_path, GOOD)]) == EXIT_OK
    assert "good: cluster eu-1, 1 pods" in capsys.readouterr().out


def test_a_bad_file_is_explained_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", write(tmp_path, GOOD + "tiers: x\n")]) == EXIT_CANNOT_START
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gir-agent: ")
    assert "tiers is no known key; did you mean tier?" in line


def test_the_answer_can_be_read_by_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--json", write(tmp_path, GOOD + "routers: [r:7070]\n")]) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == {"ok": True, "cluster": "eu-1", "pods": 1, "warning": ""}
    assert main(["config", "check", "--json", write(tmp_path, "cluster: [\n")]) == EXIT_CANNOT_START
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_the_pods_file_is_checked_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.splitlines(keepends=True)[:-1]
    path = write(tmp_path, "".join(text) + "pods: {file: pods.yaml}\n")
    (tmp_path / "pods.yaml").write_text("pods: [{url: nonsense, model: m}]\n")
    assert main(["config", "check", path]) == EXIT_CANNOT_START
    assert "pods[0].url" in capsys.readouterr().err
    (tmp_path / "pods.yaml").write_text("pods: []\n")
    assert main(["config", "check", path]) == EXIT_OK
    assert "warning: no pod is listed" in capsys.readouterr().out


def test_a_file_of_another_kind_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", write(tmp_path, "pods: [{url: 'http://x:1', model: m}]\n")]) == EXIT_CANNOT_START
    assert "name it in the agent's file: pods: {file: FILE}" in capsys.readouterr().err
    assert main(["config", "check", write(tmp_path, "listen: 127.0.0.1:1\npolicy: {}\n")]) == EXIT_CANNOT_START
    assert "gir-agent: this looks like the file of a router; check it with: gir config check" in capsys.readouterr().err


def test_an_agent_that_no_router_hears_of_is_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", write(tmp_path, GOOD)]) == EXIT_OK
    assert "warning: no router is listed: none will send requests here" in capsys.readouterr().out


def test_a_taken_port_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = GOOD + f"listen: 127.0.0.1:{port}\nadmin: {{listen: '127.0.0.1:0'}}\n"
        assert main(["serve", "-c", write(tmp_path, text)]) == EXIT_CANNOT_START
    told = capsys.readouterr().err.splitlines()[-1]
    assert (
        told == f"gir-agent: cannot listen on 127.0.0.1:{port}: Address already in use; free the port or choose another"
    )


def test_the_schema_names_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == EXIT_OK
    schema = json.loads(capsys.readouterr().out)
    assert {"AgentConfig", "PodEntry", "GateSection"} <= set(schema["$defs"])


def test_serving_a_bad_file_ends_before_anything_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-c", write(tmp_path, "cluster: eu-1\n")]) == EXIT_CANNOT_START
    assert "is missing; add it" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == EXIT_OK
    assert capsys.readouterr().out.startswith("gir-agent ")
