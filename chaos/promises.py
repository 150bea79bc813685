"""Promises about failures, each with its figure, judged from evidence alone.

A promise says what was promised and what was measured, side by side, whether kept or not. Bounds in seconds are scaled
with the drill; `TOLERANCE_S` is what timers and scrapes cost on a small shared machine and is not scaled.
"""

from collections.abc import Callable, Sequence

import msgspec

from chaos.evidence import Evidence
from chaos.history import Record, percentile

TOLERANCE_S = 0.25
SAMPLES_MIN = 10
"""Fewer requests than this prove nothing: the promise then fails rather than pass by lack of evidence."""


class Verdict(msgspec.Struct, frozen=True):
    """One promise, judged."""

    promise: str
    promised: str
    measured: str
    kept: bool


Promise = Callable[[Evidence], Verdict]


def steady_state(evidence: Evidence) -> Verdict:
    """Before the fault and after the recovery, everything succeeds."""
    parts = {
        "before": [r for r in evidence.records if r.end_s <= evidence.at("fault")],
        "after": [r for r in evidence.records if r.sent_s >= evidence.at("recovered")],
    }
    shown = ", ".join(f"{name} {sum(r.ok for r in part)}/{len(part)}" for name, part in parts.items())
    kept = all(len(part) >= SAMPLES_MIN and all(r.ok for r in part) for part in parts.values())
    return Verdict("steady state before the fault and after recovery", "all requests succeed", shown, kept)


def no_error_before_token(evidence: Evidence) -> Verdict:
    """PTE 0: no client sees an error before its first token."""
    during = [r for r in evidence.experiment if r.end_s >= evidence.at("fault") and r.ended != "skipped"]
    failed = [r for r in during if r.failed_before_token]
    why = ", ".join(sorted({f"{r.status or r.ended} {r.error_code}".strip() for r in failed}))
    shown = f"{len(failed)} of {len(during)}" + (f" ({why})" if why else "")
    return Verdict("errors before the first token", "0", shown, not failed and len(during) >= SAMPLES_MIN)


def no_error_at_all(evidence: Evidence) -> Verdict:
    """Nobody notices anything, not even streams under way."""
    failed = [r for r in evidence.experiment if not r.ok and r.ended != "skipped"]
    return Verdict("failed requests", "0", f"{len(failed)} of {len(evidence.experiment)}", not failed)


def no_lies(evidence: Evidence) -> Verdict:
    """Invariant I4: what was called complete was complete, and what broke said so."""
    lies = [r for r in evidence.records if r.lie]
    return Verdict("streams called complete that were not, or cut in silence", "0", str(len(lies)), not lies)


def broken_streams_say_so(bound_s: float, *, at_least: int = 1) -> Promise:
    """Each stream that breaks after its first token ends with the error event within `bound_s` of its last chunk."""

    def judge(evidence: Evidence) -> Verdict:
        bound = bound_s * evidence.facts.scale + TOLERANCE_S
        broken = [r for r in evidence.experiment if r.failed_after_token]
        silent = [r for r in broken if not r.error or r.done]
        waits = [r.end_s - max(_last_chunk_s(r), evidence.at("fault")) for r in broken]
        worst = max(waits, default=0.0)
        shown = f"{len(broken)} broken, {len(silent)} without error event, slowest {worst:.2f} s"
        kept = len(broken) >= at_least and not silent and worst <= bound
        return Verdict("broken streams end with an error event", f"all, within {bound:.2f} s", shown, kept)

    return judge


def last_placement_within(bound_s: float) -> Promise:
    """After the fault the victim gets no new work beyond `bound_s`, by the routers' own counters."""

    def judge(evidence: Evidence) -> Verdict:
        bound = bound_s * evidence.facts.scale + TOLERANCE_S
        labels = {"cluster": evidence.facts.victim}
        fault_s, heal_s = evidence.at("fault"), evidence.at("heal")
        last = evidence.last_increase_s("gir_placements_total", labels, after_s=fault_s, until_s=heal_s)
        before = evidence.last_increase_s("gir_placements_total", labels, after_s=0.0, until_s=fault_s)
        shown = "none after the fault" if last is None else f"{last - fault_s:.2f} s after the fault"
        if before is None:
            shown = "the victim had no work before the fault either"
        kept = before is not None and (last is None or last - fault_s <= bound)
        return Verdict("last placement on the victim", f"<= {bound:.2f} s", shown, kept)

    return judge


