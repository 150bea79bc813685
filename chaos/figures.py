"""Promises about figures that a drill takes itself, where no client's history could tell."""

from chaos.evidence import Evidence
from chaos.promises import TOLERANCE_S, Promise, Verdict


def figure_at_most(name: str, bound: float, *, unit: str = "s", scaled: bool = False) -> Promise:
    """A figure the drill took itself. Seconds are given the tolerance of a timer; only those may be `scaled`."""

    def judge(evidence: Evidence) -> Verdict:
        measured = evidence.facts.figures.get(name)
        seconds = unit == "s"
        most = bound * (evidence.facts.scale if scaled else 1.0) + (TOLERANCE_S if seconds else 0.0)
        shown = "not measured" if measured is None else f"{measured:.2f} {unit}"
        return Verdict(name, f"<= {most:.2f} {unit}", shown, measured is not None and measured <= most)

    return judge


def figure_at_least(name: str, bound: float, *, unit: str = "", scaled: bool = False) -> Promise:
    """A figure the drill took itself, which must be large enough."""

    def judge(evidence: Evidence) -> Verdict:
        measured = evidence.facts.figures.get(name)
        least = bound * (evidence.facts.scale if scaled else 1.0) - (TOLERANCE_S if unit == "s" else 0.0)
        shown = "not measured" if measured is None else f"{measured:.2f} {unit}".strip()
        return Verdict(name, f">= {least:.2f} {unit}".strip(), shown, measured is not None and measured >= least)

    return judge
