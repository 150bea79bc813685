"""What speaks for and against a pod, each scorer in the same unit: seconds a request would lose there.

One unit makes the trade between reuse and load gradual: a cached prefix is worth the prefill it saves, a queue costs
the time until its turn comes, and no threshold switches one of them off. Weights multiply; a preset is a set of them.

| scorer | seconds | source |
|---|---|---|
| expectedWork | wait for a slot or the prefill ahead, and prefill of uncached tokens, at measured rates | own traffic |
| prefix | prefill of uncached tokens once more: what a miss costs those who come behind | own index |
| lru | the same, times how likely it is that what the pod evicts for it will be missed | own index |
| kvCache | KV memory the uncached tokens take, in seconds of the whole pod, times u / (1 - u) of its usage u | engine |
| queue | requests waiting for each slot | engine, own traffic |
| runningRequests | requests running for each slot | engine, own traffic |
| session | away from the session's home pod (rendezvous hash) | request |
| loraAffinity | having to load the adapter (pods that hold it come first whatever the weight) | engine, own traffic |
"""

from typing import Annotated, Literal

import msgspec
import xxhash

Weight = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]
Preset = Literal["weighted", "prefixaware", "kvaware", "session", "roundrobin"]

QUEUE_S = 1.0
"""One waiting request for each slot of the pod."""
RUNNING_S = 0.1
"""A full batch: what it adds to a prefill in between."""
KV_S = 0.05
"""KV half used, whatever the request."""
KV_PRESSURE_MAX = 4.0
"""Usage of 0.8; a steeper price than that made the choice jump from scrape to scrape."""
SESSION_S = 1.0
ADAPTER_S = 1.0
"""Loading an adapter that is not resident."""


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Weight of each scorer; 0 leaves it out."""

    expected_work: Weight = 0.0
    prefix: Weight = 0.0
    lru: Weight = 0.0
    queue: Weight = 0.0
    running_requests: Weight = 0.0
    kv_cache: Weight = 0.0
    session: Weight = 0.0
    lora_affinity: Weight = 0.0


_LOAD = Weights(expected_work=1.0, queue=0.1, running_requests=1.0, kv_cache=1.0, lora_affinity=1.0)
PRESETS: dict[Preset, Weights] = {
    "weighted": msgspec.structs.replace(_LOAD, prefix=2.0, lru=0.5),
    "prefixaware": msgspec.structs.replace(_LOAD, prefix=8.0, lru=0.5),
    "kvaware": Weights(kv_cache=20.0, queue=1.0, running_requests=1.0, lora_affinity=1.0),
    "session": msgspec.structs.replace(_LOAD, session=30.0),
    "roundrobin": Weights(),
}


def queue_s(waiting: float, slots: int) -> float:
    """Seconds for `waiting` requests ahead of a newcomer; grows with every one of them."""
    return QUEUE_S * waiting / slots


def running_s(running: float, slots: int) -> float:
    """Seconds for a batch of `running` sequences."""
    return RUNNING_S * running / slots


def kv_pressure(usage: float | None) -> float:
    """u / (1 - u), bounded; unknown counts as half full, neither idle nor saturated."""
    if usage is None:
        return 1.0
    return min(KV_PRESSURE_MAX, usage / (1.0 - usage)) if usage < 1.0 else KV_PRESSURE_MAX


def slot_wait_s(load: float, slots: int, hold_s: float) -> float:
    """Seconds until a slot comes free for a newcomer, when `load` requests are there and each holds a slot `hold_s`."""
    return 0.0 if load < slots else (load - slots + 1.0) * hold_s / slots


def session_rank(session: bytes, pod_seed: int) -> int:
    """Rendezvous hash: the pod with the highest rank is the session's home; a pod gained or lost moves 1/N of them."""
    return xxhash.xxh3_64_intdigest(session, pod_seed)
