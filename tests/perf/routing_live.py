"""A scenario in real time over HTTP: real routers in front of simulated engines.

Engines and client live in this process on the load's core, the router under test is a process of its own on the
router's core: `gir-agent serve` with its default picker, `gir-agent serve` with the preset `roundrobin` (so that round
robin pays for the same hop), or `sglang-router`. The oracle chooses in the client and sends straight to the engines: it
knows everything and pays nothing.

A request's TTFT runs from the moment the client sends it until its engine *produces* the first token. The way back is
left out on purpose: it measures relays (`tests.perf.overhead` does that), and it differs between routers for reasons
that have nothing to do with where they send requests. What the client saw is reported beside it.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import pathlib
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Sequence

from chaos.engine.core import Engine
from chaos.engine.driver import Driver
from chaos.engine.pod import Pod, PodConfig
from chaos.engine.prompts import Api, Served, parse
from chaos.engine.values import EngineConfig, EngineRequest, TokenEvent
from gir.clock import SystemClock
from gir.tasks import TaskSet
from tests.perf import machine, peers
from tests.perf.routing_policies import Policy
from tests.perf.routing_scenarios import Arrival, Scenario, prompt_text, quantile
from tests.perf.routing_virtual import Outcome, Result, judge

MODEL = "bench"
TOKEN = "bench-agent-token"
CONTEXT_TOKENS = 65_536
ANSWER_S = 300.0
PRESETS = {"gir": "weighted", "round_robin": "roundrobin"}
"""Policies that run in an agent, and the picker preset each of them is."""
_LOG = logging.getLogger(__name__)
_CONTENT = b'"content":"tok-'


def request_body(arrival: Arrival) -> bytes:
    """The chat request that stands for `arrival`."""
    message = {"role": "user", "content": prompt_text(arrival)}
    body = {"model": MODEL, "messages": [message], "max_tokens": arrival.output_tokens, "stream": True}
    return json.dumps(body | {"stream_options": {"include_usage": True}}, separators=(",", ":")).encode()


class Record:
    """What happened to each arrival, told by the engines and by the client."""

    def __init__(self, scenario: Scenario, policy: Policy | None) -> None:
        self.policy = policy
        self.sent_s: dict[int, float] = {}
        self.outcomes: list[Outcome] = []
        self.seen_s: dict[int, float] = {}
        """When the client saw the first token, after it sent the request."""
        self.errors: list[str] = []
        self.bodies = {one.id: request_body(one) for one in scenario.arrivals}
        served = Served(model=MODEL, context_tokens_max=CONTEXT_TOKENS, answer_tokens=CONTEXT_TOKENS)
        # Its last whole block names an arrival: requests reach an engine rewritten, but with the same prompt.
        self._named = {
            parse(Api.CHAT, self.bodies[one.id], served).work.block_hashes[-1]: one for one in scenario.arrivals
        }

    def arrival(self, request: EngineRequest) -> Arrival | None:
        """The arrival an engine's request stands for; None for a probe of the harness."""
        return self._named.get(request.block_hashes[-1]) if request.block_hashes else None

    def heard(self, arrival: Arrival, pod: int, event: TokenEvent) -> None:
        """An engine produced a token that is the first, the last, or both."""
        if event.first:
            ttft_s = event.at_s - self.sent_s[arrival.id]
            self.outcomes.append(Outcome(arrival, pod, ttft_s, event.cached_tokens))
            if self.policy is not None:
                self.policy.first_token(arrival, pod, event.cached_tokens, event.at_s)
        if event.finished and self.policy is not None:
            self.policy.finished(arrival, pod, event.at_s)


class WatchedEngine(Engine):
    """An engine that tells a record what it does."""

    def __init__(self, config: EngineConfig, pod: int, record: Record) -> None:
        super().__init__(config)
        self._pod = pod
        self._record = record
        self._arrivals: dict[int, Arrival] = {}

    def submit(self, request: EngineRequest, now_s: float) -> int:
        number = super().submit(request, now_s)
        if (arrival := self._record.arrival(request)) is not None:
            self._arrivals[number] = arrival
        return number

    def advance(self, now_s: float) -> list[TokenEvent]:
        events = super().advance(now_s)
        for event in events:
            if event.id in self._arrivals:
                self._record.heard(self._arrivals[event.id], self._pod, event)
        return events