def waiters_moved_within(bound_s: float) -> Promise:
    """Requests under way when the fault struck, without a token yet, are answered within `bound_s` of it."""

    def judge(evidence: Evidence) -> Verdict:
        bound = bound_s * evidence.facts.scale + TOLERANCE_S
        fault_s = evidence.at("fault")
        waiting = [
            r
            for r in evidence.experiment
            if r.sent_s <= fault_s + bound and r.end_s > fault_s and (r.first_token_s or r.end_s) > fault_s and r.stream
        ]
        late = [(r.first_token_s or r.end_s) - max(fault_s, r.sent_s) for r in waiting]
        shown = f"{len(waiting)} waiting, slowest first token {max(late, default=0.0):.2f} s after the fault"
        return Verdict(
            "waiting requests find another cluster", f"<= {bound:.2f} s", shown, max(late, default=0) <= bound
        )

    return judge


def attempts_bounded(evidence: Evidence) -> Verdict:
    """Invariant I11: the fleet makes at most 1.1 attempts for each request, and a few."""
    attempts, requests = evidence.increase("gir_attempts_total"), len(evidence.records)
    limit = 1.1 * requests + 10
    return Verdict("attempts", f"<= {limit:.0f}", f"{attempts:.0f} for {requests} requests", attempts <= limit)


def every_request_has_one_end(evidence: Evidence) -> Verdict:
    """Invariant I1: the routers count exactly as many ended requests as clients sent."""
    counted, sent = evidence.increase("gir_requests_total"), len(evidence.records)
    return Verdict("requests counted by outcome", str(sent), f"{counted:.0f}", counted == sent)


def nothing_leaks(evidence: Evidence) -> Verdict:
    """Invariant I2: when all is quiet, every gauge of work is zero."""
    names = ("gir_requests_in_flight", "gir_streams_open", "gir_queue_requests")
    left = {name: evidence.total(evidence.scrapes[-1], name) for name in names}
    shown = ", ".join(f"{name} {value:g}" for name, value in left.items() if value) or "0"
    return Verdict("work left when all is quiet", "0", shown, not any(left.values()))


def tokens_settled_exactly(evidence: Evidence) -> Verdict:
    """Invariant I3: the tokens settled are the tokens that clients got."""
    settled = evidence.increase("gir_tokens_total", {"kind": "completion"})
    got = sum(record.tokens for record in evidence.records)
    return Verdict("completion tokens settled", f"{got} (delivered)", f"{settled:.0f}", settled == got)


def failover_is_counted(evidence: Evidence) -> Verdict:
    """An operator can see it: a counter of failovers or of broken streams moved."""
    families = ("gir_failovers_total", "gir_streams_truncated_total", "gir_cluster_events_total")
    moved = {name: evidence.increase(name) for name in families}
    shown = ", ".join(f"{name} +{value:.0f}" for name, value in moved.items())
    return Verdict("the fault is visible in the metrics", "some counter moved", shown, any(moved.values()))


def control_unmoved(evidence: Evidence) -> Verdict:
    """The group beside the experiment is as fast as before: p99 within 10 %, or within the tolerance."""
    before = _totals([r for r in evidence.control if r.end_s <= evidence.at("fault")])
    during = _totals([r for r in evidence.control if evidence.at("fault") <= r.sent_s <= evidence.at("heal")])
    was, is_ = percentile(before, 0.99), percentile(during, 0.99)
    failed = sum(not r.ok for r in evidence.control)
    if was is None or is_ is None:
        return Verdict("control group", "p99 unmoved", "no control requests", False)
    limit = max(1.1 * was, was + TOLERANCE_S)
    shown = f"{is_:.2f} s (before: {was:.2f} s), {failed} failed"
    return Verdict("control group's p99", f"<= {limit:.2f} s, 0 failed", shown, is_ <= limit and not failed)


ALWAYS: tuple[Promise, ...] = (
    steady_state,
    no_lies,
    attempts_bounded,
    every_request_has_one_end,
    nothing_leaks,
    control_unmoved,
)
"""Promises of every drill."""


def judge_all(promises: Sequence[Promise], evidence: Evidence) -> list[Verdict]:
    """Every verdict; a drill that was broken off, or aimed at nothing, keeps no promise."""
    verdicts = [promise(evidence) for promise in promises]
    if evidence.facts.stopped:
        verdicts.insert(0, Verdict("the drill ran to its end", "yes", evidence.facts.stopped, False))
    return verdicts


def _last_chunk_s(record: Record) -> float:
    return record.sent_s + (record.chunk_ms[-1] / 1e3 if record.chunk_ms else 0.0)


def _totals(records: Sequence[Record]) -> list[float]:
    return [record.end_s - record.sent_s for record in records if record.ok]
