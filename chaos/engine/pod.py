"""One engine pod: the pure core behind HTTP, its faults, and what a test may ask it afterwards.

`/debug/*` (see `debug`) exists for tests only.
"""

import asyncio
import itertools
from typing import Annotated, Any

import msgspec

from chaos.engine.answers import JSON, EventSink, error_body, reply_whole
from chaos.engine.core import Engine, EngineConfig
from chaos.engine.debug import answer_debug
from chaos.engine.driver import Driver
from chaos.engine.faults import Fault, Faults
from chaos.engine.gpus import profile
from chaos.engine.http import Connection, Request, Server
from chaos.engine.metrics import CONTENT_TYPE, Dialect, Facts, render
from chaos.engine.prompts import API_OF, Api, ApiError, Job, Served, compact, parse
from chaos.engine.shapes import stream, whole
from gir.clock import Clock
from gir.tasks import TaskSet

VERSION = "0.32.0"
_ID_PREFIX = {Api.CHAT: "chatcmpl", Api.COMPLETIONS: "cmpl", Api.RESPONSES: "resp", Api.MESSAGES: "msg"}

Count = Annotated[int, msgspec.Meta(ge=1)]


class PodConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pod. `listen` with port 0 takes any free port."""

    name: str
    model: str
    listen: str = "127.0.0.1:0"
    gpu: str = "llama2-70b/h100-80gb/tp8"
    time_scale: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    """Multiplies every duration: 0.1 runs ten times as fast as the measured GPU."""
    slots: Count = 16
    kv_tokens: Count = 131_072
    block_tokens: Count = 16
    step_tokens_max: Count = 2_048
    chunked_prefill: bool = True
    prefix_cache: bool = True
    adapters: tuple[str, ...] = ()
    adapter_slots: int = 0
    adapter_load_s: float = 0.5
    context_tokens_max: Count = 8_192
    answer_tokens: Count = 128
    dialect: Dialect = "vllm"
    prompt_tokens_details: bool = True
    """Report cached tokens in `usage` (vLLM's --enable-prompt-tokens-details)."""
    api_key: str | None = None
    faults: tuple[Fault, ...] = ()


def engine_config(config: PodConfig) -> EngineConfig:
    """The engine inside a pod."""
    return EngineConfig(
        gpu=profile(config.gpu).scaled(prefill=config.time_scale, decode=config.time_scale),
        slots_max=config.slots,
        kv_blocks=max(1, config.kv_tokens // config.block_tokens),
        block_tokens=config.block_tokens,
        step_tokens_max=config.step_tokens_max,
        chunked_prefill=config.chunked_prefill,
        prefix_cache=config.prefix_cache,
        adapter_slots=config.adapter_slots or len(config.adapters),
        adapter_load_s=config.adapter_load_s * config.time_scale,
    )


class Pod:
    """A pod that listens on one port."""

    def __init__(self, config: PodConfig, clock: Clock, tasks: TaskSet) -> None:
        self.config = config
        self._clock = clock
        self._tasks = tasks
        self._served = Served(
            model=config.model,
            adapters=config.adapters,
            context_tokens_max=config.context_tokens_max,
            answer_tokens=config.answer_tokens,
            block_tokens=config.block_tokens,
        )
        self._facts = Facts(
            model=config.model,
            adapter_slots=config.adapter_slots or len(config.adapters),
            block_tokens=config.block_tokens,
            kv_blocks=max(1, config.kv_tokens // config.block_tokens),
        )
        self._ids = itertools.count(1)
        self.driver = Driver(Engine(engine_config(config)), clock)
        self.faults = Faults()
        self.server = Server(self.handle, tasks)
        self.last_request: Request | None = None
        for fault in config.faults:
            self.order(fault)

    @property
    def url(self) -> str:
        """Base URL of the running pod."""
        return f"http://127.0.0.1:{self.server.port}"

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken."""
        host, _, port = self.config.listen.rpartition(":")
        await self.server.start(host, int(port))

    # Requests.

    async def handle(self, request: Request, connection: Connection) -> None:
        """Answer one request."""
        if request.path.startswith("/debug/"):
            answer_debug(self, request, connection)
        elif request.method == "GET":
            await self._get(request, connection)
        elif request.method == "POST" and (api := API_OF.get(request.path)) is not None:
            await self._post(api, request, connection)
        else:
            connection.reply(404, JSON, b'{"detail":"Not Found"}')

    async def _get(self, request: Request, connection: Connection) -> None:
        if request.path in ("/health", "/ping"):
            sick = self.faults.state("unhealthy") is not None
            connection.reply(503 if sick else 200, [], b"")
        elif request.path == "/metrics":
            await self._metrics(connection)
        elif request.path == "/version":
            connection.reply(200, JSON, compact({"version": VERSION}))
        elif request.path == "/v1/models":
            connection.reply(200, JSON, compact({"object": "list", "data": self._cards()}))
        else:
            connection.reply(404, JSON, b'{"detail":"Not Found"}')

    def _cards(self) -> list[dict[str, Any]]:
        base = self.config.model
        fixed = {"object": "model", "created": int(self._clock.wall_s()), "owned_by": "vllm"}
        cards = [{"id": base, **fixed, "root": base, "parent": None, "max_model_len": self.config.context_tokens_max}]
        cards += [{"id": name, **fixed, "root": name, "parent": base} for name in self.config.adapters]
        return cards

    async def _metrics(self, connection: Connection) -> None:
        fault = self.faults.state("metrics")
        how = fault.how if fault is not None else ""
        if fault is not None and how == "slow":
            await self._clock.sleep_s(fault.delay_s)
        state, observed = self.driver.metrics(), self.driver.observed
        text = render(self.config.dialect, self._facts, state, observed, self._clock.wall_s())
        headers = [("content-type", CONTENT_TYPE)]
        match how:
            case "status":
                connection.reply(fault.status if fault is not None else 500, [], b"")
            case "missing":
                connection.reply(404, JSON, b'{"detail":"Not Found"}')
            case "renamed":
                connection.reply(200, headers, text.replace("vllm:", "other_").replace("sglang:", "other_").encode())
            case "garbage":
                connection.reply(200, headers, b"\xff\x00 not metrics {{{ 1 2 3\n")
            case _:
                connection.reply(200, headers, text.encode())

    async def _post(self, api: Api, request: Request, connection: Connection) -> None:
        self.last_request = request
        self.driver.stats.requests += 1
        if self.config.api_key is not None and request.header(b"authorization") != f"Bearer {self.config.api_key}":
            connection.reply(401, JSON, b'{"error":"Unauthorized"}')
            return
        fault = self.faults.draw(request.path)
        try:
            if fault is None or not await self._instead(fault, connection):
                job = parse(api, request.body, self._served)
                await self._generate(job, request, connection, fault)
        except asyncio.CancelledError:
            self.driver.abort(here=connection.ended_here)
            raise
        except ApiError as error:
            connection.reply(error.status, JSON, error.body)
        except ValueError as error:
            connection.reply(400, JSON, error_body(str(error), "BadRequestError", 400))

    async def _instead(self, fault: Fault, connection: Connection) -> bool:
        """Faults that come before the head. True when they have taken the answer's place."""
        if fault.kind == "hang":
            await self._clock.sleep_s(fault.delay_s or 1e6)
            return False
        if fault.kind == "reset":
            connection.reset()
            return True
        if fault.kind == "status":
            wait = [("retry-after", f"{fault.retry_after_s:g}")] if fault.retry_after_s is not None else []
            body = error_body("The engine refuses, as ordered.", "ServiceUnavailableError", fault.status)
            connection.reply(fault.status, [*JSON, *wait], body)
            return True
        return False

    async def _generate(self, job: Job, request: Request, connection: Connection, fault: Fault | None) -> None:
        id_ = f"{_ID_PREFIX.get(job.api, job.api.name.lower())}-{next(self._ids):016x}"
        created = int(self._clock.wall_s())
        details = self.config.prompt_tokens_details
        driver = self.driver
        generation = driver.submit(job, request.header(b"x-gir-tenant") or "")
        try:
            if job.stream:
                generation.shape = stream(job, id_, created, details=details)
                generation.sink = EventSink(connection, fault, generation.finish)
            await generation.done
            if generation.sink is None:
                await self._clock.sleep_s(fault.delay_s if fault and fault.kind == "hold_first_token" else 0.0)
                total = sum(generation.counts)
                reply_whole(connection, whole(job, id_, created, total, generation.cached, details=details), fault)
                driver.delivered(generation, total)
            driver.settle(generation)
        finally:
            driver.drop(generation)

    # Faults that are states.

    def order(self, fault: Fault) -> None:
        """Install a fault, or carry it out if it is a deed."""
        if fault.kind == "restart":
            _ = self._tasks.spawn(self.restart(fault.delay_s), name=f"restart of {self.config.name}")
        else:
            self.faults.install(fault)
            self._pace()

    def relieve(self, name: str = "") -> int:
        """Remove the faults called `name`, or all; says how many."""
        removed = self.faults.remove(name)
        self._pace()
        return removed

    def _pace(self) -> None:
        slow = self.faults.state("slow")
        self.driver.set_pace(prefill=slow.ttft if slow else 1.0, decode=slow.itl if slow else 1.0)

    async def restart(self, down_s: float) -> None:
        """Die and come back: connections reset, port closed for `down_s`, counters and caches empty."""
        await asyncio.sleep(0)  # the answer to the order itself goes out first
        await self.server.stop()
        self.driver.restart()
        await self._clock.sleep_s(down_s)
        await self.server.restart()
