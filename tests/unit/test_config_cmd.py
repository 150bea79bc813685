"""`gir config`: what it says, and the exit code it says it with."""

import json
from pathlib import Path
from typing import Any

import pytest

from gir.cli.main import main
from gir.control.schema import config_schema
from tests.unit.test_config_check import TIER, text


def written(folder: Path, name: str, **sections: Any) -> str:
    path = folder / name
    path.write_text(text(**sections))
    return str(path)


def test_a_good_file_is_said_to_be_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "r.yaml", policy={"tiers": [TIER]})
    assert main(["config", "check", path]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: ok (1 clusters may report, 0 models")
    assert main(["config", "check", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_faults_and_warnings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "r.yaml", listen="x", admin={"listen": "y"})
    assert main(["config", "check", path]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert main(["config", "check", path, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["errors"]) == 2
    assert main(["config", "check", written(tmp_path, "w.yaml", agents=[])]) == 0
    assert capsys.readouterr().err.startswith("warning: agents is empty")


def test_a_file_of_keys_that_is_not_there_yet_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "r.yaml", auth={"api_keys_file": "keys.json"})
    assert main(["config", "check", path]) == 0
    assert f"warning: auth.api_keys_file is {tmp_path}/keys.json, which is not there" in capsys.readouterr().err
    assert main(["keys", "create", "--file", str(tmp_path / "keys.json"), "--id", "ci", "--tenant", "acme"]) == 0
    capsys.readouterr()
    assert main(["config", "check", path]) == 0
    assert "which is not there" not in capsys.readouterr().err


def test_an_agents_file_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("cluster: eu-1\nregion: eu\n")
    assert main(["config", "check", str(tmp_path / "a.yaml")]) == 1
    assert "gir-agent config check" in capsys.readouterr().err


def test_a_difference_names_fields_and_what_needs_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = written(tmp_path, "a.yaml", policy={"tiers": [TIER]})
    after = written(
        tmp_path,
        "b.yaml",
        listen="127.0.0.1:1234",
        policy={
            "tiers": [{"name": "spot", "price_per_slot_hour": 0.5}, {**TIER, "spill_at": 0.2}],
            "limits": [{"name": "all", "requests_per_min": 9}],
        },
    )
    assert main(["config", "diff", before, before]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert main(["config", "diff", before, after]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "listen: 127.0.0.1:8080 -> 127.0.0.1:1234   (needs a restart)" in lines
    assert "policy.tiers[reserved].spill_at: 0.15 -> 0.2" in lines
    assert "policy.tiers[spot].price_per_slot_hour: (absent) -> 0.5" in lines
    assert "policy.limits[all].requests_per_min: (absent) -> 9" in lines
    assert not any("-> None" in line for line in lines), "a knob that a new entry leaves alone"
    assert main(["config", "diff", before, str(tmp_path / "absent")]) == 1


def test_a_difference_shows_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = written(tmp_path, "a.yaml")
    after = written(tmp_path, "b.yaml", agents=[{"cluster": "us-1", "token": {"value": "s3cret"}}])
    main(["config", "diff", before, after])
    shown = capsys.readouterr().out
    assert "agents[us-1].token.value: (absent) -> (secret)" in shown
    assert "s3cret" not in shown


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$defs"]["RouterConfig"]["additionalProperties"] is False


def test_the_schema_describes_every_field_of_the_file() -> None:
    definitions = config_schema()["$defs"]
    assert not {"version", "digest"} & definitions["PolicySnapshot"]["properties"].keys()
    described_elsewhere = {"AdminToken", "ApiKey", "AuthSettings", "ClaimMap", "JwtIssuer"}
    for name in definitions.keys() - described_elsewhere:
        for field, schema in definitions[name]["properties"].items():
            assert schema.get("description"), f"{name}.{field} has no words"
