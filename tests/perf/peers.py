"""The routers GIR is measured against, each started the way its own documentation says, pinned to the router's core.

A peer that is not installed is skipped by name with the command that would install it; a missing peer never makes a
bar pass silently.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tests.perf import machine

READY_S = 30.0
API_KEY = "sk-gir-bench"
"""What the load sends; only GIR looks at it."""
_ENVOY_TYPES = "type.googleapis.com/envoy.extensions.filters"
INSTALL = "install the peers with `make bench` (extra `bench`)"


class PeerMissingError(Exception):
    """The peer cannot run here; the message says why and what would change it."""


@dataclasses.dataclass(frozen=True)
class Running:
    """A router under test: where it listens and which processes it consists of."""

    name: str
    port: int
    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        """CPU time of the router so far; 0 for the direct baseline, which has no router."""
        return machine.cpu_s(self.pids)

    def resident_bytes(self) -> int:
        """Its resident memory."""
        return machine.resident_bytes(self.pids)


Command = Callable[[int, Sequence[int], pathlib.Path], list[str]]


def _executable(name: str) -> str:
    """Full path of a peer's command: beside this Python first, then on the PATH."""
    beside = pathlib.Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise PeerMissingError(f"command `{name}` is not installed; {INSTALL}")
    return found


def _urls(engines: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in engines]


def _sglang(port: int, engines: Sequence[int], scratch: pathlib.Path) -> list[str]:
    return [
        *(_executable("sglang-router"), "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--policy", "cache_aware", "--worker-urls", *_urls(engines)),
        *("--prometheus-port", str(machine.free_port()), "--log-level", "error"),
        *("--max-concurrent-requests", "-1", "--worker-startup-check-interval", "1"),
    ]


def _vllm(port: int, engines: Sequence[int], scratch: pathlib.Path) -> list[str]:
    return [
        *(_executable("vllm-router"), "--host", "127.0.0.1", "--port", str(port)),
        *("--policy", "cache_aware", "--worker-urls", *_urls(engines)),
        *("--prometheus-port", str(machine.free_port()), "--log-level", "error"),
        *("--max-concurrent-requests", "32768", "--worker-startup-check-interval", "1"),
    ]


def _envoy(port: int, engines: Sequence[int], scratch: pathlib.Path) -> list[str]:
    config = scratch / "envoy.json"
    config.write_text(json.dumps(_envoy_config(port, engines)))
    return [
        *(_executable("envoy"), "-c", str(config), "--concurrency", "1", "--log-level", "error"),
        *("--use-dynamic-base-id", "--disable-hot-restart"),
    ]


def _envoy_config(port: int, engines: Sequence[int]) -> dict[str, Any]:
    """Plain reverse proxy, least request, no retries, no access log: the cheapest Envoy there is."""

    def address(number: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{_ENVOY_TYPES}.http.router.v3.Router"},
    }
    manager = {
        "@type": f"{_ENVOY_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "600s"}}],
                }
            ]
        },
        "http_filters": [router],
    }
    limits = {"max_connections": 65536, "max_pending_requests": 65536, "max_requests": 65536}
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": address(port),
                    "filter_chains": [
                        {
                            "filters": [
                                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "engines",
                    "type": "STATIC",
                    "lb_policy": "LEAST_REQUEST",
                    "circuit_breakers": {"thresholds": [limits]},
                    "load_assignment": {
                        "cluster_name": "engines",
                        "endpoints": [
                            {"lb_endpoints": [{"endpoint": {"address": address(engine)}} for engine in engines]}
                        ],
                    },
                }
            ],
        }
    }


COMMANDS: dict[str, Command] = {"sglang_router": _sglang, "vllm_router": _vllm, "envoy": _envoy}


@contextlib.asynccontextmanager
async def peer(name: str, engines: Sequence[int]) -> AsyncIterator[Running]:
    """Run the peer `name` (a key of `COMMANDS`, or `direct`) in front of `engines`, pinned to the router's core.

    Raises PeerMissingError when it is not installed or does not come up.
    """
    if name == "direct":
        yield Running(name, engines[0], ())
        return
    with tempfile.TemporaryDirectory(prefix="gir-bench-") as scratch:
        port = machine.free_port()
        command = COMMANDS[name](port, engines, pathlib.Path(scratch))
        async with process(command, core=machine.ROUTER_CORE, log=pathlib.Path(scratch) / "log") as started:
            await answers(port, name, started)
            yield Running(name, port, tuple(machine.family(started.pid)))


@contextlib.asynccontextmanager
async def process(command: Sequence[str], *, core: int, log: pathlib.Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `command` on `core` until the block ends; its output goes to `log`, and into a PeerMissingError's text."""
    # One worker thread for runtimes that have no flag for it; affinity alone leaves some with two.
    environment = {**os.environ, "TOKIO_WORKER_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.PIPE,
        stdout=descriptor,
        stderr=descriptor,
        env=environment,
        preexec_fn=lambda: machine.pin(core),
    )
    os.close(descriptor)
    try:
        yield started
    except PeerMissingError as missing:
        raise PeerMissingError(f"{missing}; its log ends: {_tail(log)}") from None
    finally:
        await _stop(started)


def _tail(log: pathlib.Path) -> str:
    return log.read_text(errors="replace")[-500:].strip()


async def _stop(started: asyncio.subprocess.Process) -> None:
    """Ask, wait a moment, then insist. Only the process we started and its own children."""
    if started.returncode is not None:
        return
    children = machine.family(started.pid)[1:]
    started.terminate()
    try:
        await asyncio.wait_for(started.wait(), 3.0)
    except TimeoutError:
        started.kill()
        await started.wait()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 9)


_PROBE = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
)


async def answers(
    port: int, name: str, started: asyncio.subprocess.Process, *, key: str = API_KEY, ready_s: float = READY_S
) -> None:
    """Return once a chat completion through `port` succeeds; raises PeerMissingError after `ready_s`, or at once when
    the process `started` has ended."""
    body = b'{"model":"bench","messages":[{"role":"user","content":"ready?"}],"max_tokens":1}'
    deadline_s = asyncio.get_running_loop().time() + ready_s
    seen = b"no connection"
    while asyncio.get_running_loop().time() < deadline_s and started.returncode is None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(_PROBE % (key.encode(), len(body), body))
                seen = await reader.read(256)
                writer.close()
            if seen.startswith(b"HTTP/1.1 200"):
                return
        await asyncio.sleep(0.1)
    ended = "is still running" if started.returncode is None else f"ended with code {started.returncode}"
    raise PeerMissingError(f"{name} did not answer (waited {ready_s:.0f} s at most) and {ended}; last seen: {seen!r}")


@contextlib.asynccontextmanager
async def mock_engines(count: int) -> AsyncIterator[list[int]]:
    """`count` instant engines in one process on the load's core; gives their ports."""
    command = [sys.executable, "-m", "tests.perf.mock_engine", *["--port=0"] * count]
    started = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: machine.pin(machine.LOAD_CORE),
    )
    assert started.stdout is not None
    try:
        ports = [int(port) for port in (await started.stdout.readline()).split()]
        yield ports
    finally:
        await _stop(started)
