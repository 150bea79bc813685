"""A command whose output nobody reads to the end goes quietly."""

import subprocess
import sys

import pytest

from gir.pipes import EXIT_PIPE


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("gir.cli.main", "config", "schema"), ("tier1_agent.cli", "config", "schema"), ("chaos.cli", "list")]
)
def test_a_reader_that_leaves_early_is_no_fault(command: tuple[str, ...]) -> None:
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(20), complaint) == (EXIT_PIPE, b"")
