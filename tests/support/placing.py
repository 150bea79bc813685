"""Small fleets, policies and requests for placement tests; every argument has a harmless default."""

from collections.abc import Iterable
from typing import Any

from gir.model.cluster import ClusterState, ClusterStatus, ClusterView, PoolState, index_view
from gir.model.ids import ClusterId, ModelId, RegionId, RequestId, TenantId, TierName
from gir.model.policy import PolicySnapshot, TierPolicy
from gir.model.request import Api, Criticality, InferenceRequest, Principal
from gir.place import Placer

MODEL = ModelId("llama")
NOW_S = 1_000.0
TIERS = (
    TierPolicy(name="reserved", price_per_slot_hour=1.0),
    TierPolicy(name="on_demand", price_per_slot_hour=3.0),
)


def pool(**fields: Any) -> PoolState:
    """An idle pool of 16 slots on 2 pods that reports every signal."""
    known: dict[str, Any] = {
        "model": MODEL,
        "pods_ready": 2,
        "slots_total": 16,
        "slots_free": 16,
        "running": 0,
        "waiting": 0,
        "waiting_tokens": 0,
        "prefill_tokens_per_s": 20_000.0,
        "service_rate_per_s": 4.0,
        "error_rate": 0.0,
        "context_tokens_max": 131_072,
    }
    return PoolState(**(known | fields))


def cluster(name: str, *, pools: Iterable[PoolState] | None = None, load: dict[str, Any] | None = None, **fields: Any):
    """A healthy reserved cluster 30 ms away; `load` overrides fields of its one pool."""
    known: dict[str, Any] = {
        "id": ClusterId(name),
        "region": RegionId("eu"),
        "tier": TierName("reserved"),
        "url": f"http://{name}.test",
        "status": ClusterStatus.HEALTHY,
        "rtt_s": 0.03,
        "beat_at_s": NOW_S - 0.5,
    }
    listed = list(pools) if pools is not None else [pool(**(load or {}))]
    return ClusterState(**(known | fields), pools={each.model: each for each in listed})


def view(*clusters: ClusterState, version: int = 1, fail_open: bool = False) -> ClusterView:
    return index_view(version, clusters, fail_open=fail_open)


def policy(**fields: Any) -> PolicySnapshot:
    return PolicySnapshot(**({"tiers": TIERS, "version": 7} | fields))


POLICY = policy()
"""One object for all, as in a router: another policy object makes placement start over."""


def principal(**fields: Any) -> Principal:
    return Principal(**({"tenant": TenantId("acme"), "key_id": "key-1"} | fields))


def request(name: str = "r-1", **fields: Any) -> InferenceRequest:
    known: dict[str, Any] = {
        "request_id": RequestId(name),
        "api": Api.CHAT,
        "path": "/v1/chat/completions",
        "model": MODEL,
        "model_asked": MODEL,
        "principal": principal(),
        "criticality": Criticality.STANDARD,
        "prompt_tokens_estimate": 500,
        "arrived_s": NOW_S,
    }
    return InferenceRequest(**(known | fields))


def plan(placer: Placer, fleet: ClusterView, asked: InferenceRequest | None = None, **fields: Any):
    """`placer.plan` at NOW_S with draw 0.5 under the two-tier policy, unless told otherwise."""
    rules = fields.pop("policy", None) or POLICY
    known: dict[str, Any] = {"now_s": NOW_S, "draw": 0.5}
    return placer.plan(asked or request(), fleet, rules, **(known | fields))


def names(placement: Any) -> list[str]:
    """Ranked clusters, best first."""
    return [each.cluster for each in placement.ranked]


def why(placement: Any) -> dict[str, str]:
    """Filter that removed each cluster."""
    return {each.cluster: each.filter for each in placement.removed}
