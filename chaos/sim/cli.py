"""`gir-chaos sim`: simulate whole fleets from seeds.

Exit codes: 0 nothing was found, 1 something was, 2 wrong command line. Each finding comes with the command that shows
it again.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from chaos.sim.faults import KINDS
from chaos.sim.plan import START_S, plan_of
from chaos.sim.run import Result, simulate
from chaos.sim.world import World, drop_pending

BAR_SPEEDUP = 5_000
"""What a run of ten clusters on one core should reach, in seconds of virtual time for each second of processor time."""


class Job(msgspec.Struct, frozen=True):
    """One seed and how it is narrowed."""

    seed: int
    clusters: int | None
    faults: frozenset[str] | None


def run_job(job: Job) -> Result:
    """Simulate one seed."""
    return simulate(job.seed, clusters=job.clusters, faults=job.faults)


def main(command: str, arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=f"gir-chaos {command}", description=__doc__)
    parser.add_argument("--seeds", default="1..100", help="one seed or a range A..B (default 1..100)")
    parser.add_argument("--clusters", type=int, help="size of every fleet (default: drawn from the seed)")
    parser.add_argument("--faults", help=f"comma-separated kinds of trouble, of: {', '.join(KINDS)} (default: drawn)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trace", action="store_true", help="print the history of a single seed, step by step")
    options = parser.parse_args(arguments)
    try:
        jobs = _jobs(options)
    except ValueError as error:
        parser.error(str(error))
    if options.trace:
        return _show(jobs[0])
    started_s = time.perf_counter()
    results = list(_results(jobs, options.jobs))
    took_s = time.perf_counter() - started_s
    _tell(results, took_s, options)
    return 1 if any(result.failed for result in results) else 0


def _jobs(options: argparse.Namespace) -> list[Job]:
    first, _, last = options.seeds.partition("..")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise ValueError(f"--seeds is {options.seeds!r}: write one number, or A..B with A <= B")
    faults = frozenset(options.faults.split(",")) if options.faults else None
    if faults is not None and not faults <= KINDS.keys():
        raise ValueError(f"--faults names unknown kinds: {', '.join(sorted(faults - KINDS.keys()))}")
    if options.clusters is not None and options.clusters < 2:
        raise ValueError(f"--clusters is {options.clusters}: a fleet has two or more")
    return [Job(seed, options.clusters, faults) for seed in range(int(first), int(last or first) + 1)]


def _results(jobs: list[Job], processes: int) -> Iterator[Result]:
    if processes <= 1:
        yield from map(run_job, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(min(processes, os.cpu_count() or 1)) as pool:
        yield from pool.imap(run_job, jobs, chunksize=8)


def repeat_line(result: Result, options: argparse.Namespace) -> str:
    """The command that shows a finding again."""
    narrowed = f" --clusters {options.clusters}" if options.clusters else ""
    narrowed += f" --faults {options.faults}" if options.faults else ""
    return f"gir-chaos sim --seeds {result.seed}{narrowed} --trace"


def summary(results: Iterable[Result], took_s: float, options: argparse.Namespace) -> dict[str, object]:
    """What `--json` prints."""
    listed = list(results)
    cpu_s = sum(result.cpu_s for result in listed)
    simulated_s = sum(result.simulated_s for result in listed)
    outcomes: dict[str, int] = {}
    for result in listed:
        for name, count in result.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    return {
        "seeds": len(listed),
        "failed": [
            {"seed": result.seed, "findings": list(result.failed), "repro": repeat_line(result, options)}
            for result in listed
            if result.failed
        ],
        "events": sum(result.events for result in listed),
        "speedup": round(simulated_s / cpu_s) if cpu_s else 0,
        "simulated_s": round(simulated_s),
        "cpu_s": round(cpu_s, 2),
        "wall_s": round(took_s, 2),
        "outcomes": outcomes,
    }


def _tell(results: list[Result], took_s: float, options: argparse.Namespace) -> None:
    told = summary(results, took_s, options)
    if options.json:
        print(msgspec.json.encode(told).decode())
        return
    for result in results:
        for finding in result.failed:
            print(f"seed {result.seed}: {finding}")
        if result.failed:
            print(f"  again: {repeat_line(result, options)}")
    bad = sum(bool(result.failed) for result in results)
    print(
        f"{told['seeds']} seeds, {bad} with findings, {told['simulated_s']} s of fleet life in {told['cpu_s']} s of"
        f" processor time ({told['speedup']}x), {told['events']} events"
    )


def _show(job: Job) -> int:
    plan = plan_of(job.seed, clusters=job.clusters, faults=job.faults)
    world = World(plan)
    world.observed.lines = []
    world.live()
    drop_pending(world)
    out = sys.stdout.write
    out(f"{len(plan.clusters)} clusters, {plan.routers} routers, from {START_S:g} s, healed at {plan.heal_s:.1f} s\n")
    out("".join(f"{spec}\n" for spec in plan.clusters))
    out("".join(f"{line}\n" for line in world.observed.lines))
    out("".join(f"FOUND {finding}\n" for finding in world.observed.failed))
    return 1 if world.observed.failed else 0
