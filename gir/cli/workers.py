"""`gir serve --workers N`: N processes on one data port (SO_REUSEPORT), each a full replica.

Every worker has an admin and a beat port of its own: the configured ones plus its number. Agents are told all beat
addresses, so each worker hears every beat. The parent only starts, watches and stops them.
"""

import argparse
import os
import signal
import subprocess
import sys
from types import FrameType

import msgspec

from gir.control.config import RouterConfig
from gir.settings import ConfigError, host_and_port

WORKER_VARIABLE = "GIR_WORKER"


def worker_number() -> int | None:
    """Number of this worker, 0 first; None in a process that is none."""
    value = os.environ.get(WORKER_VARIABLE, "")
    return int(value) if value.isdecimal() else None


def of_worker(config: RouterConfig, number: int, workers: int) -> RouterConfig:
    """`config` as worker `number` uses it. Raises ConfigError when ports cannot be counted up."""
    beats = [_plus(config.beats.listen, "beats.listen", each) for each in range(workers)]
    peers = tuple(dict.fromkeys([*beats, *config.beats.peers]))
    return msgspec.structs.replace(
        config,
        name=f"{config.name or config.listen}/{number}",
        admin=msgspec.structs.replace(config.admin, listen=_plus(config.admin.listen, "admin.listen", number)),
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
    children = [
        subprocess.Popen(command, env={**os.environ, WORKER_VARIABLE: str(number)})  # noqa: S603 - our own command
        for number in range(workers)
    ]

    def pass_on(number: int, _: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    codes = []
    while children:
        pid, status = os.wait()
        ended = [child for child in children if child.pid == pid]
        if ended:
            children.remove(ended[0])
            ended[0].returncode = os.waitstatus_to_exitcode(status)
            codes.append(abs(ended[0].returncode))
            pass_on(signal.SIGTERM, None)
    return max(codes)
