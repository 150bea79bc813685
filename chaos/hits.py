"""Promises about the drill itself: what was to go wrong did. A drill whose fault missed proves nothing."""

from chaos.evidence import Evidence
from chaos.history import percentile
from chaos.promises import TOLERANCE_S, Promise, Verdict


def fault_hit(*names: str, at_least: int = 1) -> Promise:
    """Each of these faults touched at least so many processes, connections or requests, by the injector's own count."""

    def judge(evidence: Evidence) -> Verdict:
        hits = {name: evidence.facts.hits.get(name, 0) for name in names}
        shown = ", ".join(f"{name} {count}" for name, count in hits.items())
        return Verdict("the fault hit", f">= {at_least} each", shown, all(count >= at_least for count in hits.values()))

    return judge


def counter_moved(family: str, what: str) -> Promise:
    """The routers noticed it: a counter that only moves for this has moved."""

    def judge(evidence: Evidence) -> Verdict:
        moved = evidence.increase(family)
        return Verdict(what, ">= 1", f"{family} +{moved:.0f}", moved >= 1)

    return judge


def nothing_sent_goes_there_after(bound_s: float) -> Promise:
    """No request sent later than `bound_s` (not scaled, no tolerance) past the fault is answered by a victim."""

    def judge(evidence: Evidence) -> Verdict:
        fault_s, heal_s = evidence.at("fault"), evidence.at("heal")
        late = [
            record.sent_s - fault_s
            for record in evidence.experiment
            if fault_s + bound_s < record.sent_s < heal_s and record.cluster in evidence.facts.victims
        ]
        shown = f"{len(late)} sent" + (f", the last {max(late):.2f} s after" if late else "")
        name = f"requests sent more than {bound_s * 1e3:.0f} ms after the fault that a victim answered"
        return Verdict(name, "none", shown, not late)

    return judge


def hidden_failures_at_most_one_each(fault: str) -> Promise:
    """A connection that a fault poisoned costs at most one attempt, and is not used again."""

    def judge(evidence: Evidence) -> Verdict:
        poisoned = evidence.facts.hits.get(fault, 0)
        failed = sum(
            evidence.increase("gir_attempts_total", {"cluster": cluster, "result": result})
            for cluster in evidence.facts.victims
            for result in ("local_fault", "upstream_fault")
        )
        kept = 0 < poisoned >= failed
        return Verdict(
            "attempts that poisoned connections cost", "<= 1 each", f"{failed:.0f} of {poisoned} connections", kept
        )

    return judge


def late_answers_are_counted(evidence: Evidence) -> Verdict:
    """What was given up after dispatch, and perhaps worked on in vain, is counted for each request that moved."""
    moved = sum(max(0, record.attempts - 1) for record in evidence.experiment if record.ok)
    wasted = sum(
        evidence.increase("gir_attempts_wasted_total", {"cluster": cluster}) for cluster in evidence.facts.victims
    )
    return Verdict("attempts given up are counted", f">= {moved} (requests moved)", f"{wasted:.0f}", wasted >= moved)


def victims_were_slower(factor: float) -> Promise:
    """Some stream sent to a victim during the fault had gaps `factor` times as long as usual there."""

    def judge(evidence: Evidence) -> Verdict:
        fault_s, heal_s = evidence.at("fault"), evidence.at("heal")
        streams = [r for r in evidence.experiment if r.cluster in evidence.facts.victims and r.gap_ms is not None]
        before = percentile([r.gap_ms or 0.0 for r in streams if r.end_s <= fault_s], 0.5)
        worst = max((r.gap_ms or 0.0 for r in streams if fault_s <= r.sent_s <= heal_s), default=0.0)
        if not before:
            return Verdict("the fault hit", f"gaps x {factor:g}", "no stream before it", False)
        shown = f"{worst:.0f} ms (before: {before:.0f} ms)"
        return Verdict("the fault hit: gaps of a victim's stream", f">= x {factor:g}", shown, worst >= factor * before)

    return judge


def health_never_changes(evidence: Evidence) -> Verdict:
    """From the fault to the end nobody's health changes in any way."""
    counts = [
        evidence.total(scrape, "gir_cluster_events_total")
        for scrape in evidence.scrapes
        if evidence.at("fault") - TOLERANCE_S <= scrape.at_s <= evidence.at("end")
    ]
    if not counts:
        return Verdict("changes of health", "0", "no evidence", False)
    return Verdict("changes of health", "0", f"{counts[-1] - counts[0]:.0f}", counts[-1] == counts[0])
