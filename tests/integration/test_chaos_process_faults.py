"""Signals reach the declared processes, and only those."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from chaos.faults.process import ProcessFaults, started_ticks, state
from chaos.faults.undo import Undo

pytestmark = pytest.mark.slow


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def becomes(pid: int, letters: str) -> bool:
    give_up_s = time.perf_counter() + 2.0
    while time.perf_counter() < give_up_s:
        if state(pid) in letters.split():
            return True
        time.sleep(0.005)
    return False


def test_a_stopped_process_is_frozen_until_the_undo(child: subprocess.Popen[bytes]) -> None:
    undo = Undo()
    faults = ProcessFaults(undo)
    faults.allow([child.pid])
    assert faults.stop([child.pid]) == 1
    assert becomes(child.pid, "T")
    undo.mend_all()
    assert becomes(child.pid, "S R")


def test_a_killed_process_is_gone_and_a_second_kill_hits_nothing(child: subprocess.Popen[bytes]) -> None:
    told: list[tuple[str, int]] = []
    faults = ProcessFaults(Undo(), lambda *hit: told.append(hit))
    faults.allow([child.pid])
    assert faults.kill([child.pid]) == 1
    assert child.wait() == -9
    assert faults.kill([child.pid]) == 0
    assert told == [("SIGKILL", 1), ("SIGKILL", 0)]


def test_terminate_is_the_polite_stop(child: subprocess.Popen[bytes]) -> None:
    faults = ProcessFaults(Undo())
    faults.allow([child.pid])
    faults.terminate([child.pid])
    assert child.wait() == -15


def test_who_was_not_declared_is_never_touched(child: subprocess.Popen[bytes]) -> None:
    with pytest.raises(PermissionError, match="not a declared target"):
        ProcessFaults(Undo()).stop([child.pid])
    assert state(child.pid) in ("S", "R")


def test_a_target_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ProcessLookupError, match="does not exist"):
        ProcessFaults(Undo()).allow([2**22 + 1])


def test_a_process_is_known_by_its_start_too() -> None:
    assert started_ticks(os.getpid()) is not None
    assert started_ticks(2**22 + 1) is None
