"""Promises about limits that many routers share, while the store of the counters is hurt.

How long a decision took is read from the routers' own access logs, joined to the client's history by request id: a
client on a busy machine could not tell a millisecond.
"""

import statistics
from collections import deque

from chaos.evidence import Decision, Evidence, LogLine
from chaos.history import Record
from chaos.promises import SAMPLES_MIN, TOLERANCE_S, Promise, Verdict

WINDOW_S = 60.0
"""What limits count in; it does not scale."""
_STORES = ("limit store", "orders store", "usage totals")
"""Lines by which the users of the one Redis say that it is gone; how often is judged of the first."""


def steady_within_limits(evidence: Evidence) -> Verdict:
    """Before the fault and after recovery every request succeeds or is refused by its limit, politely."""
    parts = {
        "before": [r for r in evidence.records if r.end_s <= evidence.at("fault")],
        "after": [r for r in evidence.records if r.sent_s >= evidence.at("recovered")],
    }
    shown = ", ".join(
        f"{name} {sum(r.ok for r in part)} ok and {sum(r.limited for r in part)} limited of {len(part)}"
        for name, part in parts.items()
    )
    kept = all(len(part) >= SAMPLES_MIN and all(r.ok or r.limited for r in part) for part in parts.values())
    return Verdict("steady state before the fault and after recovery", "all succeed or are limited", shown, kept)


def nobody_fails_but_by_the_limit(evidence: Evidence) -> Verdict:
    """No 5xx, no broken answer: what is not served was refused by a limit, with Retry-After."""
    failed = [r for r in evidence.experiment if not r.ok and not r.limited and r.ended != "skipped"]
    limited = sum(r.limited for r in evidence.experiment)
    why = ", ".join(sorted({f"{r.status or r.ended} {r.error_code}".strip() for r in failed}))
    shown = f"{len(failed)} of {len(evidence.experiment)}{f' ({why})' if why else ''}; {limited} limited"
    return Verdict("failures other than by the limit", "0", shown, not failed and limited >= SAMPLES_MIN)


def within_the_limit(over_max: float, *, extra_limits: int = 0, until: str = "end") -> Promise:
    """Up to a mark, in no 60 s more of the experiment's requests are let in than its limit and `over_max` of it;
    `extra_limits` are granted on top, as for a store that forgot everything."""

    def judge(evidence: Evidence) -> Verdict:
        limit = evidence.facts.figures.get("limit_per_min", 0.0)
        allowed = limit * (1.0 + extra_limits + over_max)
        records = [r for r in evidence.experiment if r.sent_s <= evidence.at(until)]
        asked = len(records)
        worst = _worst_window([r for r in records if r.status == 200])
        during = sum(r.status == 200 for r in records if _during(evidence, r))
        shown = f"{worst} of {asked} asked, {during} of them let in during the fault (limit {limit:.0f})"
        # Had fewer asked, no limit would have been at stake.
        kept = asked > 1.2 * limit and during > 0 and worst <= allowed
        return Verdict(f"let in within any 60 s up to the {until} mark", f"<= {allowed:.0f}", shown, kept)

    return judge


def decided_at_once(first_s: float, then_s: float, *, returns: bool = False) -> Promise:
    """The store's absence costs whoever asks at that moment `first_s` at most, and everybody later `then_s`: the
    median says what a decision takes, and nobody later waits for the store at all. `first_s` includes the tolerance
    of a timer, and neither is scaled. A store that `returns` before the heal may be waited for again."""

    def judge(evidence: Evidence) -> Verdict:
        during = [(r, d) for r in evidence.records if _during(evidence, r) and (d := _decision(evidence, r))]
        refused_ms = [d.took_ms for r, d in during if r.limited]
        waits = [(r.sent_s - evidence.at("fault"), d.asked_ms) for r, d in during if d.asked_ms]
        # What waited together waited for one call; it is over when that call's deadline is.
        first = min((at_s for at_s, _ in waits), default=0.0)
        later = sum(at_s > first + first_s + TOLERANCE_S for at_s, _ in waits)
        slowest_ms = max((ms for _, ms in waits), default=0.0)
        median_ms = statistics.median(refused_ms) if refused_ms else float("inf")
        kept = (
            len(refused_ms) >= SAMPLES_MIN
            and slowest_ms <= (first_s + TOLERANCE_S) * 1e3
            and (returns or later == 0)
            and median_ms <= then_s * 1e3
        )
        shown = (
            f"{len(waits)} waited for the store, {slowest_ms:.0f} ms at most, {later} of them later; "
            f"then {median_ms:.2f} ms (median of {len(refused_ms)} refusals)"
        )
        return Verdict("decisions", f"first <= {first_s * 1e3:.0f} ms, then <= {then_s * 1e3:g} ms", shown, kept)

    return judge


