"""Credentials of a fleet do not outlive it, however its runner ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.scratch import LOCK, Scratch, sweep

pytestmark = pytest.mark.slow
RUNNER = """
import sys, time
from pathlib import Path
from chaos.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
(scratch.directory / "router-1.yaml").write_text("token: secret")
print(scratch.directory, flush=True)
time.sleep(60)
"""


def runner(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", RUNNER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_runner_leaves_is_swept_by_the_next_and_the_living_are_spared(tmp_path: Path) -> None:
    dead, left = runner(tmp_path)
    alive, kept = runner(tmp_path)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert (left / "router-1.yaml").exists()
        assert sweep(tmp_path) == [left]
        assert not left.exists()
        assert (kept / "router-1.yaml").exists()
    finally:
        for process in (dead, alive):
            process.kill()
            process.communicate()
    assert sweep(tmp_path) == [kept]


def test_a_directory_without_a_lock_is_left_until_it_is_old(tmp_path: Path) -> None:
    young = tmp_path / "gir-fleet-young"
    young.mkdir()
    assert sweep(tmp_path) == []
    os.utime(young, (1.0, 1.0))
    assert sweep(tmp_path) == [young]


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    other, file, link = tmp_path / "something", tmp_path / "gir-fleet-file", tmp_path / "gir-fleet-link"
    other.mkdir()
    file.write_text("x")
    link.symlink_to(other)
    os.utime(other, (1.0, 1.0))
    assert sweep(tmp_path) == []
    assert other.exists() and file.exists() and link.exists()


def test_closing_removes_everything_and_may_be_done_twice(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert (scratch.directory / LOCK).exists()
    assert scratch.directory.stat().st_mode & 0o077 == 0
    assert sweep(tmp_path) == []
    scratch.close()
    scratch.close()
    assert list(tmp_path.iterdir()) == []
