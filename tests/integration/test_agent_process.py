"""The agent as a process: start, reload, drain, and the ends it must not come to."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from chaos.engine.pod import Pod as EnginePod
from gir.clock import SystemClock
from gir.tasks import TaskSet
from tests.support.agent_site import TOKEN, engine

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """`gir-agent serve` with engines in this process."""

    def __init__(self, folder: Path, engines: list[EnginePod], **changes: str) -> None:
        self.folder = folder
        self.engines = engines
        self.port, self.admin_port = free_port(), free_port()
        self.config = folder / "agent.yaml"
        self.list_pods(engines)
        extra = "".join(f"{name}: {value}\n" for name, value in changes.items())
        self.config.write_text(
            f"cluster: eu-1\nregion: eu\ntier: reserved\nlisten: 127.0.0.1:{self.port}\n"
            f"admin: {{listen: 127.0.0.1:{self.admin_port}}}\ntoken: {{value: {TOKEN}}}\n"
            f"pods: {{file: pods.yaml, poll_s: 0.05}}\nscrape: {{interval_s: 0.05, stale_periods: 40}}\n{extra}"
        )
        self.process: asyncio.subprocess.Process

    def list_pods(self, engines: list[EnginePod]) -> None:
        rows = "".join(
            f"  - {{url: '{one.url}', name: {one.config.name}, model: llama, slots: 8}}\n" for one in engines
        )
        (self.folder / "pods.yaml").write_text(f"pods:\n{rows}" if rows else "pods: []\n")

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tier1_agent.cli", "serve", "-c", str(self.config), stderr=asyncio.subprocess.PIPE
        )

    async def until_ready(self, http: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(15):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(f"http://127.0.0.1:{self.admin_port}/readyz") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.02)

    async def pods(self, http: aiohttp.ClientSession) -> set[str]:
        async with http.get(f"http://127.0.0.1:{self.admin_port}/admin/pods") as answer:
            return {row["pod"] for row in (await answer.json())["pods"]}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def running(
    folder: Path, *names: str, time_scale: float = 0.02, **changes: str
) -> AsyncIterator[tuple[Process, aiohttp.ClientSession]]:
    tasks = TaskSet(lambda name, error: None)
    engines = [EnginePod(engine(name, time_scale=time_scale), SystemClock(), tasks) for name in names]
    for one in engines:
        await one.start()
    process = Process(folder, engines, **changes)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        await process.start()
        try:
            await process.until_ready(http)
            yield process, http
        finally:
            if process.process.returncode is None:
                process.process.kill()
            await process.process.communicate()
            for one in engines:
                await one.server.stop()
            await tasks.close()


def stream_body(tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": "x"}]
    return {"model": "llama", "stream": True, "max_tokens": tokens, "messages": messages}


async def test_sigterm_lets_streams_finish_and_takes_no_error(tmp_path: Path) -> None:
    async with running(tmp_path, "a", time_scale=0.5, drain="{listen_s: 0.2}") as (agent, http):
        async with http.post(f"{agent.url}/v1/chat/completions", json=stream_body(60)) as answer:
            await answer.content.readany()
            agent.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
            async with http.get(f"{agent.url}/healthz") as health:
                assert health.status == 503
            async with http.post(f"{agent.url}/v1/chat/completions", json=stream_body(1)) as late:
                assert late.status == 200, "the door is still open for those who have not heard"
                await late.read()
            text = (await answer.read()).decode()
        assert text.endswith("data: [DONE]\n\n")
        assert await asyncio.wait_for(agent.process.wait(), 10) == 0


async def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    async with (
        running(tmp_path, "a", time_scale=1.0) as (agent, http),
        http.post(f"{agent.url}/v1/chat/completions", json=stream_body(2_000)) as answer,
    ):
        await answer.content.readany()
        agent.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        agent.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(agent.process.wait(), 2) == 1, "a stream was cut"


async def test_the_pods_file_is_followed_while_serving(tmp_path: Path) -> None:
    async with running(tmp_path, "a", "b") as (agent, http):
        agent.list_pods(agent.engines[:1])
        async with asyncio.timeout(5):
            while await agent.pods(http) != {"a"}:
                await asyncio.sleep(0.02)
        (tmp_path / "pods.yaml").write_text("pods: [{url: nonsense, model: llama}]\n")
        await asyncio.sleep(0.3)
        assert await agent.pods(http) == {"a"}
        async with http.post(f"{agent.url}/v1/chat/completions", json=stream_body(1)) as answer:
            assert answer.headers["x-gir-pod"] == "a"
        agent.list_pods([])
        async with asyncio.timeout(5):
            while await agent.pods(http):
                await asyncio.sleep(0.02)
        async with http.get(f"http://127.0.0.1:{agent.admin_port}/readyz") as ready:
            assert (await ready.json())["reasons"] == ["no pod is listed"]
        async with http.post(f"{agent.url}/v1/chat/completions", json=stream_body(1)) as answer:
            assert answer.status == 503
        agent.list_pods(agent.engines)
        await agent.until_ready(http)


async def test_a_port_in_use_is_one_clear_line_and_exit_code_two(tmp_path: Path) -> None:
    async with running(tmp_path, "a") as (agent, _):
        twin = tmp_path / "twin.yaml"
        twin.write_text(agent.config.read_text())
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tier1_agent.cli", "serve", "-c", str(twin), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await asyncio.wait_for(second.communicate(), 15)
        assert second.returncode == 2
        lines = [line for line in errors.decode().splitlines() if line.startswith("gir-agent:")]
        assert len(lines) == 1
        assert str(agent.port) in lines[0]
        assert "free the port or choose another" in lines[0]
        assert "Traceback" not in errors.decode()


async def test_a_killed_agent_leaves_nothing_that_keeps_its_port(tmp_path: Path) -> None:
    async with running(tmp_path, "a") as (agent, http):
        os.kill(agent.process.pid, signal.SIGKILL)
        await agent.process.communicate()
        await agent.start()
        await agent.until_ready(http)
        agent.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(agent.process.wait(), 10) == 0