def one_line_an_outage(*, routers: int) -> Promise:
    """During the fault each of `routers` says once that the store is gone, and nothing else ever goes wrong."""

    def judge(evidence: Evidence) -> Verdict:
        lines = evidence.facts.log
        gone = _outages(evidence)
        names = {line.router for line in gone}
        errors = [line for line in lines if line.level in ("error", "critical") and line.event not in _STORES]
        shown = f"{len(gone)} lines from {len(names)} routers, {len(errors)} other errors"
        if errors:
            shown += f" ({errors[0].text[:120]})"
        kept = len(names) == routers and len(gone) == routers and not errors
        return Verdict("log lines that the store is gone", f"{routers}, and no other error", shown, kept)

    return judge


def _outages(evidence: Evidence) -> list[LogLine]:
    """Lines that say that the store is gone, of outages that were not over when the fault came."""
    found: list[LogLine] = []
    said = sorted((line for line in evidence.facts.log if line.event == "limit store"), key=lambda line: line.at_s)
    for number, line in enumerate(said):
        if '"up":false' not in line.text or line.at_s > evidence.at("heal"):
            continue
        later = (other.at_s for other in said[number + 1 :] if other.router == line.router)
        if next(later, float("inf")) > evidence.at("fault"):
            found.append(line)
    return found


def degraded_seen(routers: int) -> Promise:
    """The one gauge says so while it lasts, on so many routers, and not afterwards."""

    def judge(evidence: Evidence) -> Verdict:
        degraded = [
            evidence.total(scrape, "gir_limits_degraded")
            for scrape in evidence.scrapes
            if evidence.at("fault") < scrape.at_s <= evidence.at("heal")
        ]
        peak, last = max(degraded, default=0.0), evidence.total(evidence.scrapes[-1], "gir_limits_degraded")
        shown = f"{peak:.0f} during the fault, {last:.0f} at the end"
        return Verdict("routers that run on local shares", f"{routers}, then 0", shown, (peak, last) == (routers, 0))

    return judge


def whole_again_within(bound_s: float, *, since: str = "fault") -> Promise:
    """No router runs on local shares any more `bound_s` after the mark (not scaled)."""

    def judge(evidence: Evidence) -> Verdict:
        bound, mark_s = bound_s + TOLERANCE_S, evidence.at(since)
        degraded = [s.at_s for s in evidence.scrapes if s.at_s > mark_s and evidence.total(s, "gir_limits_degraded")]
        lasted = max(degraded, default=mark_s) - mark_s
        return Verdict(
            f"limits are shared again after the {since} mark", f"<= {bound:.2f} s", f"{lasted:.2f} s",
            bool(degraded) and lasted <= bound,
        )  # fmt: skip

    return judge


def every_router_serves(routers: int) -> Promise:
    """During the fault each router answers requests."""

    def judge(evidence: Evidence) -> Verdict:
        served: dict[str, int] = {}
        for record in evidence.records:
            if _during(evidence, record) and record.ok:
                served[record.router] = served.get(record.router, 0) + 1
        shown = ", ".join(map(str, served.values())) or "none"
        kept = len(served) == routers and min(served.values()) >= SAMPLES_MIN
        return Verdict(
            "answered by each router during the fault", f">= {SAMPLES_MIN} by each of {routers}", shown, kept
        )

    return judge


def _during(evidence: Evidence, record: Record) -> bool:
    return evidence.at("fault") <= record.sent_s <= evidence.at("heal")


def _decision(evidence: Evidence, record: Record) -> Decision | None:
    return evidence.facts.decisions.get(record.request_id)


def _worst_window(records: list[Record]) -> int:
    """Most of `records` in any window, by when they were sent."""
    inside: deque[float] = deque()
    worst = 0
    for sent_s in sorted(r.sent_s for r in records):
        inside.append(sent_s)
        while inside[0] <= sent_s - WINDOW_S:
            inside.popleft()
        worst = max(worst, len(inside))
    return worst
