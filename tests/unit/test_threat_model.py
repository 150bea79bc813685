"""The threat model names code and tests that exist: a row whose proof is gone is no defence."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "threat-model.md"
ROWS = [
    line.split("|")[1:-1]
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| threat")
]


def test_every_kind_of_threat_is_considered() -> None:
    kinds = re.findall(r"^## (.+)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    stride = [
        "Spoofing",
        "Tampering",
        "Repudiation",
        "Information disclosure",
        "Denial of service",
        "Elevation of privilege",
    ]
    assert [kind for kind in kinds if kind in stride] == stride
    assert len(ROWS) >= 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:40])
def test_a_row_names_code_and_proof_that_exist(row: list[str]) -> None:
    threat, defence, code, proof = (cell.strip() for cell in row)
    assert threat
    assert defence
    for cell, place in ((code, ("gir/", "tier1_agent/")), (proof, ("tests/",))):
        paths = re.findall(r"`([^`]+)`", cell)
        assert paths, f"{threat}: nothing named in {cell!r}"
        for path in paths:
            assert path.startswith(place), path
            assert (ROOT / path).is_file(), f"{threat}: {path} does not exist"
