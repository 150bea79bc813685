"""Child processes that never outlive us.

Each child leads a session of its own (so a terminal's Ctrl-C reaches only the parent, which then stops things in
order), is killed by the kernel when its parent dies, and logs to a file.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gir.clock import SystemClock

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
POLL_S = 0.02


class ChildError(RuntimeError):
    """A child did not start, or died; the message ends with the last lines of its log."""


class Child:
    """One running (or ended) process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    def __repr__(self) -> str:
        state = "running" if self.alive else f"ended {self._process.returncode}"
        return f"<Child {self.name} pid {self.pid} {state}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Not ended (a stopped process is alive)."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit status; negative signal number; None while it runs."""
        return self._process.poll()

    def tail(self, lines: int = 15) -> str:
        """Last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole process group."""
        if self.alive:
            os.killpg(self.pid, number)

    def wait(self, within_s: float) -> bool:
        """Wait for the end; False when it did not come in time."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def trouble(self, what: str) -> ChildError:
        """An error that says all there is to know about this child."""
        state = "still runs" if self.alive else f"ended with status {self.exit_code}"
        command = " ".join(map(str, self._process.args)) if isinstance(self._process.args, list) else ""
        return ChildError(
            f"{self.name} {what}; it {state}\ncommand: {command}\nlast lines of {self.log}:\n{self.tail()}"
        )


def spawn(name: str, command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> Child:
    """Start a process. Call it from a thread that lives as long as the child is to live: the kernel kills the child
    when that thread ends."""
    parent = os.getpid()

    def tie_to_parent() -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the kernel knew of the wish
            os._exit(1)

    with log.open("ab") as output:
        process = subprocess.Popen(  # the only way to ask the kernel for this, and it only calls prctl
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tie_to_parent,  # noqa: PLW1509  # the only way to ask the kernel; it does nothing else
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        )
    return Child(name, process, log)


def stop(children: Iterable[Child], *, grace_s: float = 1.5) -> None:
    """End processes: SIGTERM, a second one for those that would drain, SIGKILL for what is left after `grace_s`."""
    running = [child for child in children if child.alive]
    for attempt in range(2):
        for child in running:
            child.signal(signal.SIGCONT)
            child.signal(signal.SIGTERM)
        wait_until(lambda: not any(child.alive for child in running), grace_s * (0.25 if attempt == 0 else 0.75))
    kill(running)


def kill(children: Iterable[Child]) -> None:
    """SIGKILL, and wait until each is gone."""
    for child in children:
        child.signal(signal.SIGKILL)
    for child in children:
        child.wait(5.0)


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Poll a condition from outside any event loop; False when it did not come true in time."""
    clock = SystemClock()
    give_up_s = clock.monotonic_s() + within_s
    while not condition():
        if clock.monotonic_s() > give_up_s:
            return False
        time.sleep(POLL_S)
    return True


def wait_ready(child: Child | None, condition: Callable[[], bool], problem: str, within_s: float) -> None:
    """Wait for a condition of a child that starts; raises its trouble when it dies or is late."""
    assert child is not None, "spawn it first"
    if not wait_until(lambda: not child.alive or condition(), within_s):
        raise child.trouble(f"{problem} within {within_s:g} s")
    if not child.alive:
        raise child.trouble("ended while starting")


def python(*arguments: str) -> list[str]:
    """A command that runs this interpreter."""
    return [sys.executable, *arguments]
