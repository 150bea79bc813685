"""GIR's own picker as a policy of the virtual run: the agent's `Pool` and `pick`, fed as the agent feeds them."""

import functools
import random
from collections.abc import Sequence

from chaos.engine.values import EngineConfig, EngineMetrics
from gir.model.ids import ModelId, PodId
from gir.model.prefix import prefix_hashes
from gir.model.request import Usage
from tests.perf.routing_scenarios import BYTES_PER_TOKEN, Arrival, prompt_text
from tier1_agent.picker import PickRequest, pick
from tier1_agent.pods import PodSpec, Ticket
from tier1_agent.pool import Pool, PoolSettings
from tier1_agent.scorers import PRESETS
from tier1_agent.signals import Signals

MODEL = ModelId("bench")


class GirPicker:
    """One pool of the agent with one preset. The slots are declared when `declared` is true, else learned."""

    def __init__(self, pods: Sequence[EngineConfig], *, preset: str = "weighted", declared: bool = True) -> None:
        self.name = f"gir_{preset}"
        settings = PoolSettings(weights=PRESETS[preset], round_robin=preset == "roundrobin")
        self._pool = Pool(MODEL, settings)
        self._kv_tokens = [pod.kv_blocks * pod.block_tokens for pod in pods]
        for index, pod in enumerate(pods):
            slots = pod.slots_max if declared else None
            self._pool.add(PodSpec(id=PodId(f"pod-{index}"), url="", model=MODEL, slots=slots))
        self._draw = random.Random(1)
        self._tickets: dict[int, Ticket] = {}
        self._cached: dict[int, int] = {}

    def choose(self, arrival: Arrival, now_s: float) -> int:
        hashes, size = _prompt(arrival)
        tokens = size / BYTES_PER_TOKEN
        choice = pick(self._pool, PickRequest(tokens=tokens, hashes=hashes), now_s=now_s, draw=self._draw.random())
        assert choice is not None, f"nobody may take it: {self._pool!r}"
        self._tickets[arrival.id] = self._pool.dispatched(
            choice.pod, now_s, tokens=tokens, hashes=hashes, blocks_cached=choice.blocks_cached, prompt_bytes=size
        )
        return choice.pod.bit

    def first_token(self, arrival: Arrival, pod: int, cached_tokens: int, now_s: float) -> None:
        self._cached[arrival.id] = cached_tokens
        self._pool.first_token(self._tickets[arrival.id], now_s)

    def finished(self, arrival: Arrival, pod: int, now_s: float) -> None:
        usage = Usage(
            prompt_tokens=arrival.prompt_tokens,
            completion_tokens=arrival.output_tokens,
            cached_tokens=self._cached.pop(arrival.id),
        )
        self._pool.finished(self._tickets.pop(arrival.id), now_s, ok=True, usage=usage)

    def scraped(self, metrics: Sequence[EngineMetrics], now_s: float) -> None:
        for pod, seen, kv_tokens in zip(self._pool.pods, metrics, self._kv_tokens, strict=True):
            signals = Signals(
                dialect="vllm",
                waiting=seen.waiting,
                running=seen.running,
                kv_usage=seen.kv_usage,
                kv_tokens_total=kv_tokens,
                prompt_tokens_total=seen.counters.prompt_tokens,
                output_tokens_total=seen.counters.generated_tokens,
            )
            self._pool.scraped(pod, signals, now_s)
        self._pool.tick(now_s)


@functools.lru_cache(maxsize=10_000)
def _prompt(arrival: Arrival) -> tuple[tuple[int, ...], int]:
    """Block hashes and size of the prompt, as the agent computes them from the request's bytes."""
    text = prompt_text(arrival).encode()
    return prefix_hashes(MODEL, text), len(text)
