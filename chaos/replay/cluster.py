"""One cluster in virtual time: simulated engines behind the agent's own picker, rates and beats."""

import random
from collections.abc import Iterator

import msgspec

from chaos.engine.core import Engine
from chaos.engine.values import EngineConfig, EngineRequest
from chaos.replay.traces import Arrival
from gir.model.cluster import PoolState
from gir.model.ids import ModelId, PodId
from gir.model.request import Usage
from tier1_agent.capacity import Demand, Recent, pool_state
from tier1_agent.picker import PickRequest, pick
from tier1_agent.pods import PodSpec, Ticket
from tier1_agent.pool import Pool, PoolSettings
from tier1_agent.scorers import PRESETS, Preset
from tier1_agent.signals import Signals

MODEL = ModelId("replay")
_BYTES_PER_TOKEN = 4


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster is made of."""

    id: str
    region: str
    tier: str = "reserved"
    price_per_slot_hour: float = 1.0
    pods: tuple[EngineConfig, ...]


class Heard(msgspec.Struct, frozen=True):
    """A first or last token leaving the cluster."""

    arrival: Arrival
    at_s: float
    first: bool
    finished: bool
    cached_tokens: int


class _Work:
    """One request on one pod."""

    __slots__ = ("arrival", "cached", "sent_s", "ticket")

    def __init__(self, arrival: Arrival, ticket: Ticket, sent_s: float) -> None:
        self.arrival = arrival
        self.ticket = ticket
        self.sent_s = sent_s
        self.cached = 0


class Cluster:
    """Engines, the agent's pool over them, and the books."""

    __slots__ = ("_draw", "_last_s", "_recent", "_work", "engines", "in_flight", "pool", "requests", "slot_s", "spec",
                 "tokens")  # fmt: skip

    def __init__(self, spec: ClusterSpec, *, preset: Preset = "weighted", seed: int = 1) -> None:
        self.spec = spec
        self.engines = [Engine(config) for config in spec.pods]
        settings = PoolSettings(weights=PRESETS[preset], round_robin=preset == "roundrobin")
        self.pool = Pool(MODEL, settings)
        for number, config in enumerate(spec.pods):
            self.pool.add(PodSpec(id=PodId(f"{spec.id}-{number}"), url="", model=MODEL, slots=config.slots_max))
        self._work: list[dict[int, _Work]] = [{} for _ in spec.pods]
        self._recent = Recent()
        self._draw = random.Random(f"{seed}/{spec.id}")
        self._last_s = 0.0
        self.in_flight = 0
        self.slot_s = 0.0
        """Slot-seconds occupied so far."""
        self.requests = 0
        self.tokens = 0
        """Prompt tokens received."""

    @property
    def slots(self) -> int:
        """Requests the cluster can run at once."""
        return sum(config.slots_max for config in self.spec.pods)

    def submit(self, arrival: Arrival, now_s: float) -> None:
        """A request reaches the agent: pick a pod and queue it there."""
        self._occupy(now_s)
        self.in_flight += 1
        self.requests += 1
        self.tokens += arrival.prompt_tokens
        tokens = float(arrival.prompt_tokens)
        choice = pick(
            self.pool, PickRequest(tokens=tokens, hashes=arrival.hashes), now_s=now_s, draw=self._draw.random()
        )
        place = choice.pod.bit if choice is not None else 0
        ticket = self.pool.dispatched(
            self.pool.pods[place],
            now_s,
            tokens=tokens,
            hashes=arrival.hashes,
            blocks_cached=choice.blocks_cached if choice is not None else 0,
            prompt_bytes=arrival.prompt_tokens * _BYTES_PER_TOKEN,
        )
        request = EngineRequest(
            prompt_tokens=arrival.prompt_tokens, output_tokens=arrival.output_tokens, block_hashes=arrival.blocks
        )
        self._work[place][self.engines[place].submit(request, now_s)] = _Work(arrival, ticket, now_s)

    def next_event_s(self) -> float:
        """When an engine will next have something to say."""
        return min(engine.next_event_s() for engine in self.engines)

    def advance(self, now_s: float) -> Iterator[Heard]:
        """Tokens that have left by `now_s`, in order of time within each engine."""
        for engine, works in zip(self.engines, self._work, strict=True):
            if engine.next_event_s() > now_s:
                continue
            for event in engine.advance(now_s):
                work = works[event.id]
                if event.first:
                    work.cached = event.cached_tokens
                    self.pool.first_token(work.ticket, event.at_s)
                    self._recent.note(event.at_s, ok=True, ttft_s=event.at_s - work.sent_s)
                if event.finished:
                    self._finish(works.pop(event.id), event.at_s)
                yield Heard(work.arrival, event.at_s, event.first, event.finished, work.cached)

    def scrape(self, now_s: float) -> None:
        """The agent reads its pods' metrics."""
        for pod, engine in zip(self.pool.pods, self.engines, strict=True):
            seen = engine.metrics(now_s)
            signals = Signals(
                dialect="vllm",
                waiting=seen.waiting,
                running=seen.running,
                kv_usage=seen.kv_usage,
                kv_tokens_total=engine.config.kv_blocks * engine.config.block_tokens,
                prompt_tokens_total=seen.counters.prompt_tokens,
                output_tokens_total=seen.counters.generated_tokens,
            )
            self.pool.scraped(pod, signals, now_s)
        self.pool.tick(now_s)

    def state(self, now_s: float) -> PoolState:
        """What its beat says now."""
        return pool_state(self.pool, Demand(recent=self._recent), now_s)

    def close(self, now_s: float) -> None:
        """End the books at `now_s`."""
        self._occupy(now_s)

    def _finish(self, work: _Work, at_s: float) -> None:
        self._occupy(at_s)
        self.in_flight -= 1
        arrival = work.arrival
        usage = Usage(
            prompt_tokens=arrival.prompt_tokens,
            completion_tokens=arrival.output_tokens,
            cached_tokens=work.cached,
        )
        self.pool.finished(work.ticket, at_s, ok=True, usage=usage)

    def _occupy(self, now_s: float) -> None:
        if now_s > self._last_s:
            self.slot_s += min(self.in_flight, self.slots) * (now_s - self._last_s)
            self._last_s = now_s
