"""One agent with simulated engines around it, all in this process on loopback sockets."""

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from chaos.engine.faults import Fault
from chaos.engine.pod import Pod as EnginePod
from chaos.engine.pod import PodConfig
from gir.clock import SystemClock
from gir.tasks import TaskSet
from tier1_agent.app import Agent
from tier1_agent.config import AgentConfig

TOKEN = "cluster-token"
FAST = 0.02
"""Engines run fifty times as fast as their GPUs."""


def engine(name: str, **fields: Any) -> PodConfig:
    """A simulated engine."""
    return PodConfig(name=name, **{"model": "llama", "time_scale": FAST, "slots": 8, **fields})


class Site:
    """`async with Site([engine("a"), engine("b")], gate={...}) as site:` Engines listen, the agent has heard of all."""

    def __init__(
        self, engines: list[PodConfig], *, pods: dict[str, dict[str, Any]] | None = None, **sections: Any
    ) -> None:
        self._tasks = TaskSet(lambda name, error: None)
        self.engines = {config.name: EnginePod(config, SystemClock(), self._tasks) for config in engines}
        self._pods = pods or {}
        self._sections = sections
        self.log = io.StringIO()
        self.agent: Agent
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        for one in self.engines.values():
            await one.start()
        entries = [
            {
                "url": one.url,
                "name": name,
                "model": one.config.model,
                "slots": one.config.slots,
                **self._pods.get(name, {}),
            }
            for name, one in self.engines.items()
        ]
        given = {
            "cluster": "eu-1",
            "region": "eu",
            "tier": "reserved",
            "listen": "127.0.0.1:0",
            "admin": {"listen": "127.0.0.1:0"},
            "token": {"value": TOKEN},
            "scrape": {"interval_s": 0.05, "stale_periods": 40},
            "drain": {"listen_s": 0.05, "finish_s": 5.0},
            "pods": {"static": entries},
            **self._sections,
        }
        self.agent = Agent(msgspec.convert(given, AgentConfig), base=Path(), log_stream=self.log)
        await self.agent.start()
        self.http = aiohttp.ClientSession(
            f"http://127.0.0.1:{self.agent.port}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        await self.until(self._all_heard)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.close()
        await self.agent.close()
        for one in self.engines.values():
            await one.server.stop()
        await self._tasks.close()

    def _all_heard(self) -> bool:
        """Every pod has been scraped, well or badly."""
        counts = self.agent._metrics.scrapes
        return all(sum(counts.child(name, word).value for word in ("ok", "failed")) for name in self.engines)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Rows of the admin port by pod."""
        return {row["pod"]: row for row in self.agent._status.rows()}

    def idle(self) -> bool:
        """Nothing is in flight anywhere: no leak."""
        counted = sum(row["in_flight"] for row in self.rows().values())
        return not counted and self.agent._metrics.in_flight.one.value == 0

    def order(self, name: str, kind: str, /, **fields: Any) -> None:
        """Break an engine."""
        self.engines[name].order(Fault(kind=kind, **fields))  # type: ignore[arg-type]

    def active(self, name: str) -> int:
        """Requests an engine is answering."""
        return self.engines[name].driver.stats.active

    async def until(self, true: Callable[[], bool], *, limit_s: float = 5.0) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(limit_s):
            while not true():
                await asyncio.sleep(0.005)

    async def chat(self, content: str = "hi", **fields: Any) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of one whole answer."""
        body = {"model": "llama", "max_tokens": 4, "messages": [{"role": "user", "content": content}], **fields}
        async with self.http.post("/v1/chat/completions", json=body) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, json.loads(await answer.read())

    async def stream(self, content: str = "hi", **fields: Any) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of one streamed answer."""
        body = {
            "model": "llama",
            "max_tokens": 4,
            "stream": True,
            "messages": [{"role": "user", "content": content}],
            **fields,
        }
        async with self.http.post("/v1/chat/completions", json=body) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, (await answer.read()).decode()
