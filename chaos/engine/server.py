"""One process, one event loop, several pods on several ports.

`serve` runs until SIGINT or SIGTERM. When every pod listens it writes the ready file, so whoever started it never has
to guess a port: `{"pids": [...], "pods": [{"name", "url", "model"}]}`.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from chaos.engine.pod import Pod, PodConfig
from gir.clock import Clock, SystemClock
from gir.tasks import TaskSet


class HostConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pods of one process."""

    pods: tuple[PodConfig, ...]


class Host:
    """Pods that share one loop."""

    def __init__(self, config: HostConfig, clock: Clock) -> None:
        self._tasks = TaskSet(_report)
        self.pods = [Pod(pod, clock, self._tasks) for pod in config.pods]

    async def start(self) -> None:
        """Listen on every port; OSError names the pod whose port is taken."""
        for pod in self.pods:
            try:
                await pod.start()
            except OSError as error:
                raise OSError(f"pod {pod.config.name}: listen is {pod.config.listen!r}: {error.strerror}") from error

    async def stop(self) -> None:
        """Reset every connection and end every task."""
        for pod in self.pods:
            await pod.server.stop()
        await self._tasks.close()


def _report(name: str, error: BaseException) -> None:
    sys.stderr.write(f"engine: {name} failed: {error!r}\n")


def load(path: Path) -> HostConfig:
    """Read a YAML or JSON file; raises ValueError naming the field and what is wrong with it."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=HostConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from error


async def _serve(config: HostConfig, ready_file: Path | None) -> None:
    host = Host(config, SystemClock())
    await host.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    pods = [{"name": pod.config.name, "url": pod.url, "model": pod.config.model} for pod in host.pods]
    if ready_file is not None:
        write_ready(ready_file, {"pids": [os.getpid()], "pods": pods})
    else:
        for pod in pods:
            sys.stdout.write(f"{pod['name']}: {pod['model']} on {pod['url']}\n")
        sys.stdout.flush()
    await stop.wait()
    await host.stop()


def write_ready(path: Path, value: object) -> None:
    """Write JSON so that a reader sees all of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.encode(value))
    partial.replace(path)


def serve(config: HostConfig, ready_file: Path | None = None) -> None:
    """Run the pods until told to stop."""
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(config, ready_file))
