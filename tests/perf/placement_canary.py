"""Canaries of the placement bench: how soon a bad one is gone, and whether a good one is left alone."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from gir.model.cluster import ClusterState, ClusterStatus, PoolState, index_view
from gir.model.ids import ClusterId, ModelId, RegionId, TenantId, TierName
from gir.model.policy import CanaryGuard, CanaryRule, CanaryTarget, PolicySnapshot, RuleMatch
from gir.model.request import Principal
from gir.place import Rewriter
from gir.place.trial import TrialState

KEYS = 10_000
REQUESTS_MAX = 50
"""Requests a bad canary may have served when it goes, however fast they came."""
_PRINCIPAL = Principal(tenant=TenantId("bench"), key_id="bench")
_MODELS = ("stable", "next")
_FLEET = index_view(
    1,
    (
        ClusterState(
            id=ClusterId("a"),
            region=RegionId("eu"),
            tier=TierName("reserved"),
            url="http://a.test",
            status=ClusterStatus.HEALTHY,
            pools={ModelId(name): PoolState(model=ModelId(name), slots_total=8, slots_free=8) for name in _MODELS},
        ),
    ),
)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the canary."""

    name: str
    error_rate: float = 0.01
    slower: float = 1.0


FAULTS = (Fault(name="errors", error_rate=0.5), Fault(name="slow", slower=3.0))


def policy(weight: int) -> PolicySnapshot:
    """One guarded rule with `weight` percent on the canary and the guard's defaults."""
    targets = (CanaryTarget(model="stable", weight=100 - weight), CanaryTarget(model="next", weight=weight))
    rule = CanaryRule(name="bench", matches=(RuleMatch(model="stable"),), targets=targets, guard=CanaryGuard())
    return PolicySnapshot(rewrites=(rule,))


def shares(weights: Sequence[int]) -> dict[str, float]:
    """Share of 10,000 keys on the canary at each weight, in percent."""
    result = {}
    for weight in weights:
        rewriter, rules = Rewriter(), policy(weight)
        hits = sum(rewriter.rewrite("stable", [], _PRINCIPAL, f"k{key}", rules, _FLEET, 0.0).arm for key in range(KEYS))
        result[str(weight)] = round(100.0 * hits / KEYS, 2)
    return result


def moved_off(weights: Sequence[int]) -> int:
    """Keys that left the canary while its weight was raised step by step."""
    moved = 0
    before: list[int] = [0] * KEYS
    for weight in weights:
        rewriter, rules = Rewriter(), policy(weight)
        after = [rewriter.rewrite("stable", [], _PRINCIPAL, f"k{key}", rules, _FLEET, 0.0).arm for key in range(KEYS)]
        moved += sum(was and not now for was, now in zip(before, after, strict=True))
        before = after
    return moved


def trial(fault: Fault, ttfts_s: Sequence[float], *, weight: int, per_s: float, seed: int) -> dict[str, Any]:
    """One canary under `fault`; times to first token are drawn from `ttfts_s` (a recorded distribution)."""
    rewriter, rules, chance = Rewriter(), policy(weight), random.Random(seed)
    now_s, canary, control_moved = 0.0, 0, 0
    for _ in range(int(300 * per_s)):
        now_s += chance.expovariate(per_s)
        got = rewriter.rewrite("stable", [], _PRINCIPAL, f"s{chance.randrange(500)}", rules, _FLEET, now_s)
        canary += got.arm
        bad = fault if got.arm else Fault(name="none")
        ok = chance.random() >= bad.error_rate
        rewriter.observe(got, ok, chance.choice(ttfts_s) * bad.slower if ok else None, now_s)
        if rewriter.trial("bench").state is TrialState.ABORTED:
            break
    aborted = rewriter.trial("bench").state is TrialState.ABORTED
    if aborted:
        control_moved = sum(
            rewriter.rewrite("stable", [], _PRINCIPAL, f"s{key}", rules, _FLEET, now_s).arm for key in range(500)
        )
    return {"aborted": aborted, "after_s": now_s, "canary_requests": canary, "still_on_canary": control_moved}


def figures(ttfts_s: Sequence[float], seeds: int) -> dict[str, Any]:
    """Every fault at a steady, a slow and a fast rate; and canaries like their control."""
    told: dict[str, Any] = {
        "share_percent": shares((1, 5, 10, 25, 50)),
        "moved_off": moved_off((1, 5, 10, 25, 50, 100)),
    }
    for fault in FAULTS:
        runs = [
            trial(fault, ttfts_s, weight=weight, per_s=per_s, seed=seed)
            for weight, per_s in ((10, 20.0), (25, 2.0), (50, 20.0))
            for seed in range(seeds)
        ]
        told[fault.name] = {
            "trials": len(runs),
            "aborted": sum(run["aborted"] for run in runs),
            "in_time": sum(run["aborted"] and run["canary_requests"] <= REQUESTS_MAX for run in runs),
            "worst_canary_requests": max(run["canary_requests"] for run in runs),
            "worst_s": round(max(run["after_s"] for run in runs), 1),
            "still_on_canary": sum(run["still_on_canary"] for run in runs),
        }
    sound = [trial(Fault(name="none"), ttfts_s, weight=20, per_s=20.0, seed=seed) for seed in range(seeds)]
    told["sound"] = {"trials": len(sound), "aborted": sum(run["aborted"] for run in sound)}
    return told
