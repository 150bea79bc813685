"""How well clusters are chosen: TTFT and reuse on recorded conversations, cost over a day, canaries, speed.

`python -m tests.perf.placement [--json] [--quick] [--scenario NAME]`

Policies are compared in the same run on the same arrivals, in virtual time over the simulated engines, with the
agent's real picker in every cluster. Exit code 1 when a bar is missed.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.perf import placement_canary, placement_speed
from tests.perf.placement_scenarios import (
    GIR,
    LATENCY_ONLY,
    Conversations,
    Diurnal,
    ceiling_of,
    conversation_figures,
    cost_figures,
)

HIT_OF_CEILING_MIN = 0.90
SHARE_OFF_MAX = 0.20
TTFT_OBJECTIVE_S = 1.0
COST_BELOW_MIN = 0.20
PLAN_US_MAX = {"3": 50.0, "16": 50.0, "1000": 500.0}
SHARE_PERCENT_OFF_MAX = 1.0
FALSE_ABORTS_MAX = 0.02
QUICK_REQUESTS = 3_000
FALLBACK_TTFT_S = (0.2, 0.3, 0.4, 0.6, 1.0, 1.5, 2.5, 4.0)
"""Stands in for a recorded distribution when the conversations are not played."""

Report = dict[str, Any]
Say = Callable[[str], None]


def conversations(quick: bool, say: Say) -> tuple[Report, list[float]]:
    """Every policy on the recorded conversations, below and past saturation; and GIR's times to first token."""
    limit, seeds = (QUICK_REQUESTS, (1,)) if quick else (None, (1, 2, 3))
    report: Report = {}
    ttfts: list[float] = []
    worlds = {"conversations": Conversations("h100-80gb/tp4", 2, limit)}
    if not quick:
        worlds["past_saturation"] = Conversations("h100-80gb/tp8", 1, limit)
    for name, world in worlds.items():
        arrivals = world.arrivals()
        ceiling = ceiling_of(arrivals)
        report[name] = {"requests": len(arrivals), "reuse_ceiling": round(ceiling, 4), "policies": {}}
        for policy, build in world.policies().items():
            runs = [world.play(build, arrivals, seed) for seed in seeds]
            report[name]["policies"][policy] = told = conversation_figures(runs, ceiling)
            say(_conversation_line(name, policy, told))
            if policy == GIR and not ttfts:
                ttfts = [one.ttft_s for one in runs[0].served]
    return report, ttfts


def cost(quick: bool, say: Say) -> Report:
    """A day with cost tiers and without."""
    world = Diurnal(day_s=900.0 if quick else 7_200.0)
    arrivals = world.arrivals(seed=1)
    report: Report = {"requests": len(arrivals), "policies": {}}
    for name, policy in world.policies().items():
        report["policies"][name] = told = cost_figures(world.play(policy, arrivals, 1))
        say(
            f"cost             {name:26} cost {told['cost']:8.2f} (all by use {told['cost_if_all_by_use']:8.2f})  "
            f"ttft p95 {told['ttft_p95_s']:.3f} s  on demand {told['on_demand_share']:.1%}"
        )
    policies = report["policies"]
    report["cost_below_latency_only"] = round(1.0 - policies[GIR]["cost"] / policies[LATENCY_ONLY]["cost"], 4)
    return report


def canary(quick: bool, ttfts: Sequence[float], say: Say) -> Report:
    """Shares, and how soon bad canaries are gone."""
    told = placement_canary.figures(ttfts or FALLBACK_TTFT_S, seeds=10 if quick else 50)
    for name in ("errors", "slow"):
        say(f"canary           {name:26} {told[name]['in_time']} of {told[name]['trials']} aborted in time")
    return told


def speed(quick: bool, say: Say) -> dict[str, float]:
    """Microseconds of one plan by number of clusters."""
    told = {name: round(placement_speed.plan_us(int(name), repeat=5 if quick else 15), 1) for name in PLAN_US_MAX}
    say("plan             " + ", ".join(f"{name} clusters {took} us" for name, took in told.items()))
    return told


def missed(report: Report) -> list[str]:
    """One line for each bar that is not met."""
    found: list[str] = []
    for name in ("conversations", "past_saturation"):
        if name in report:
            found += _missed_conversations(name, report[name]["policies"], strict=name == "conversations")
    if "cost" in report:
        found += _missed_cost(report["cost"])
    if "canary" in report:
        found += _missed_canary(report["canary"])
    for name, took in report.get("plan_us", {}).items():
        if took > PLAN_US_MAX[name]:
            found.append(f"plan over {name} clusters takes {took} us: the bar is {PLAN_US_MAX[name]}")
    return found


