"""Workloads of the routing bench: the pods, and the same arrivals for every policy.

Everything is drawn from a seed before the run starts, so two policies never differ in what they are asked. Lengths and
rates are in the engine's own time; a live run may play it faster (`EngineConfig.gpu` scaled, arrivals divided).
"""

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

import msgspec

from chaos.engine.gpus import GpuProfile, profile
from chaos.engine.values import EngineConfig

BYTES_PER_TOKEN = 4
FAST_GPU = "llama2-70b/h100-80gb/tp8"


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One request: when, how long, and which shared prefix it begins with (-1: none)."""

    id: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: int = -1
    prefix_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Pods and arrivals. `warm` arrivals at the start are served but not judged."""

    name: str
    pods: tuple[EngineConfig, ...]
    arrivals: tuple[Arrival, ...]
    warm: int

    def faster(self, factor: float) -> "Scenario":
        """The same scenario played `factor` times as fast."""
        shrink = 1.0 / factor
        return dataclasses.replace(
            self,
            pods=tuple(
                msgspec.structs.replace(pod, gpu=pod.gpu.scaled(prefill=shrink, decode=shrink)) for pod in self.pods
            ),
            arrivals=tuple(msgspec.structs.replace(one, at_s=one.at_s * shrink) for one in self.arrivals),
        )


def mixed(count: int, seed: int) -> Scenario:
    """Two fast pods and two with 7x slower prefill and a quarter of the slots.

    The rate brings the slow pods to the edge when everybody gets the same share, and leaves the fast ones with room.
    """
    fast = _pod(profile(FAST_GPU), slots=32)
    slow = _pod(fast.gpu.scaled(prefill=7.0, name="slow"), slots=8)
    draw = random.Random(seed)
    arrivals = _poisson(
        draw,
        count,
        rate_per_s=3.0,
        tokens=lambda: (_lognormal(draw, 1_000, 0.6, 4_000), _lognormal(draw, 160, 0.6, 600)),
    )
    return Scenario("mixed", (fast, fast, slow, slow), arrivals, warm=count // 10)


def prefixes(count: int, seed: int, *, skew: float = 0.0) -> Scenario:
    """Sixty prefixes of 3,000 tokens over seven pods, each with room for about a quarter of them.

    `skew` is the Zipf exponent of their popularity (0 = all alike).
    """
    prefix_tokens, kinds = 3_008, 60
    pod = _pod(profile(FAST_GPU), slots=32, kv_tokens=48_000)
    draw = random.Random(seed)
    weights = [1.0 / (rank + 1) ** skew for rank in range(kinds)]
    arrivals = _poisson(
        draw, count, rate_per_s=24.0, tokens=lambda: (_lognormal(draw, 150, 0.5, 600), _lognormal(draw, 80, 0.6, 300))
    )
    kind_of = draw.choices(range(kinds), weights, k=count)
    arrivals = tuple(
        msgspec.structs.replace(
            one, prompt_tokens=one.prompt_tokens + prefix_tokens, prefix=kind_of[one.id], prefix_tokens=prefix_tokens
        )
        for one in arrivals
    )
    return Scenario("prefixes" if not skew else f"prefixes_zipf{skew:g}", (pod,) * 7, arrivals, warm=count // 4)


def uniform(count: int, seed: int) -> Scenario:
    """Four equal pods, like requests, steady load: where round robin is hard to beat and easy to lose to."""
    pod = _pod(profile(FAST_GPU), slots=32)
    draw = random.Random(seed)
    arrivals = _poisson(
        draw, count, rate_per_s=9.0, tokens=lambda: (_lognormal(draw, 800, 0.3, 2_000), _lognormal(draw, 120, 0.3, 300))
    )
    return Scenario("uniform", (pod,) * 4, arrivals, warm=count // 10)


SCENARIOS: dict[str, Callable[[int, int], Scenario]] = {"mixed": mixed, "prefixes": prefixes, "uniform": uniform}


def block_hashes(arrival: Arrival, block_tokens: int) -> tuple[int, ...]:
    """Hashes of the prompt's whole blocks as an engine would chain them: equal for equal prefixes only."""
    shared = arrival.prefix_tokens // block_tokens
    own = arrival.prompt_tokens // block_tokens
    return tuple(
        hash((arrival.prefix, block)) if block < shared else hash((-2, arrival.id, block)) for block in range(own)
    )


def prompt_text(arrival: Arrival) -> str:
    """A prompt of that many tokens (four bytes each): the prefix's own text, then the request's."""
    shared_bytes = arrival.prefix_tokens * BYTES_PER_TOKEN
    own_bytes = arrival.prompt_tokens * BYTES_PER_TOKEN - shared_bytes
    return _text(f"prefix {arrival.prefix}", shared_bytes) + _text(f"request {arrival.id}", own_bytes)


def _text(title: str, size: int) -> str:
    """`size` characters that differ from those of any other title from the start, word after word."""
    draw = random.Random(title)
    words = [title]
    length = len(title)
    while length < size:
        words.append(f"{draw.getrandbits(24):x}")
        length += len(words[-1]) + 1
    return " ".join(words)[:size]


def _pod(gpu: GpuProfile, *, slots: int, kv_tokens: int = 131_072) -> EngineConfig:
    return EngineConfig(gpu=gpu, slots_max=slots, kv_blocks=kv_tokens // 16, each_token=False)


def _poisson(
    draw: random.Random, count: int, *, rate_per_s: float, tokens: Callable[[], tuple[int, int]]
) -> tuple[Arrival, ...]:
    at_s = 0.0
    arrivals = []
    for number in range(count):
        at_s += draw.expovariate(rate_per_s)
        prompt, output = tokens()
        arrivals.append(Arrival(id=number, at_s=at_s, prompt_tokens=prompt, output_tokens=output))
    return tuple(arrivals)


def _lognormal(draw: random.Random, median: int, sigma: float, largest: int) -> int:
    return min(largest, max(32, round(median * math.exp(draw.gauss(0.0, sigma)))))


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie; raises ValueError when there are none."""
    if not values:
        raise ValueError("no values: the run judged no request; raise its count")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
