"""How long `Placer.plan` takes: conversations over fleets of many sizes, prefixes known, three cost tiers."""

import random
import time
import timeit

from gir.model.cluster import ClusterState, ClusterStatus, ClusterView, PoolState, index_view
from gir.model.ids import ClusterId, ModelId, RegionId, RequestId, TenantId, TierName
from gir.model.policy import PolicySnapshot, TierPolicy
from gir.model.request import Api, InferenceRequest, Principal
from gir.place import Placer

MODEL = ModelId("llama")
TIERS = ("reserved", "on_demand", "spot")
_POLICY = PolicySnapshot(
    tiers=tuple(TierPolicy(name=name, price_per_slot_hour=price) for name, price in zip(TIERS, (1, 3, 2), strict=True))
)
_BLOCKS = 32


def fleet(count: int) -> ClusterView:
    """`count` healthy clusters in three tiers that report every signal."""
    pool = PoolState(
        model=MODEL,
        pods_ready=4,
        slots_total=64,
        slots_free=40,
        running=24,
        waiting=0,
        waiting_tokens=0,
        prefill_tokens_per_s=40_000.0,
        service_rate_per_s=8.0,
        error_rate=0.0,
        context_tokens_max=131_072,
    )
    return index_view(
        1,
        tuple(
            ClusterState(
                id=ClusterId(f"c{number}"),
                region=RegionId(f"r{number % 3}"),
                tier=TierName(TIERS[number % 3]),
                url=f"http://c{number}.test",
                status=ClusterStatus.HEALTHY,
                rtt_s=0.03 + 0.01 * (number % 7),
                beat_at_s=100.0,
                pools={MODEL: pool},
            )
            for number in range(count)
        ),
    )


def plan_us(count: int, *, requests: int = 400, repeat: int = 7) -> float:
    """Microseconds of processor time of one plan over `count` clusters: best of `repeat` rounds of `requests` plans."""
    chance = random.Random(7)
    view, placer = fleet(count), Placer()
    principal = Principal(tenant=TenantId("bench"), key_id="bench")
    conversations = [tuple(chance.getrandbits(64) for _ in range(_BLOCKS)) for _ in range(50)]
    asked = [
        InferenceRequest(
            request_id=RequestId(f"r{number}"),
            api=Api.CHAT,
            path="/v1/chat/completions",
            model=MODEL,
            model_asked=MODEL,
            principal=principal,
            prompt_tokens_estimate=128 * _BLOCKS,
            prefix_hashes=conversations[number % len(conversations)],
        )
        for number in range(requests)
    ]
    draws = [chance.random() for _ in asked]
    for request, draw in zip(asked[:100], draws, strict=False):
        first = placer.plan(request, view, _POLICY, now_s=101.0, draw=draw).ranked[0]
        placer.finished(placer.dispatched(request, first.cluster, 101.0), now_s=101.1, usage=None, ok=True)

    def once() -> None:
        for request, draw in zip(asked, draws, strict=True):
            placer.plan(request, view, _POLICY, now_s=101.2, draw=draw)

    return min(timeit.repeat(once, timer=time.process_time, number=1, repeat=repeat)) / requests * 1e6
