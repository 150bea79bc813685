"""What the kernel knows about processes: cores, CPU time, memory. Linux only, like the bars themselves."""

import os
import resource
import socket
from collections.abc import Iterable

import psutil

ROUTER_CORE = 0
LOAD_CORE = 1


def pin(core: int, pid: int = 0) -> None:
    """Keep process `pid` (0 = this one) and what it starts later on `core`; nothing on a machine with one core."""
    if core < (os.cpu_count() or 1):
        os.sched_setaffinity(pid, {core})


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of `pids` with all their threads, living and ended (`/proc/PID/stat`)."""
    times = (psutil.Process(pid).cpu_times() for pid in pids)
    return sum(one.user + one.system for one in times)


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of `pids`."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


def family(pid: int) -> list[int]:
    """`pid` and its living descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody used a moment ago; for programs that cannot pick their own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def raise_descriptor_limit() -> int:
    """As many open files as the hard limit allows; returns that number."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
