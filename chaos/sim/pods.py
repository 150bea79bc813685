"""Pods of one simulated cluster: the engine's own state machine, driven by timers, and the ways it can fail."""

import math
import random
from collections.abc import Callable

import msgspec

from chaos.engine.core import Engine, EngineConfig, EngineRequest, TokenEvent
from chaos.engine.gpus import profile
from chaos.sim.loop import Node
from gir.model.ids import ModelId, PodId
from tier1_agent.pods import PodSpec
from tier1_agent.signals import Signals

GPU = "llama2-70b/h100-80gb/tp8"


class Ill(msgspec.Struct, frozen=True):
    """What is wrong with a pod's answers. `kind` is one of ILLNESSES; `after` the token it strikes at; `share` the part
    of the requests it befalls."""

    kind: str
    after: int = 0
    share: float = 1.0


ILLNESSES = ("500", "503", "429", "400", "error_first", "error_late", "cut_reset", "cut_end", "cut_half")


class SimPod:
    """One engine. `deliver(request id, event)` is called for every token."""

    def __init__(self, name: str, model: str, *, slots: int, pace: float, node: Node) -> None:
        self.spec = PodSpec(id=PodId(name), url=f"http://{name}", model=ModelId(model), slots=slots)
        config = EngineConfig(gpu=profile(GPU).scaled(prefill=pace, decode=pace), slots_max=slots, kv_blocks=4_096)
        self.engine = Engine(config)
        self.node = node
        self.hung = False
        self.ill: Ill | None = None
        self._deliver: dict[int, Callable[[TokenEvent], None]] = {}
        self._due_s = math.inf

    def befalls(self, chance: random.Random) -> Ill | None:
        """What is wrong with its answer to the next request."""
        ill = self.ill
        return ill if ill is None or ill.share >= 1.0 or chance.random() < ill.share else None

    def submit(self, request: EngineRequest, deliver: Callable[[TokenEvent], None]) -> int:
        """Start a request."""
        id_ = self.engine.submit(request, self.node.loop.time())
        self._deliver[id_] = deliver
        self._set_timer()
        return id_

    def cancel(self, id_: int) -> None:
        """Drop a request; harmless when it has ended."""
        if self._deliver.pop(id_, None) is not None:
            self.engine.cancel(id_, self.node.loop.time())
            self._set_timer()

    def restart(self) -> list[Callable[[TokenEvent], None]]:
        """The process dies and comes back empty. Returns whom it owes an answer."""
        self.engine.restart(self.node.loop.time())
        owed = list(self._deliver.values())
        self._deliver.clear()
        self._due_s = math.inf
        return owed

    def hang(self, *, hung: bool) -> None:
        """Stand still, or go on."""
        self.hung = hung
        if not hung:
            self._pump()

    def slow(self, factor: float) -> None:
        """Stretch every step."""
        self.engine.set_pace(self.node.loop.time(), prefill=factor, decode=factor)
        self._set_timer()

    def signals(self) -> Signals | None:
        """What a scrape would read; None when nothing would come."""
        if self.hung:
            return None
        state = self.engine.metrics(self.node.loop.time())
        self._set_timer()
        config = self.engine.config
        return Signals(
            dialect="vllm",
            running=state.running,
            waiting=state.waiting,
            kv_usage=state.kv_usage,
            kv_tokens_total=config.kv_blocks * config.block_tokens,
        )

    @property
    def busy(self) -> bool:
        """It has something to do."""
        return bool(self._deliver)

    def _set_timer(self) -> None:
        due_s = self.engine.next_event_s()
        if due_s < self._due_s:
            self._due_s = due_s
            self.node.at(due_s, self._pump)

    def _pump(self) -> None:
        if self.hung:
            return
        self._due_s = math.inf
        for event in self.engine.advance(self.node.loop.time()):
            deliver = self._deliver.get(event.id)
            if deliver is not None:
                if event.finished:
                    del self._deliver[event.id]
                deliver(event)
        self._set_timer()
