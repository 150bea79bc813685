"""Policies of the routing bench that need no process of their own: round robin, the oracle, and a model of
sglang-router's cache_aware for virtual runs (live runs use the real one).

A policy sees what a router sees: requests as they come, first tokens and ends as they pass by, and a scrape of each
pod four times a second.
"""

import heapq
from collections.abc import Sequence
from typing import Protocol

from chaos.engine.values import EngineConfig, EngineMetrics
from tests.perf.routing_scenarios import Arrival, block_hashes


class Policy(Protocol):
    """Chooses pods by index. Times are the engines' own seconds."""

    name: str

    def choose(self, arrival: Arrival, now_s: float) -> int:
        """The pod for `arrival`; counted as sent there at once."""

    def first_token(self, arrival: Arrival, pod: int, cached_tokens: int, now_s: float) -> None:
        """Its first token has passed; the engine found `cached_tokens` of the prompt in its cache."""

    def finished(self, arrival: Arrival, pod: int, now_s: float) -> None:
        """Its last token has passed."""

    def scraped(self, metrics: Sequence[EngineMetrics], now_s: float) -> None:
        """The pods' own metrics, four times a second."""


class Watcher:
    """The parts of `Policy` that do nothing, for those that do not look."""

    def first_token(self, arrival: Arrival, pod: int, cached_tokens: int, now_s: float) -> None:
        pass

    def finished(self, arrival: Arrival, pod: int, now_s: float) -> None:
        pass

    def scraped(self, metrics: Sequence[EngineMetrics], now_s: float) -> None:
        pass


class RoundRobin(Watcher):
    """One after the other."""

    name = "round_robin"

    def __init__(self, pods: Sequence[EngineConfig]) -> None:
        self._pods = len(pods)
        self._next = -1

    def choose(self, arrival: Arrival, now_s: float) -> int:
        self._next = (self._next + 1) % self._pods
        return self._next


class _Outstanding:
    """What the oracle knows of one request it has sent."""

    __slots__ = ("arrival", "first_s", "uncached")

    def __init__(self, arrival: Arrival, uncached: int) -> None:
        self.arrival = arrival
        self.uncached = uncached
        self.first_s: float | None = None


class Oracle(Watcher):
    """Knows every engine's true rates, slots and batching, every request's length, and its own outstanding work.

    It sends each request where its first token would come soonest, and knows nothing of what is still to arrive. It
    keeps a mirror of each cache's prefixes (LRU by tokens), which engines never report.
    """

    name = "oracle"

    def __init__(self, pods: Sequence[EngineConfig]) -> None:
        self._pods = pods
        self._sent: list[dict[int, _Outstanding]] = [{} for _ in pods]
        self._prefixes: list[dict[int, int]] = [{} for _ in pods]

    def choose(self, arrival: Arrival, now_s: float) -> int:
        expected = [self._expected_s(pod, arrival, now_s) for pod in range(len(self._pods))]
        pod = min(range(len(expected)), key=lambda index: (expected[index], len(self._sent[index])))
        self._sent[pod][arrival.id] = _Outstanding(arrival, self._uncached(pod, arrival))
        self._touch(pod, arrival)
        return pod

    def first_token(self, arrival: Arrival, pod: int, cached_tokens: int, now_s: float) -> None:
        self._sent[pod][arrival.id].first_s = now_s

    def finished(self, arrival: Arrival, pod: int, now_s: float) -> None:
        del self._sent[pod][arrival.id]

    def _uncached(self, pod: int, arrival: Arrival) -> int:
        known = arrival.prefix_tokens if arrival.prefix in self._prefixes[pod] else 0
        return arrival.prompt_tokens - known

    def _touch(self, pod: int, arrival: Arrival) -> None:
        """Most recently used last; what no longer fits beside the running requests is forgotten."""
        if arrival.prefix < 0:
            return
        cache, config = self._prefixes[pod], self._pods[pod]
        cache.pop(arrival.prefix, None)
        cache[arrival.prefix] = arrival.prefix_tokens
        running = sum(one.arrival.prompt_tokens - one.arrival.prefix_tokens for one in self._sent[pod].values())
        room = config.kv_blocks * config.block_tokens - running
        while sum(cache.values()) > room and len(cache) > 1:
            del cache[next(iter(cache))]

    def _expected_s(self, pod: int, arrival: Arrival, now_s: float) -> float:
        """Time until a free slot, then the prefills ahead and its own, at the true rates."""
        config, sent = self._pods[pod], self._sent[pod].values()
        decoding = [one for one in sent if one.first_s is not None]
        queued = [one for one in sent if one.first_s is None]
        prefill_tokens = sum(one.uncached for one in queued) + self._uncached(pod, arrival)
        prefill_s = config.gpu.step_s(prefill_tokens, min(len(decoding), config.slots_max - 1))
        over = len(sent) + 1 - config.slots_max
        if over <= 0:
            return prefill_s
        token_s = config.gpu.step_s(0, config.slots_max)
        left = [
            max(0.0, one.arrival.output_tokens * token_s - (now_s - one.first_s))
            if one.first_s is not None
            # Those that have not begun hold a slot for their whole output.
            else one.arrival.output_tokens * token_s
            for one in sent
        ]
        return prefill_s + heapq.nsmallest(over, left)[-1]


class CacheAware:
    """sglang-router's cache_aware as its source describes it, with its command line's defaults; virtual runs only.

    Imbalanced (by requests in flight): the shortest queue. Balanced: the pod whose tree matches more than a third of
    the prompt, else the least loaded.
    """

    name = "cache_aware_model"
    _cache_threshold, _balance_abs, _balance_rel = 0.3, 64, 1.5
    _block_tokens = 16

    def __init__(self, pods: Sequence[EngineConfig]) -> None:
        self._load = [0] * len(pods)
        self._tree: dict[int, int] = {}
        """Block hash -> pod that was last sent it."""

    def choose(self, arrival: Arrival, now_s: float) -> int:
        hashes = block_hashes(arrival, self._block_tokens)
        load = self._load
        least = min(range(len(load)), key=load.__getitem__)
        pod = least
        if not (max(load) - min(load) > self._balance_abs and max(load) > self._balance_rel * min(load)):
            matched, owner = self._match(hashes)
            if hashes and matched / len(hashes) > self._cache_threshold:
                pod = owner
        for block in hashes:
            self._tree[block] = pod
        load[pod] += 1
        return pod

    def _match(self, hashes: Sequence[int]) -> tuple[int, int]:
        owner, matched = 0, 0
        for block in hashes:
            if block not in self._tree:
                break
            owner = self._tree[block]
            matched += 1
        return matched, owner

    def first_token(self, arrival: Arrival, pod: int, cached_tokens: int, now_s: float) -> None:
        pass

    def finished(self, arrival: Arrival, pod: int, now_s: float) -> None:
        self._load[pod] -= 1

    def scraped(self, metrics: Sequence[EngineMetrics], now_s: float) -> None:
        pass