def _missed_conversations(name: str, policies: Report, *, strict: bool) -> list[str]:
    """Below saturation every bar holds; past it, placement must not be the worse for its own cleverness."""
    mine = policies[GIR]
    found = [
        f"{name}: ttft p95 {mine['ttft_p95_s']} s, {other} has {figures['ttft_p95_s']} s"
        for other, figures in policies.items()
        if other != GIR and mine["ttft_p95_s"] > figures["ttft_p95_s"] * (1.0 if strict else 1.1)
    ]
    if mine["end_to_end_p95_s"] > policies["least_load"]["end_to_end_p95_s"]:
        found.append(f"{name}: end to end p95 {mine['end_to_end_p95_s']} s is above least_load's")
    if not strict:
        return found
    if mine["hit_of_ceiling"] < HIT_OF_CEILING_MIN:
        found.append(
            f"{name}: hit rate is {mine['hit_of_ceiling']:.1%} of the ceiling: the bar is {HIT_OF_CEILING_MIN:.0%}"
        )
    off = max(abs(share - 1.0) for share in mine["request_share"])
    if off > SHARE_OFF_MAX:
        found.append(f"{name}: a cluster's share is {off:.1%} off the fair one: the bar is {SHARE_OFF_MAX:.0%}")
    return found


def _missed_cost(report: Report) -> list[str]:
    found = [
        f"cost: ttft p95 of {name} is {figures['ttft_p95_s']} s: the objective is {TTFT_OBJECTIVE_S} s"
        for name, figures in report["policies"].items()
        if figures["ttft_p95_s"] > TTFT_OBJECTIVE_S
    ]
    if report["cost_below_latency_only"] < COST_BELOW_MIN:
        found.append(
            f"cost: {report['cost_below_latency_only']:.1%} below latency-only: the bar is {COST_BELOW_MIN:.0%}"
        )
    return found


def _missed_canary(report: Report) -> list[str]:
    found = [
        f"canary: weight {weight} got {share} % of the keys"
        for weight, share in report["share_percent"].items()
        if abs(share - float(weight)) > SHARE_PERCENT_OFF_MAX
    ]
    if report["moved_off"]:
        found.append(f"canary: {report['moved_off']} keys left it while its weight was raised")
    for name in ("errors", "slow"):
        told = report[name]
        if told["in_time"] < told["trials"]:
            found.append(
                f"canary: {told['trials'] - told['in_time']} of {told['trials']} bad ones ({name}) stayed too long"
            )
        if told["still_on_canary"]:
            found.append(f"canary: {told['still_on_canary']} keys were still on it after the abort")
    if report["sound"]["aborted"] > FALSE_ABORTS_MAX * report["sound"]["trials"]:
        found.append(f"canary: {report['sound']['aborted']} of {report['sound']['trials']} sound ones were aborted")
    return found


def _conversation_line(name: str, policy: str, told: Report) -> str:
    shares = " ".join(f"{share:.2f}" for share in told["request_share"])
    return (
        f"{name:16} {policy:26} ttft p50 {told['ttft_p50_s']:8.3f} p95 {told['ttft_p95_s']:8.3f} s  "
        f"end to end p95 {told['end_to_end_p95_s']:8.2f} s  hits {told['hit_of_ceiling']:.1%} of ceiling  "
        f"share {shares}"
    )


SCENARIOS = ("conversations", "cost", "canary", "plan")


def run(scenarios: Sequence[str], quick: bool, say: Say) -> Report:
    """Play the scenarios; the report holds one entry for each."""
    report: Report = {"quick": quick}
    ttfts: list[float] = []
    if "conversations" in scenarios:
        told, ttfts = conversations(quick, say)
        report |= told
    if "cost" in scenarios:
        report["cost"] = cost(quick, say)
    if "canary" in scenarios:
        report["canary"] = canary(quick, ttfts, say)
    if "plan" in scenarios:
        report["plan_us"] = speed(quick, say)
    report["missed"] = missed(report)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--quick", action="store_true", help="a quarter of the trace, one seed, a shorter day")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only these")
    options = parser.parse_args()
    out = sys.stderr if options.json else sys.stdout
    report = run(options.scenario or SCENARIOS, options.quick, lambda line: print(line, file=out, flush=True))
    if options.json:
        print(json.dumps(report, indent=2))
    for line in report["missed"]:
        print(f"MISSED: {line}", file=sys.stderr)
    sys.exit(1 if report["missed"] else 0)


if __name__ == "__main__":
    main()
