"""No port is given twice, and no child outlives its parent, whatever ends the parent."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import children
from chaos.children import ChildError
from chaos.faults.process import state
from chaos.ports import COUNT, FIRST, PortLeases

SLEEP = children.python("-c", "import time; print('up', flush=True); time.sleep(60)")
STUBBORN = children.python(
    "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[children.Child]]:
    running: list[children.Child] = []
    yield running
    children.kill(running)


def spawn(started: list[children.Child], command: list[str], tmp_path: Path) -> children.Child:
    child = children.spawn("child", command, tmp_path / "child.log")
    started.append(child)
    return child


def test_two_fleets_never_get_the_same_port(tmp_path: Path) -> None:
    first = PortLeases(tmp_path, random.Random(1))
    second = PortLeases(tmp_path, random.Random(1))
    ports = [first.take(), second.take(), first.take(), second.take()]
    assert len(set(ports)) == 4
    assert all(FIRST <= port < FIRST + COUNT for port in ports)
    first.close()
    third = PortLeases(tmp_path, random.Random(1))
    assert third.take() == ports[0]
    second.close()
    third.close()


def test_a_port_in_use_is_passed_over(tmp_path: Path) -> None:
    leases = PortLeases(tmp_path, random.Random(1))
    port = leases.take()
    leases.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        leases = PortLeases(tmp_path, random.Random(1))
        assert leases.take() != port
        leases.close()


@pytest.mark.slow
def test_the_polite_are_asked_and_the_stubborn_are_killed(started: list[children.Child], tmp_path: Path) -> None:
    polite, stubborn = spawn(started, SLEEP, tmp_path), spawn(started, STUBBORN, tmp_path)
    assert children.wait_until(lambda: polite.tail().count("up") == 2, 5.0)
    children.stop(started, grace_s=0.4)
    assert (polite.exit_code, stubborn.exit_code) == (-signal.SIGTERM, -signal.SIGKILL)


@pytest.mark.slow
def test_a_frozen_child_is_stopped_too(started: list[children.Child], tmp_path: Path) -> None:
    child = spawn(started, SLEEP, tmp_path)
    child.signal(signal.SIGSTOP)
    children.stop(started, grace_s=2.0)
    assert child.exit_code == -signal.SIGTERM


@pytest.mark.slow
def test_a_child_that_fails_at_the_start_shows_its_log(started: list[children.Child], tmp_path: Path) -> None:
    child = spawn(started, children.python("-c", "raise SystemExit('listen is 99999: no such port')"), tmp_path)
    with pytest.raises(ChildError, match=r"(?s)ended while starting; it ended with status 1.*listen is 99999"):
        children.wait_ready(child, lambda: False, "did not start", 10.0)
    late = spawn(started, SLEEP, tmp_path)
    with pytest.raises(ChildError, match=r"did not start within 0.1 s; it still runs"):
        children.wait_ready(late, lambda: False, "did not start", 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_die_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom chaos import children\n"
        f"child = children.spawn('c', {SLEEP!r}, Path({str(tmp_path / 'log')!r}))\n"
        "print(child.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert state(pid) in ("R", "S")
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    give_up_s = time.perf_counter() + 3.0
    while state(pid) not in ("", "Z") and time.perf_counter() < give_up_s:
        time.sleep(0.01)
    assert state(pid) in ("", "Z")


@pytest.mark.slow
def test_a_child_has_a_session_of_its_own(started: list[children.Child], tmp_path: Path) -> None:
    child = spawn(started, SLEEP, tmp_path)
    assert os.getsid(child.pid) == child.pid
