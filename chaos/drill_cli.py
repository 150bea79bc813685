"""`gir-chaos list | run | report`: drills against a local fleet, judged by what the client saw."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from chaos.catalog import DRILLS
from chaos.children import ChildError
from chaos.drill import Drill
from chaos.evidence import Evidence
from chaos.promises import Verdict, judge_all
from chaos.report import Journal, markdown
from chaos.runner import BrokenOffError, Run
from gir.clock import SystemClock

EXIT_KEPT, EXIT_BROKEN, EXIT_USAGE = 0, 1, 2


def main(command: str, arguments: Sequence[str]) -> int:
    """Exit codes: 0 every promise kept, 1 some broken, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog=f"gir-chaos {command}", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    if command == "list":
        return _list(parser.parse_args(arguments))
    if command == "report":
        parser.add_argument("directory", type=Path, help="directory of a run")
        return _report(parser.parse_args(arguments))
    parser.add_argument("drills", nargs="*", metavar="ID", help="drills to run, such as F01")
    parser.add_argument("--all", action="store_true", help="run every drill")
    parser.add_argument("--scale", type=float, default=0.25, help="multiplies every duration (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("run/drills"), help="where evidence goes (%(default)s)")
    parser.add_argument("--lever", type=Path, default=Path("run/drills.stop"), help="file that stops every drill")
    return _run(parser.parse_args(arguments))


def _list(options: argparse.Namespace) -> int:
    rows = [{"id": d.id, "title": d.title, "hypothesis": d.hypothesis} for d in DRILLS.values()]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(f"{row['id']}  {row['title']}\n     {row['hypothesis']}")
    return EXIT_KEPT


def _run(options: argparse.Namespace) -> int:
    unknown = [name for name in options.drills if name not in DRILLS]
    if unknown or not (options.drills or options.all) or not 0.05 <= options.scale <= 1.0:
        problem = f"no drill {', '.join(unknown)}; there are {', '.join(DRILLS)}" if unknown else (
            "name drills or say --all; --scale is from 0.05 to 1"
        )  # fmt: skip
        sys.stderr.write(f"gir-chaos run: {problem}\n")
        return EXIT_USAGE
    results = {}
    for name in DRILLS if options.all else options.drills:
        results[name] = _one(DRILLS[name], options)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
    return EXIT_KEPT if all(v.kept for verdicts in results.values() for v in verdicts) else EXIT_BROKEN


def _one(drill: Drill, options: argparse.Namespace) -> list[Verdict]:
    """Run one drill, keep its evidence, print its verdicts."""
    clock = SystemClock()
    directory = options.out / f"{drill.id}-{int(clock.wall_s())}"
    journal = Journal(directory / "journal.jsonl", clock, echo=not options.json)
    if not options.json:
        print(f"{drill.id}: {drill.title} (scale {options.scale:g})", flush=True)
    try:
        run = Run(drill, scale=options.scale, clock=clock, journal=journal, lever=options.lever)
        evidence = run.run()
    except (BrokenOffError, ChildError) as error:
        journal.note("failed", why=str(error))
        return [Verdict("the drill ran to its end", "yes", str(error), False)]
    evidence.save(directory)
    return _judge(drill, evidence, directory, show=not options.json)


def _judge(drill: Drill, evidence: Evidence, directory: Path, *, show: bool) -> list[Verdict]:
    verdicts = judge_all(drill.promises, evidence)
    (directory / "report.md").write_text(markdown(drill.title, drill.hypothesis, evidence, verdicts))
    if show:
        for v in verdicts:
            print(f"  {'kept  ' if v.kept else 'BROKEN'} {v.promise}: {v.measured}   (promised: {v.promised})")
        print(f"  report: {directory / 'report.md'}", flush=True)
    return verdicts


def _report(options: argparse.Namespace) -> int:
    """Judge kept evidence again, with the promises as they are now."""
    try:
        evidence = Evidence.load(options.directory)
        drill = DRILLS[evidence.facts.drill]
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gir-chaos report: {error}\n")
        return EXIT_USAGE
    except KeyError as error:
        sys.stderr.write(f"gir-chaos report: the run is of drill {error}, which no longer exists\n")
        return EXIT_USAGE
    verdicts = _judge(drill, evidence, options.directory, show=not options.json)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(verdicts)).decode())
    return EXIT_KEPT if all(verdict.kept for verdict in verdicts) else EXIT_BROKEN
