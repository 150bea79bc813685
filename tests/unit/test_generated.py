"""The committed stubs are what the protocol files generate, byte for byte."""

from pathlib import Path

from gir.wire.regenerate import STUBS, generate


def test_committed_stubs_are_what_the_protocol_generates(tmp_path: Path) -> None:
    fresh = {path.name: path.read_bytes() for path in generate(tmp_path)}
    committed = {path.name: path.read_bytes() for path in STUBS.glob("*_pb2*")}
    assert fresh.keys() == committed.keys()
    assert {name for name in fresh if fresh[name] != committed[name]} == set(), "run `make proto` and commit"
