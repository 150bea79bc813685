"""Journal of a run (JSON lines) and its report (Markdown): promised beside measured, always with the scale."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from chaos.evidence import Evidence
from chaos.history import summarize
from chaos.promises import Verdict
from gir.clock import Clock


class Journal:
    """What a run did, line by line as it happens; with `echo` also told to whoever watches."""

    def __init__(self, path: Path, clock: Clock, echo: bool = False) -> None:
        self._path = path
        self._clock = clock
        self._echo = echo
        path.parent.mkdir(parents=True, exist_ok=True)

    def note(self, event: str, **fields: Any) -> None:
        """Append one line."""
        line = {"wall_s": round(self._clock.wall_s(), 3), "event": event, **fields}
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        if self._echo:
            extra = " ".join(f"{name}={value}" for name, value in fields.items())
            print(f"  {event} {extra}".rstrip(), flush=True)


def markdown(title: str, hypothesis: str, evidence: Evidence, verdicts: Sequence[Verdict]) -> str:
    """The whole report."""
    facts = evidence.facts
    kept = all(verdict.kept for verdict in verdicts)
    victims = ", ".join(facts.victims) or "no cluster"
    start_s = evidence.at("start")
    lines = [
        f"# {facts.drill}: {title}",
        "",
        f"**{'Kept' if kept else 'NOT KEPT'}**; victims {victims}; scale {facts.scale:g} (durations).",
        "",
        f"Hypothesis: {hypothesis}",
        "",
        "| promise | promised | measured | |",
        "|---|---|---|---|",
        *(f"| {v.promise} | {v.promised} | {v.measured} | {'kept' if v.kept else '**broken**'} |" for v in verdicts),
        "",
        "Moments, seconds after the start: "
        + ", ".join(f"{name} {at_s - start_s:.1f}" for name, at_s in facts.marks.items()),
        "",
        "| load | requests | ok | failed before token | failed after | retried | first token p50 / p99 (s) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, records in (("experiment", evidence.experiment), ("control", evidence.control)):
        summary = summarize(records)
        ttft = summary["ttft_s"]
        lines.append(
            f"| {name} | {summary['requests']} | {summary['ok']} | {summary['failed_before_token']} "
            f"| {summary['failed_after_token']} | {summary['retried']} | {ttft['p50']} / {ttft['p99']} |"
        )
    return "\n".join(lines) + "\n"
