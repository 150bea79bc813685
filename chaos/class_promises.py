"""Promises about who is served when there is not room for everybody. Keys of the load are named after classes."""

from chaos.evidence import Evidence
from chaos.history import Record
from chaos.promises import SAMPLES_MIN, TOLERANCE_S, Promise, Verdict

CRITICAL, STANDARD, SHEDDABLE = "critical", "standard", "sheddable"
REFUSED = (429, 503)
INTERVAL_S = 1.0
"""After a better request was turned away, so long no Sheddable one may be let in (invariant I9)."""


def room_was_short(evidence: Evidence) -> Verdict:
    """The fault hit: during it requests of both lower classes were turned away, and before it none was."""
    before = sum(_shed(r) for r in evidence.experiment if r.end_s <= evidence.at("fault"))
    during = [r for r in evidence.experiment if evidence.at("fault") <= r.sent_s <= evidence.at("heal")]
    shed = {name: sum(_shed(r) for r in during if r.key == name) for name in (SHEDDABLE, STANDARD)}
    shown = ", ".join(f"{count} {name}" for name, count in shed.items()) + f" of {len(during)} shed; {before} before"
    kept = not before and shed[SHEDDABLE] >= SAMPLES_MIN and shed[STANDARD] >= 1
    return Verdict("the fault hit: room was short", f">= {SAMPLES_MIN} sheddable and 1 standard shed", shown, kept)


def sheddable_are_shed_first(evidence: Evidence) -> Verdict:
    """I9: no Sheddable request is let in that came while a better one waited in vain, or within a second after."""
    better = [r for r in evidence.experiment if r.key in (STANDARD, CRITICAL) and _shed(r)]
    spans = [(r.sent_s + TOLERANCE_S, r.end_s + INTERVAL_S - TOLERANCE_S) for r in better]
    at_stake = [r for r in evidence.experiment if r.key == SHEDDABLE and any(a < r.sent_s < b for a, b in spans)]
    let_in = sum(r.status == 200 for r in at_stake)
    shown = f"{let_in} of {len(at_stake)} that came beside {len(better)} better ones turned away"
    kept = not let_in and len(at_stake) >= SAMPLES_MIN
    return Verdict("sheddable requests let in while better ones are shed", "none", shown, kept)


def critical_succeed(share_min: float, *, slots: int) -> Promise:
    """Of the Critical requests from the fault on, `share_min` succeed; what they need of the `slots` left is shown.
    Not counted are streams that the fault itself broke after their first token."""

    def judge(evidence: Evidence) -> Verdict:
        fault_s, heal_s = evidence.at("fault"), evidence.at("heal")
        critical = [r for r in evidence.experiment if r.key == CRITICAL and r.end_s >= fault_s]
        counted = [r for r in critical if not (r.failed_after_token and r.sent_s <= fault_s)]
        failed = [r for r in counted if not r.ok]
        busy_s = sum(min(r.end_s, heal_s) - max(r.sent_s, fault_s) for r in critical if r.sent_s < heal_s)
        demand = busy_s / (heal_s - fault_s)
        share = 1.0 - len(failed) / max(1, len(counted))
        shown = f"{share:.2%} of {len(counted)}, which need {demand:.1f} of {slots} slots"
        kept = len(counted) >= SAMPLES_MIN and share >= share_min and demand <= slots
        return Verdict("critical requests that succeed", f">= {share_min:.1%} while they have room", shown, kept)

    return judge


def _shed(record: Record) -> bool:
    return record.status in REFUSED