@contextlib.asynccontextmanager
async def engines(scenario: Scenario, record: Record) -> AsyncIterator[list[int]]:
    """Fresh pods with the scenario's engines in this process; gives their ports."""
    clock = SystemClock()
    tasks = TaskSet(lambda name, error: _LOG.error("%s failed: %r", name, error))
    pods = []
    for index, config in enumerate(scenario.pods):
        declared = PodConfig(
            name=f"pod-{index}",
            model=MODEL,
            slots=config.slots_max,
            kv_tokens=config.kv_blocks * config.block_tokens,
            context_tokens_max=CONTEXT_TOKENS,
            answer_tokens=CONTEXT_TOKENS,
        )
        pod = Pod(declared, clock, tasks)
        # Profiles here are stretched ones, which a pod's own configuration cannot name.
        pod.driver = Driver(WatchedEngine(config, index, record), clock)
        await pod.start()
        pods.append(pod)
    try:
        yield [int(pod.url.rpartition(":")[2]) for pod in pods]
    finally:
        for pod in pods:
            await pod.server.stop()
        await tasks.close()


@contextlib.asynccontextmanager
async def agent(scenario: Scenario, ports: Sequence[int], preset: str) -> AsyncIterator[int]:
    """`gir-agent serve` over the engines, with the defaults of production but for the picker's `preset`; its port.

    Raises PeerMissingError when it does not come up.
    """
    port = machine.free_port()
    config = {
        "cluster": "bench",
        "region": "bench",
        "tier": "reserved",
        "price_per_slot_hour": 1.0,
        "listen": f"127.0.0.1:{port}",
        "admin": {"listen": f"127.0.0.1:{machine.free_port()}"},
        "token": {"value": TOKEN},
        "routers": [],
        "picker": {"preset": preset},
        "pods": {
            "static": [
                {"url": f"http://127.0.0.1:{engine}", "model": MODEL, "slots": pod.slots_max}
                for engine, pod in zip(ports, scenario.pods, strict=True)
            ]
        },
    }
    with tempfile.TemporaryDirectory(prefix="gir-bench-") as scratch:
        file = pathlib.Path(scratch) / "agent.yaml"
        file.write_text(json.dumps(config))
        command = [str(pathlib.Path(sysconfig.get_path("scripts")) / "gir-agent"), "serve", "-c", str(file)]
        async with peers.process(command, core=machine.ROUTER_CORE, log=pathlib.Path(scratch) / "log") as started:
            await peers.answers(port, "gir-agent serve", started, key=TOKEN)
            yield port


async def run(scenario: Scenario, name: str, policy: Policy | None = None) -> Result:
    """Play `scenario` with fresh engines: through the router `name` (of `PRESETS`, or a peer), or by `policy` here."""
    record = Record(scenario, policy)
    async with engines(scenario, record) as ports, contextlib.AsyncExitStack() as stack:
        through: int | None = None
        if name in PRESETS:
            through = await stack.enter_async_context(agent(scenario, ports, PRESETS[name]))
        elif policy is None:
            through = (await stack.enter_async_context(peers.peer(name, ports))).port
        await _play(scenario, record, ports, through)
    for error in record.errors[:5]:
        _LOG.error("%s: %s", name, error)
    result = judge(name, record.outcomes, scenario, errors=len(record.errors))
    seen = [waited_s for number, waited_s in record.seen_s.items() if number >= scenario.warm]
    return dataclasses.replace(result, seen_p95_s=quantile(seen, 0.95))


async def _play(scenario: Scenario, record: Record, ports: Sequence[int], through: int | None) -> None:
    """Send every arrival at its time, whatever became of those before it."""
    clock = SystemClock()
    begin_s = clock.monotonic_s() + 0.2
    async with asyncio.TaskGroup() as group:
        for arrival in scenario.arrivals:
            await asyncio.sleep(max(0.0, begin_s + arrival.at_s - clock.monotonic_s()))
            now_s = record.sent_s[arrival.id] = clock.monotonic_s()
            port = through
            if port is None:
                assert record.policy is not None
                port = ports[record.policy.choose(arrival, now_s)]
            group.create_task(_ask(arrival, port, record, clock))


async def _ask(arrival: Arrival, port: int, record: Record, clock: SystemClock) -> None:
    body = record.bodies[arrival.id]
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {TOKEN}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(head.encode() + body)
                await _listen(arrival, reader, record, clock)
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        record.errors.append(f"request {arrival.id}: {error!r}")


async def _listen(arrival: Arrival, reader: asyncio.StreamReader, record: Record, clock: SystemClock) -> None:
    start = b""
    tail = b""
    while data := await reader.read(65_536):
        tail = (tail + data)[-64:]
        if arrival.id not in record.seen_s:
            start += data
            if _CONTENT in start:
                record.seen_s[arrival.id] = clock.monotonic_s() - record.sent_s[arrival.id]
        if b"[DONE]" in tail:
            return
    record.errors.append(f"request {arrival.id}: ended early, {start[:200]!r}")
