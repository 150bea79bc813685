"""Kill, stop and continue processes: only those that were declared as targets, and never a recycled pid."""

import functools
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from chaos.faults.undo import Undo


def started_ticks(pid: int) -> int | None:
    """When the kernel started this process, in clock ticks since boot; None when there is no such process.

    Pid and start together name a process for ever; a pid alone may be given to somebody else.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def state(pid: int) -> str:
    """The kernel's letter for it: `R` or `S` runs, `T` is stopped, `Z` is dead; '' when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


class ProcessFaults:
    """Signals to a declared set of processes. Every stop has its continue registered first.

    `on_hit(name of the signal, processes reached)` is told of each.
    """

    def __init__(self, undo: Undo, on_hit: Callable[[str, int], None] = lambda *_: None) -> None:
        self._undo = undo
        self._on_hit = on_hit
        self._targets: dict[int, int] = {}

    def allow(self, pids: Iterable[int]) -> None:
        """Declare targets (the blast radius); ProcessLookupError for one that does not exist."""
        for pid in pids:
            started = started_ticks(pid)
            if started is None:
                raise ProcessLookupError(f"pid {pid} does not exist: nothing to aim at")
            self._targets[pid] = started

    def kill(self, pids: Iterable[int]) -> int:
        """SIGKILL; says how many it hit. There is no undo: the fleet starts the cluster anew."""
        return self._signal(pids, signal.SIGKILL)

    def terminate(self, pids: Iterable[int]) -> int:
        """SIGTERM, the polite stop."""
        return self._signal(pids, signal.SIGTERM)

    def stop(self, pids: Iterable[int]) -> int:
        """SIGSTOP: frozen, with every socket open. Undone by SIGCONT."""
        pids = list(pids)
        for pid in pids:
            self._undo.register(f"stop {pid}", functools.partial(self.resume, [pid]))
        return self._signal(pids, signal.SIGSTOP)

    def resume(self, pids: Iterable[int]) -> int:
        """SIGCONT; harmless to a process that runs."""
        return self._signal(pids, signal.SIGCONT)

    def _signal(self, pids: Iterable[int], number: signal.Signals) -> int:
        hit = 0
        for pid in pids:
            expected = self._targets.get(pid)
            if expected is None:
                raise PermissionError(f"pid {pid} is not a declared target: allow it first")
            if started_ticks(pid) == expected:
                os.kill(pid, number)
                hit += 1
        self._on_hit(number.name, hit)
        return hit
