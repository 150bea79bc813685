"""`gir-chaos sim --policy new.yaml --trace mooncake`: what a policy would have done, beside the one in force.

Replays a recorded trace in virtual time through both policies over the same fleet, and prints cost, time to first
token, spill and reuse side by side. A policy file is a router's configuration file, or just its `policy` section.
Exit codes: 0 replayed, 2 wrong command line or an unusable file.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chaos.engine.gpus import profile
from chaos.engine.values import EngineConfig
from chaos.replay.cluster import MODEL, ClusterSpec
from chaos.replay.policies import Gir
from chaos.replay.traces import Arrival, conversation, diurnal, reuse_ceiling
from chaos.replay.world import Played, World
from gir.model.policy import PolicySnapshot
from gir.model.policy.base import Count, NonNegative, Section
from gir.model.request import Criticality
from gir.place.check import check_placement
from gir.settings import ConfigError, parse, read_text

TRACES = ("mooncake", "day")
_SPEED_MIN, _SPEED_MAX = 0.01, 10_000.0
_DAY_S = 3_600.0
_DAY_PER_S = 6.0


class FleetCluster(Section, frozen=True, kw_only=True):
    """One cluster of the fleet the trace is replayed over."""

    id: str
    region: str
    tier: str
    price_per_slot_hour: NonNegative
    rtt_ms: NonNegative
    pods: Count = 2
    gpu: str = "llama2-70b/h100-80gb/tp4"
    """Profile of a pod; a wrong name lists those there are."""
    slots: Count = 16
    kv_tokens: Count = 4_194_304


class Fleet(Section, frozen=True, kw_only=True):
    """The fleet file."""

    clusters: tuple[FleetCluster, ...]


class _RouterFile(msgspec.Struct):
    """The one section of a router's file that matters here."""

    policy: PolicySnapshot | None = None


FLEET = Fleet(
    clusters=tuple(
        FleetCluster(
            id=f"{region}-{tier}", region=region, tier=tier, price_per_slot_hour=price, rtt_ms=rtt_ms, pods=pods
        )
        for region, rtt_ms in (("near", 30.0), ("middle", 110.0), ("far", 300.0))
        for tier, price, pods in (("reserved", 1.0, 1), ("on_demand", 3.0, 1))
    )
)
"""Three Regions at the round trips of the placement bench, each with one reserved and one on-demand pod."""


def main(command: str, arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=f"gir-chaos {command}", description=__doc__)
    parser.add_argument("--policy", required=True, metavar="FILE", help="the proposed policy")
    parser.add_argument("--current", metavar="FILE", help="the policy in force (default: built-in defaults)")
    parser.add_argument("--trace", choices=TRACES, default="mooncake", help="what to replay (default: %(default)s)")
    parser.add_argument("--fleet", metavar="FILE", help="clusters to replay over (default: three Regions, two tiers)")
    parser.add_argument("--model", help="model whose policy entry applies to the trace")
    parser.add_argument("--criticality", choices=[each.label for each in Criticality], default="standard")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="play the trace X times as fast")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return run(parser.parse_args(arguments))


def run(args: argparse.Namespace) -> int:
    """Replay and print; the namespace has the attributes of the options above."""
    try:
        fleet = parse(read_text(Path(args.fleet)), Fleet, source=args.fleet) if args.fleet else FLEET
        specs = [_spec(each) for each in fleet.clusters]
        policies = {
            "current": read_policy(args.current, args.model) if args.current else PolicySnapshot(),
            "proposed": read_policy(args.policy, args.model),
        }
        if not specs:
            raise ConfigError(f"{args.fleet}: clusters is empty; list at least one")
        ids = [spec.id for spec in specs]
        twice = next((name for name in ids if ids.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"{args.fleet}: clusters has {twice} twice; keep one of them")
        if not _SPEED_MIN <= args.speed <= _SPEED_MAX:
            raise ConfigError(f"--speed is {args.speed:g}; use a number from {_SPEED_MIN:g} to {_SPEED_MAX:g}")
        if args.limit is not None and args.limit < 1:
            raise ConfigError(f"--limit is {args.limit}; use a whole number from 1 up")
        told = _replay(fleet, specs, policies, args)
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"gir-chaos sim: {error}\n")
        return 2
    sys.stdout.write(json.dumps(told, indent=2) + "\n" if args.json else table(told))
    return 0


