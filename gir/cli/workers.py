"""`gir serve --workers N`: N processes on one data port (SO_REUSEPORT), each a full replica.

Every worker has an admin and a beat port of its own: the configured ones plus its number. Agents are told all beat
addresses, so each worker hears every beat. What operators order reaches all workers through the store they share:
Redis, the state directory, or for want of both a directory that lives as long as they do. The parent only starts,
watches and stops them.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from gir.control.config import RouterConfig
from gir.settings import ConfigError, host_and_port

WORKER_VARIABLE = "GIR_WORKER"
SHARED_VARIABLE = "GIR_WORKERS_DIR"
EXIT_KILLED = 1
_PR_SET_PDEATHSIG = 1


def worker_number() -> int | None:
    """Number of this worker, 0 first; None in a process that is none."""
    value = os.environ.get(WORKER_VARIABLE, "")
    return int(value) if value.isdecimal() else None


def shared_directory() -> Path | None:
    """Directory that all workers of this start share; None in a process that is no worker."""
    value = os.environ.get(SHARED_VARIABLE, "")
    return Path(value) if value and worker_number() is not None else None


def of_worker(config: RouterConfig, number: int, workers: int) -> RouterConfig:
    """`config` as worker `number` uses it. Raises ConfigError when ports cannot be counted up, or two would meet."""
    beats = [_plus(config.beats.listen, "beats.listen", each) for each in range(workers)]
    admins = [_plus(config.admin.listen, "admin.listen", each) for each in range(workers)]
    wanted = Counter([config.listen, *admins, *beats])
    if twice := [address for address, times in wanted.items() if times > 1]:
        raise ConfigError(
            f"{twice[0]} is wanted twice: each of {workers} workers counts admin.listen and beats.listen up by its "
            f"number; leave {workers} ports free from each of them on"
        )
    peers = tuple(dict.fromkeys([*beats, *config.beats.peers]))
    return msgspec.structs.replace(
        config,
        name=f"{config.name or config.listen}/{number}",
        workers=workers,
        admin=msgspec.structs.replace(config.admin, listen=admins[number]),
        beats=msgspec.structs.replace(config.beats, listen=beats[number], peers=peers),
    )


def _plus(address: str, field: str, number: int) -> str:
    host, port = host_and_port(address, field)
    if not port:
        raise ConfigError(f"{field} is {address!r}: with several workers give a port, so that each can have its own")
    return f"[{host}]:{port + number}" if ":" in host else f"{host}:{port + number}"


def run_workers(workers: int, arguments: argparse.Namespace) -> int:
    """Start the workers and wait; a signal goes to all of them; a worker that dies takes the others down.

    Returns the worst exit code.
    """
    command = [sys.executable, "-m", "gir.cli.main", "serve", "-c", str(arguments.config), "--workers", str(workers)]
    if arguments.state_dir is not None:
        command += ["--state-dir", str(arguments.state_dir)]
    with contextlib.ExitStack() as kept:
        shared = arguments.state_dir or kept.enter_context(tempfile.TemporaryDirectory(prefix="gir-workers-"))
        environments = [{WORKER_VARIABLE: str(number), SHARED_VARIABLE: str(shared)} for number in range(workers)]
        return supervise(command, environments)


def supervise(command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> int:
    """Run `command` once in each environment, until all have ended; the worst exit code, 1 for a death by signal.

    The first end asks the others to stop, once: a second request would cut short what they have still to finish.
    """
    running: set[int] = set()
    asked = False

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for pid in running:
            # Straight to the system: Popen's own way would reap the dead, whom `os.wait` waits for.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    children = []
    for environment in environments:
        # A group of its own: Ctrl-C must reach it through us alone, for the second signal means hurry.
        child = subprocess.Popen(command, env={**os.environ, **environment}, process_group=0)  # noqa: S603 - our own
        children.append(child)
        running.add(child.pid)
    worst = 0
    while running:
        pid, status = os.wait()
        if pid not in running:
            continue
        running.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code != -signal.SIGTERM or not asked:  # Asked before it could listen to signals: that is no fault of its.
            worst = max(worst, code if code >= 0 else EXIT_KILLED)
        if not asked:
            pass_on(signal.SIGTERM, None)
    for child in children:
        child.returncode = 0  # Reaped here, not there.
    return worst


def end_with_parent() -> None:
    """Have the kernel ask this worker to stop when its parent is gone; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
