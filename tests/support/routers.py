"""Real router processes and the scripted cluster behind them."""

import asyncio
import contextlib
import http.client
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.registry import CollectorRegistry

from gir.cli import main as cli
from gir.clock import SystemClock
from gir.model.beat import AgentHello, BeatReport
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId, RegionId, TierName
from gir.net.exchange import Exchange
from gir.telemetry.metrics import AgentMetrics
from tests.support.beats import Log
from tests.support.upstream import JSON, FakeCluster
from tier1_agent.beats import BeatClient

READY_S = 30.0
TOKEN = "token-of-eu-1"
MODELS = ("llama", "llama-next")
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}


def free_ports(count: int) -> int:
    """First of `count` ports in a row that nobody listens on, below those the system gives to outgoing connections."""
    while True:
        first = random.randrange(15_000, 32_000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class RouterProcess:
    """`gir serve`, killed and started again at will, always on the same ports and directories."""

    def __init__(self, folder: Path, name: str, *, workers: int = 1, state: bool = False, **sections: Any) -> None:
        self.name = name
        self.workers = workers
        self.port, self.admin, self.beats = free_ports(1), free_ports(workers), free_ports(workers)
        self.state = folder / f"{name}-state" if state else None
        self._log = folder / f"{name}.log"
        self._file = folder / f"{name}.yaml"
        self._process: subprocess.Popen[bytes] | None = None
        self._config = {
            "name": name,
            "listen": f"127.0.0.1:{self.port}",
            "admin": {"listen": f"127.0.0.1:{self.admin}"},
            "beats": {"listen": f"127.0.0.1:{self.beats}"},
            "auth": {"insecure_no_auth": True},
            "agents": [{"cluster": "eu-1", "token": {"value": TOKEN}}],
            "drain": {"listen_s": 0.0, "finish_s": 1.0},
            **sections,
        }
        self.rewrite()

    @property
    def beat_addresses(self) -> list[str]:
        """Where agents report to each worker."""
        return [f"127.0.0.1:{self.beats + number}" for number in range(self.workers)]

    def rewrite(self, **sections: Any) -> None:
        """Change its configuration file."""
        self._config |= sections
        self._file.write_text(json.dumps(self._config))  # JSON is YAML.

    async def ended(self) -> tuple[int, str]:
        """Wait until it ends by itself: exit code, and what it has said."""
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait, READY_S)
        self._process = None
        return code, self._log.read_text()

    def launch(self) -> None:
        """Start it; returns at once."""
        command = [sys.executable, "-m", "gir.cli.main", "serve", "-c", str(self._file)]
        command += ["--workers", str(self.workers)] if self.workers > 1 else []
        command += ["--state-dir", str(self.state)] if self.state else []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)

    async def start(self) -> None:
        """Start it and wait until every worker's admin port answers."""
        self.launch()
        await self.ready()

    async def ready(self) -> None:
        """Wait until every worker's admin port answers."""
        deadline_s = time.perf_counter() + READY_S
        for number in range(self.workers):
            while (await self.ask("GET", "/healthz", worker=number))[0] != 200:
                assert time.perf_counter() < deadline_s, self._log.read_text()[-2000:]
                await asyncio.sleep(0.1)

    def terminate(self) -> None:
        """SIGTERM."""
        assert self._process is not None
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, with all workers."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(self._process.pid).children(recursive=True)
                os.kill(self._process.pid, signal.SIGKILL)
                for child in family:
                    child.kill()
            self._process.wait()
            self._process = None

    async def ask(self, method: str, path: str, body: Any = None, *, worker: int = 0) -> tuple[int, Any]:
        """One call of a worker's admin API; status 0 when nobody listens."""
        return await asyncio.to_thread(self._ask, method, path, body, self.admin + worker)

    async def get(self, path: str, *, worker: int = 0) -> Any:
        """What a GET answers."""
        return (await self.ask("GET", path, worker=worker))[1]

    async def canary(self, rule: str, *, worker: int = 0) -> str:
        """State of a rule there; '' when there is none."""
        answer = await self.get("/admin/canaries", worker=worker)
        return next((row["state"] for row in answer["canaries"] if row["rule"] == rule), "")

    async def command(self, *arguments: str, worker: int = 0) -> tuple[int, str, str]:
        """Run `gir ...` against a worker: exit code, output, complaints."""
        url = f"http://127.0.0.1:{self.admin + worker}"
        return await asyncio.to_thread(_command, [*arguments, "--admin-url", url])

    @staticmethod
    def _ask(method: str, path: str, body: Any, port: int) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except OSError:
            return 0, None
        finally:
            connection.close()


def _command(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main(arguments)
    return code, out.getvalue(), err.getvalue()


class Site:
    """One cluster that serves MODELS and reports to every router. Of `bad` models each answer is a 500."""

    def __init__(self) -> None:
        self.bad: set[str] = set()
        self._cluster = FakeCluster("eu-1", self._answer)
        self._client: BeatClient | None = None

    async def start(self, routers: list[str]) -> None:
        """Begin to report."""
        await self._cluster.start()
        cluster = ClusterId("eu-1")
        hello = AgentHello(
            cluster=cluster, region=RegionId("eu"), url=self._cluster.url, tier=TierName("reserved"), epoch=1
        )
        pools = tuple(
            PoolState(model=ModelId(name), pods_ready=1, slots_total=64, slots_free=64, running=0, waiting=0)
            for name in MODELS
        )
        self._client = BeatClient(
            hello,
            lambda: BeatReport(cluster=cluster, epoch=1, seq=1, pools=pools),
            routers,
            TOKEN,
            clock=SystemClock(),
            metrics=AgentMetrics(CollectorRegistry()),
            log=Log(),  # type: ignore[arg-type]
        )
        self._client.start()

    @property
    def client(self) -> BeatClient:
        """Its half of the beats."""
        assert self._client is not None, "not started"
        return self._client

    async def close(self) -> None:
        """Stop both."""
        if self._client is not None:
            await self._client.close()
        await self._cluster.close()

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.head.path == "/healthz":
            exchange.respond(200, JSON, b"{}")
            return
        model = json.loads(self._cluster.seen[-1][1])["model"]
        status = 500 if model in self.bad else 200
        exchange.respond(status, JSON, json.dumps(ANSWER | {"model": model}).encode())
