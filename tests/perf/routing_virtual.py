"""A scenario in virtual time: engines, policy and arrivals on one event loop of their own, seconds of run per hour.

The pure cores of production (picker) and simulator (engine) meet here without processes; that makes it the tool to
tune with. The bars are judged on the live run.
"""

import dataclasses
import math
from collections.abc import Sequence

from chaos.engine.core import Engine
from chaos.engine.values import EngineRequest, TokenEvent
from tests.perf.routing_policies import Policy
from tests.perf.routing_scenarios import Arrival, Scenario, block_hashes, quantile

SCRAPE_S = 0.25


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one request went."""

    arrival: Arrival
    pod: int
    ttft_s: float
    cached_tokens: int


@dataclasses.dataclass(frozen=True)
class Result:
    """What a policy achieved on one scenario."""

    policy: str
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_mean_s: float
    hit_rate: float
    """Prompt tokens found in caches, of all prompt tokens."""
    share: tuple[float, ...]
    """Part of the requests each pod got."""
    errors: int = 0
    seen_p95_s: float = 0.0
    """TTFT p95 as the client saw it, the relay's way back included; live runs only."""

    def slower(self, factor: float) -> "Result":
        """The same result in the time of a scenario that was played `factor` times as fast."""
        times = ("ttft_p50_s", "ttft_p95_s", "ttft_mean_s", "seen_p95_s")
        return dataclasses.replace(self, **{name: getattr(self, name) * factor for name in times})


def judge(policy: str, served: Sequence[Outcome], scenario: Scenario, errors: int = 0) -> Result:
    """Figures over the requests after the warm-up."""
    judged = [one for one in served if one.arrival.id >= scenario.warm]
    waits = [one.ttft_s for one in judged]
    prompt = sum(one.arrival.prompt_tokens for one in judged)
    return Result(
        policy=policy,
        ttft_p50_s=quantile(waits, 0.50),
        ttft_p95_s=quantile(waits, 0.95),
        ttft_mean_s=sum(waits) / len(waits),
        hit_rate=sum(one.cached_tokens for one in judged) / prompt,
        share=tuple(sum(one.pod == pod for one in judged) / len(judged) for pod in range(len(scenario.pods))),
        errors=errors,
    )


class _Pod:
    """One engine and which arrival each of its ids stands for."""

    __slots__ = ("engine", "index", "requests")

    def __init__(self, index: int, engine: Engine) -> None:
        self.index = index
        self.engine = engine
        self.requests: dict[int, Arrival] = {}


def run(scenario: Scenario, policy: Policy, *, scrape_s: float = SCRAPE_S) -> Result:
    """Serve every arrival of `scenario` with fresh engines."""
    pods = [_Pod(index, Engine(config)) for index, config in enumerate(scenario.pods)]
    served: list[Outcome] = []
    coming = list(reversed(scenario.arrivals))
    next_scrape_s = 0.0
    while coming or any(pod.requests for pod in pods):
        next_arrival_s = coming[-1].at_s if coming else math.inf
        next_event_s = min(pod.engine.next_event_s() for pod in pods)
        now_s = min(next_arrival_s, next_event_s, next_scrape_s)
        for pod in pods:
            if pod.engine.next_event_s() <= now_s:
                for event in pod.engine.advance(now_s):
                    _heard(event, pod, policy, served)
        if next_scrape_s <= now_s:
            policy.scraped([pod.engine.metrics(now_s) for pod in pods], now_s)
            next_scrape_s += scrape_s
        if next_arrival_s <= now_s:
            _send(coming.pop(), pods, policy, now_s)
    return judge(policy.name, served, scenario)


def _send(arrival: Arrival, pods: list[_Pod], policy: Policy, now_s: float) -> None:
    pod = pods[policy.choose(arrival, now_s)]
    request = EngineRequest(
        prompt_tokens=arrival.prompt_tokens,
        output_tokens=arrival.output_tokens,
        block_hashes=block_hashes(arrival, pod.engine.config.block_tokens),
    )
    pod.requests[pod.engine.submit(request, now_s)] = arrival


def _heard(event: TokenEvent, pod: _Pod, policy: Policy, served: list[Outcome]) -> None:
    arrival = pod.requests[event.id]
    if event.first:
        served.append(Outcome(arrival, pod.index, event.at_s - arrival.at_s, event.cached_tokens))
        policy.first_token(arrival, pod.index, event.cached_tokens, event.at_s)
    if event.finished:
        del pod.requests[event.id]
        policy.finished(arrival, pod.index, event.at_s)
