"""The worlds of the placement bench: fleets, arrivals and policies. Everything is seeded and in virtual time."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from chaos.engine.gpus import profile
from chaos.engine.values import EngineConfig
from chaos.replay.cluster import ClusterSpec
from chaos.replay.policies import Build, Gir, LeastLoad, PrefixOnly, RegionLocal
from chaos.replay.traces import Arrival, conversation, diurnal, reuse_ceiling
from chaos.replay.world import Played, World
from gir.model.policy import ClusterPolicy, PolicySnapshot, TierPolicy

GIR, LATENCY_ONLY = "gir", "latency_only"
RTT_S = (0.030, 0.110, 0.300)
"""Round trip from the one router to the near, the middle and the far Region."""
BETWEEN_REGIONS_S = ((0.030, 0.110, 0.300), (0.110, 0.030, 0.300), (0.300, 0.300, 0.030))
"""Round trip from the router of each Region to every Region."""
REGIONS = ("us", "eu", "ap")
RESERVED_PRICE, ON_DEMAND_PRICE = 1.0, 3.0


def engine(gpu: str, *, slots: int, kv_tokens: int) -> EngineConfig:
    """Llama 2 70B as measured on `gpu`, with KV memory for `kv_tokens` (engines that offload to host memory)."""
    return EngineConfig(
        gpu=profile(f"llama2-70b/{gpu}"),
        slots_max=slots,
        kv_blocks=kv_tokens // 512,
        block_tokens=512,
        step_tokens_max=2_048,
        each_token=False,
    )


@dataclasses.dataclass(frozen=True)
class Conversations:
    """Recorded conversations through one router into three Regions of `pods` pods each."""

    gpu: str
    pods: int
    limit: int | None

    def policies(self) -> dict[str, Build]:
        """GIR with default settings, and the baselines."""

        def gir(specs: Any, rtt_s: Any, seed: int) -> Gir:
            return Gir(specs, rtt_s, seed, PolicySnapshot())

        return {GIR: gir, RegionLocal.name: RegionLocal, LeastLoad.name: LeastLoad, PrefixOnly.name: PrefixOnly}

    def arrivals(self) -> list[Arrival]:
        return conversation(limit=self.limit, homes=len(RTT_S))

    def play(self, build: Build, arrivals: Sequence[Arrival], seed: int) -> Played:
        """One run. Every policy has the agent's prefix-aware picker below it, but round robin has round robin."""
        pod = engine(self.gpu, slots=32, kv_tokens=4_194_304)
        specs = [ClusterSpec(id=name, region=name, pods=(pod,) * self.pods) for name in ("near", "middle", "far")]
        preset = "roundrobin" if build is RegionLocal else "prefixaware"
        return World(specs, [RTT_S], build, preset=preset, seed=seed).play(arrivals)


def conversation_figures(runs: Sequence[Played], ceiling: float) -> dict[str, Any]:
    """Medians over the seeds. Shares are of the fair share (1 = a third)."""

    def median(values: Sequence[float]) -> float:
        return round(statistics.median(values), 4)

    def shares(field: str) -> list[float]:
        return [
            median([getattr(run.uses[place], field) * 3 / sum(getattr(use, field) for use in run.uses) for run in runs])
            for place in range(3)
        ]

    ttft = [sorted(one.ttft_s for one in run.served) for run in runs]
    whole = [sorted(one.end_to_end_s for one in run.served) for run in runs]
    hits = [
        sum(one.cached_tokens for one in run.served) / sum(one.arrival.prompt_tokens for one in run.served)
        for run in runs
    ]
    return {
        "ttft_p50_s": median([quantile(each, 0.50) for each in ttft]),
        "ttft_p95_s": median([quantile(each, 0.95) for each in ttft]),
        "ttft_p99_s": median([quantile(each, 0.99) for each in ttft]),
        "end_to_end_p95_s": median([quantile(each, 0.95) for each in whole]),
        "hit_rate": median(hits),
        "hit_of_ceiling": median([hit / ceiling for hit in hits]),
        "request_share": shares("requests"),
        "token_share": shares("prompt_tokens"),
    }


@dataclasses.dataclass(frozen=True)
class Diurnal:
    """A day of demand in three Regions eight hours apart; a reserved and an on-demand cluster in each.

    The day is played in `day_s` seconds: service times stay real, so the load changes faster than in life and returns
    after a spill weigh more than they would.
    """

    day_s: float
    mean_per_s: float = 2.6

    def specs(self) -> list[ClusterSpec]:
        pod = engine("h100-80gb/tp4", slots=16, kv_tokens=1_048_576)
        return [
            ClusterSpec(id=f"{region}-{tier}", region=region, tier=tier, price_per_slot_hour=price, pods=(pod, pod))
            for region in REGIONS
            for tier, price in (("reserved", RESERVED_PRICE), ("on_demand", ON_DEMAND_PRICE))
        ]

    def policies(self) -> dict[str, PolicySnapshot]:
        """GIR with cost tiers, and the same placement blind to cost: every cluster in one tier."""
        tiers = (
            TierPolicy(name="reserved", price_per_slot_hour=RESERVED_PRICE),
            TierPolicy(name="on_demand", price_per_slot_hour=ON_DEMAND_PRICE),
        )
        blind = tuple(ClusterPolicy(id=spec.id, tier="any") for spec in self.specs())
        return {GIR: PolicySnapshot(tiers=tiers), LATENCY_ONLY: PolicySnapshot(clusters=blind)}

    def arrivals(self, seed: int) -> list[Arrival]:
        return diurnal(
            mean_per_s=(self.mean_per_s,) * 3, shift_h=(0.0, 8.0, 16.0), day_s=self.day_s, until_s=self.day_s, seed=seed
        )

    def play(self, policy: PolicySnapshot, arrivals: Sequence[Arrival], seed: int) -> Played:
        specs = self.specs()
        rtt_s = [[row[place // 2] for place in range(len(specs))] for row in BETWEEN_REGIONS_S]
        return World(specs, rtt_s, lambda *args: Gir(*args, policy), seed=seed).play(arrivals)


def cost_figures(run: Played) -> dict[str, Any]:
    """Cost in price units: reserved slots are paid for around the clock, on-demand slots while occupied."""
    hours = {
        tier: sum(use.slot_s for use in run.uses if use.tier == tier) / 3_600 for tier in ("reserved", "on_demand")
    }
    paid = sum(use.slots for use in run.uses if use.tier == "reserved") * run.lasted_s / 3_600
    ttft = sorted(one.ttft_s for one in run.served)
    decided = sum(run.reasons.values())
    return {
        "cost": round(paid * RESERVED_PRICE + hours["on_demand"] * ON_DEMAND_PRICE, 2),
        "cost_if_all_by_use": round(hours["reserved"] * RESERVED_PRICE + hours["on_demand"] * ON_DEMAND_PRICE, 2),
        "ttft_p50_s": round(quantile(ttft, 0.50), 4),
        "ttft_p95_s": round(quantile(ttft, 0.95), 4),
        "reserved_use": round(hours["reserved"] / paid, 4),
        "on_demand_share": round(hours["on_demand"] / (hours["reserved"] + hours["on_demand"]), 4),
        "spilled_share": round(run.reasons.get("spill", 0) / decided, 4),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest-rank quantile of a sorted list."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ceiling_of(arrivals: Sequence[Arrival]) -> float:
    """Reuse ceiling of these arrivals (an unlimited cache)."""
    return reuse_ceiling(list(arrivals))
