"""A wall clock set wrong is wrong for the whole process, for as long as it is, and for that process only."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.faults import wallclock
from chaos.faults.wallclock import WallClock, build

pytestmark = pytest.mark.slow

ASKED = """
import datetime, sys, time
for _ in sys.stdin:
    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), flush=True)
"""


class Process:
    """Says what time it is when asked: by two ways to the wall clock, and the monotonic clock."""

    def __init__(self, clock: WallClock) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", ASKED], env=clock.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def times(self) -> list[float]:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return [float(word) for word in self._child.stdout.readline().split()]

    def end(self) -> None:
        self._child.communicate(timeout=5)


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(build(tmp_path), tmp_path / "page")


@pytest.fixture
def process(clock: WallClock) -> Iterator[Process]:
    running = Process(clock)
    yield running
    running.end()


@pytest.mark.parametrize("offset_s", [600.0, -600.0])
def test_the_wall_clock_steps_and_the_monotonic_clock_does_not(
    clock: WallClock, process: Process, offset_s: float
) -> None:
    wall_s, date_s, before_s = process.times()
    assert (wall_s, date_s) == pytest.approx((time.time(), time.time()), abs=2.0)
    assert clock.told == 0
    clock.set_wrong_by(offset_s)
    wall_s, date_s, after_s = process.times()
    assert (wall_s, date_s) == pytest.approx((time.time() + offset_s, time.time() + offset_s), abs=2.0)
    assert 0.0 <= after_s - before_s < 2.0
    assert clock.told >= 2
    clock.set_wrong_by(0.0)
    assert process.times()[0] == pytest.approx(time.time(), abs=2.0)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wallclock.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match="needs a C compiler"):
        build(tmp_path)
