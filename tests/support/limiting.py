"""Replicas that share limits, in virtual time: a clock that follows the loop, a store that is somewhere else."""

import asyncio
import random
from collections.abc import Sequence

import msgspec

from gir.admit.limits import Limiter
from gir.admit.ports import Census, Claim, Replies, StoreError, Take
from gir.admit.reservation import LimitExceeded, Reservation
from gir.model.ids import ModelId, RequestId, TenantId
from gir.model.policy import LimitRule
from gir.model.request import Api, Criticality, InferenceRequest, Principal
from gir.stores.memory import MemoryStore
from gir.tasks import TaskSet


class LoopClock:
    """Time of the running loop, which `looptime` makes virtual."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time() + 1_000.0

    def wall_s(self) -> float:
        return self.monotonic_s() + 1_800_000_000.0

    async def sleep_s(self, duration_s: float) -> None:
        await asyncio.sleep(max(0.0, duration_s))


class RemoteStore:
    """The reference counters behind a round trip; `fault` is None, `down` (refused) or `frozen` (no answer)."""

    def __init__(self, clock: LoopClock, *, rtt_s: float = 0.000_5) -> None:
        self.inner = MemoryStore(clock)
        self.rtt_s = rtt_s
        self.fault: str | None = None
        self.exchanges = 0
        self.trips = 0
        """Round trips of every kind."""

    async def _trip(self) -> None:
        self.trips += 1
        if self.fault == "down":
            raise StoreError("ConnectionError: refused")
        if self.fault == "frozen" or self.rtt_s > 0.05:
            await asyncio.sleep(0.05)
            raise StoreError("no answer within 50 ms")
        await asyncio.sleep(self.rtt_s)

    async def connect(self) -> None:
        if self.fault is not None:
            await self._trip()

    async def exchange(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        self.exchanges += 1
        await self._trip()
        return self.inner.exchange_now(takes, claims)

    async def census(self, replica: str, ttl_s: float, absent_s: float) -> Census:
        await self._trip()
        return await self.inner.census(replica, ttl_s, absent_s)

    async def close(self) -> None:
        """Nothing is held."""


class SpyObserver:
    """Remembers what operators would have seen."""

    def __init__(self) -> None:
        self.changes: list[tuple[bool, str]] = []
        self.calls = 0

    def store_changed(self, up: bool, reason: str, lasted_s: float) -> None:
        self.changes.append((up, reason))

    def store_called(self, took_s: float, ok: bool) -> None:
        self.calls += 1


def request(
    number: int | str = 0,
    *,
    tenant: str = "team",
    model: str = "llama",
    key: str = "key",
    criticality: Criticality = Criticality.STANDARD,
    prompt_bytes: int = 400,
    output_tokens_max: int | None = 100,
) -> InferenceRequest:
    """A request of 400 bytes of prompt and at most 100 tokens of answer."""
    return InferenceRequest(
        request_id=RequestId(f"r-{number}"),
        api=Api.CHAT,
        path="/v1/chat/completions",
        model=ModelId(model),
        model_asked=ModelId(model),
        principal=Principal(tenant=TenantId(tenant), key_id=key),
        criticality=criticality,
        prompt_bytes=prompt_bytes,
        output_tokens_max=output_tokens_max,
    )


class Log(msgspec.Struct):
    """When requests were let in, and by whom."""

    admitted_s: list[float] = []
    refused: int = 0
    refused_critical: int = 0

    def worst_window(self, window_s: float = 60.0) -> int:
        """Most admissions in any half-open window."""
        times = sorted(self.admitted_s)
        worst = start = 0
        for end, at_s in enumerate(times):
            while times[start] <= at_s - window_s:
                start += 1
            worst = max(worst, end - start + 1)
        return worst

    def between(self, from_s: float, to_s: float) -> int:
        """Admissions in [from_s, to_s), on the loop's own scale."""
        return sum(from_s <= at_s - 1_000.0 < to_s for at_s in self.admitted_s)


class Replicas:
    """Several limiters on one store, each with its own share of the traffic."""

    def __init__(self, rules: Sequence[LimitRule], count: int, *, rtt_s: float = 0.000_5) -> None:
        self.clock = LoopClock()
        self.store = RemoteStore(self.clock, rtt_s=rtt_s)
        self.observer = SpyObserver()
        self.failures: list[BaseException] = []
        self.tasks = TaskSet(lambda _, error: self.failures.append(error))
        self.limiters = [
            Limiter(rules, self.store, clock=self.clock, replica=f"gir-{number}", observer=self.observer)
            for number in range(count)
        ]
        self.log = Log()
        self._number = 0

    async def start(self) -> None:
        """Start the pumps and let every replica hear of the others."""
        for limiter in self.limiters:
            limiter.start(self.tasks)
        await asyncio.sleep(2.5)

    async def close(self) -> None:
        await self.tasks.close()
        assert not self.failures, self.failures

    async def ask(self, limiter: Limiter, criticality: Criticality = Criticality.STANDARD) -> Reservation | None:
        """One request at one replica; None when it was refused."""
        self._number += 1
        asked = request(self._number, criticality=criticality)
        try:
            now_s = self.clock.monotonic_s()
            reservation = limiter.reserve_now(asked, now_s) or await limiter.reserve(asked)
        except LimitExceeded:
            self.log.refused += 1
            self.log.refused_critical += criticality is Criticality.CRITICAL
            return None
        self.log.admitted_s.append(self.clock.monotonic_s())
        return reservation

    async def traffic(
        self,
        rates_per_s: Sequence[float],
        duration_s: float,
        *,
        criticality: Criticality = Criticality.STANDARD,
        poisson: bool = True,
    ) -> None:
        """Send to each replica at its rate, settling at once what the request was expected to take."""

        async def one(limiter: Limiter, rate_per_s: float) -> None:
            loop = asyncio.get_running_loop()
            ends_s = loop.time() + duration_s
            while loop.time() < ends_s:
                gap_s = self.clock.random.expovariate(rate_per_s) if poisson else 1.0 / rate_per_s
                await asyncio.sleep(gap_s)
                reservation = await self.ask(limiter, criticality)
                if reservation is not None:
                    limiter.settle(reservation, None, started=True, now_s=self.clock.monotonic_s())

        await asyncio.gather(*(one(*pair) for pair in zip(self.limiters, rates_per_s, strict=True) if pair[1] > 0))