def _replay(
    fleet: Fleet, specs: Sequence[ClusterSpec], policies: Mapping[str, PolicySnapshot], args: argparse.Namespace
) -> dict[str, Any]:
    """Play the trace through each policy. Raises ValueError when one of them, or the fleet, cannot serve it."""
    arrivals = _arrivals(args.trace, args.limit, args.speed, args.seed)
    rtt_s = [[each.rtt_ms / 1e3 for each in fleet.clusters]]
    criticality = Criticality[args.criticality.upper()]
    played = {}
    for name, policy in policies.items():
        try:
            played[name] = figures(_play(policy, specs, rtt_s, arrivals, criticality, args.seed), specs)
        except ValueError as error:
            raise ValueError(f"the {name} policy cannot be replayed: {error}") from None
    return {
        "trace": args.trace,
        "requests": len(arrivals),
        "reuse_ceiling": round(reuse_ceiling(arrivals), 4),
        "policies": played,
    }


def read_policy(path: str, model: str | None) -> PolicySnapshot:
    """The policy in a file, checked as a router would; the entry of `model` applies to the replayed traffic.

    Raises ConfigError or ValueError naming field, value and fix.
    """
    text = read_text(Path(path))
    policy = parse(text, _RouterFile, source=path).policy
    if policy is None:
        policy = parse(text, PolicySnapshot, source=path)
    try:
        check_placement(policy)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    entries = tuple(each for each in policy.models if each.name == model)
    if model is not None and not entries:
        raise ConfigError(f"{path}: --model is {model}, which has no entry in models; add one or leave the option out")
    renamed = tuple(msgspec.structs.replace(each, name=MODEL, aliases=()) for each in entries)
    return msgspec.structs.replace(policy, models=renamed)


def figures(run_: Played, specs: Sequence[ClusterSpec]) -> dict[str, Any]:
    """What a policy achieved. Cost in price units: occupied slot-hours of each cluster at its price."""
    ttft = sorted(one.ttft_s for one in run_.served)
    prompt = sum(one.arrival.prompt_tokens for one in run_.served)
    priced = list(zip(specs, run_.uses, strict=True))
    tiers = {spec.tier: 0 for spec in specs}
    for spec, use in priced:
        tiers[spec.tier] += use.requests
    return {
        "cost": round(sum(use.slot_s / 3_600 * spec.price_per_slot_hour for spec, use in priced), 3),
        **{f"ttft_p{share}_s": round(_quantile(ttft, share / 100), 4) for share in (50, 95, 99)},
        "spill_share": round(run_.reasons.get("spill", 0) / len(run_.served), 4),
        "hit_rate": round(sum(one.cached_tokens for one in run_.served) / prompt, 4),
        "tier_share": {tier: round(count / len(run_.served), 4) for tier, count in tiers.items()},
    }


def table(told: dict[str, Any]) -> str:
    """Both policies side by side."""
    current, proposed = told["policies"]["current"], told["policies"]["proposed"]
    rows = [("", "current", "proposed", "change")]
    rows += [
        (name, f"{current[name]:g}", f"{proposed[name]:g}", _change(current[name], proposed[name]))
        for name in ("cost", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "spill_share", "hit_rate")
    ]
    rows += [
        (f"share of {tier}", f"{share:g}", f"{proposed['tier_share'][tier]:g}", "")
        for tier, share in current["tier_share"].items()
    ]
    head = f"{told['trace']}: {told['requests']} requests, reuse ceiling {told['reuse_ceiling']:.1%}\n"
    return head + "".join(f"{a:<22}{b:>12}{c:>12}{d:>10}\n" for a, b, c, d in rows)


def _spec(cluster: FleetCluster) -> ClusterSpec:
    pod = EngineConfig(
        gpu=profile(cluster.gpu),
        slots_max=cluster.slots,
        kv_blocks=max(1, cluster.kv_tokens // 512),
        block_tokens=512,
        each_token=False,
    )
    return ClusterSpec(
        id=cluster.id,
        region=cluster.region,
        tier=cluster.tier,
        price_per_slot_hour=cluster.price_per_slot_hour,
        pods=(pod,) * cluster.pods,
    )


def _arrivals(trace: str, limit: int | None, speed: float, seed: int) -> list[Arrival]:
    if trace == "mooncake":
        return conversation(limit=limit, speed=speed)
    day_s = _DAY_S / speed
    arrivals = diurnal(mean_per_s=(_DAY_PER_S,), shift_h=(0.0,), day_s=day_s, until_s=day_s, seed=seed)
    return arrivals[:limit]


def _play(
    policy: PolicySnapshot,
    specs: Sequence[ClusterSpec],
    rtt_s: Sequence[Sequence[float]],
    arrivals: Sequence[Arrival],
    criticality: Criticality,
    seed: int,
) -> Played:
    def build(fleet: Sequence[ClusterSpec], row: Sequence[float], seed_: int) -> Gir:
        return Gir(fleet, row, seed_, policy, criticality)

    return World(specs, rtt_s, build, seed=seed).play(arrivals)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _change(before: float, after: float) -> str:
    return f"{after / before - 1.0:+.1%}" if before else ""
