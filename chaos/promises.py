"""Promises about failures, each with its figure, judged from evidence alone.

A promise says what was promised and what was measured, side by side, whether kept or not. Bounds in seconds are scaled
with the drill; `TOLERANCE_S` is what timers and scrapes cost on a small shared machine and is not scaled.
"""

import itertools
from collections.abc import Callable, Sequence

import msgspec

from chaos.evidence import Evidence, Scrape
from chaos.history import Record, percentile

TOLERANCE_S = 0.25
ASKED_BY_DRILL = "requests of the drill itself"
WHOLE = 0.99
"""Share from which a cluster counts as fully back."""
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
    shown = ", ".join(f"{name} {sum(r.ok or r.left for r in part)}/{len(part)}" for name, part in parts.items())
    kept = all(len(part) >= SAMPLES_MIN and all(r.ok or r.left for r in part) for part in parts.values())
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
    failed = [r for r in evidence.experiment if not r.ok and not r.left and r.ended != "skipped"]
    return Verdict("failed requests", "0", f"{len(failed)} of {len(evidence.experiment)}", not failed)


def no_lies(evidence: Evidence) -> Verdict:
    """Invariant I4: what was called complete was complete, and what broke said so."""
    lies = [r for r in evidence.records if r.lie]
    return Verdict("streams called complete that were not, or cut in silence", "0", str(len(lies)), not lies)


def broken_streams_say_so(bound_s: float, *, at_least: int = 1, scaled: bool = True) -> Promise:
    """Each stream that breaks after its first token ends with the error event within `bound_s` of its last chunk."""

    def judge(evidence: Evidence) -> Verdict:
        bound = bound_s * (evidence.facts.scale if scaled else 1.0) + TOLERANCE_S
        broken = [r for r in evidence.experiment if r.failed_after_token]
        silent = [r for r in broken if not r.error or r.done]
        waits = [r.end_s - max(_last_chunk_s(r), evidence.at("fault")) for r in broken]
        worst = max(waits, default=0.0)
        shown = f"{len(broken)} broken, {len(silent)} without error event, slowest {worst:.2f} s"
        kept = len(broken) >= at_least and not silent and worst <= bound
        return Verdict("broken streams end with an error event", f"all, within {bound:.2f} s", shown, kept)

    return judge


def last_placement_within(bound_s: float) -> Promise:
    """After the fault the victims get no new work beyond `bound_s`, by the routers' own counters."""

    def judge(evidence: Evidence) -> Verdict:
        bound = bound_s * evidence.facts.scale + TOLERANCE_S
        fault_s, heal_s = evidence.at("fault"), evidence.at("heal")
        last = evidence.last_placement_s(after_s=fault_s, until_s=heal_s)
        before = evidence.last_placement_s(after_s=0.0, until_s=fault_s)
        shown = "none after the fault" if last is None else f"{last - fault_s:.2f} s after the fault"
        if before is None:
            shown = "the victims had no work before the fault either"
        kept = before is not None and (last is None or last - fault_s <= bound)
        return Verdict("last placement on the victims", f"<= {bound:.2f} s", shown, kept)

    return judge


def waiters_moved_within(bound_s: float, *, scaled: bool = True) -> Promise:
    """Requests under way when the fault struck, without a token yet, are answered within `bound_s` of it."""

    def judge(evidence: Evidence) -> Verdict:
        bound = bound_s * (evidence.facts.scale if scaled else 1.0) + TOLERANCE_S
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
    """Invariant I1: the routers count exactly as many ended requests as clients sent to one that took them."""
    sent = len([record for record in evidence.records if record.ended != "refused"])
    sent += int(evidence.facts.figures.get(ASKED_BY_DRILL, 0))
    logged = evidence.facts.router_ended
    counted = evidence.facts.requests_logged if logged else evidence.increase("gir_requests_total")
    return Verdict("requests counted by outcome", str(sent), f"{counted:.0f}", counted == sent)


def nothing_leaks(evidence: Evidence) -> Verdict:
    """Invariant I2: when all is quiet, every gauge of work is zero."""
    names = ("gir_requests_in_flight", "gir_queue_requests")
    left = {name: evidence.total(evidence.scrapes[-1], name) for name in names}
    shown = ", ".join(f"{name} {value:g}" for name, value in left.items() if value) or "0"
    return Verdict("work left when all is quiet", "0", shown, not any(left.values()))


def tokens_settled_exactly(evidence: Evidence) -> Verdict:
    """Invariant I3: the tokens settled are the tokens that clients got."""
    settled = evidence.increase("gir_tokens_total", {"kind": "completion"})
    got = sum(record.tokens for record in evidence.records)
    return Verdict("completion tokens settled", f"{got} (delivered)", f"{settled:.0f}", settled == got)


def engines_stop_for_those_who_leave(evidence: Evidence) -> Verdict:
    """F35: nobody generates for a client that has gone, and what it got is what is settled."""
    left = sum(r.left for r in evidence.experiment)
    engines = evidence.facts.engines
    aborted, active = sum(e.aborted for e in engines.values()), sum(e.active for e in engines.values())
    shown = f"{left} left, {aborted} generations stopped, {active} still running"
    kept = left >= SAMPLES_MIN and not active and 0.5 * left <= aborted <= left
    return Verdict("engines stop for clients that leave", "all stopped", shown, kept)


def streams_are_continued(evidence: Evidence) -> Verdict:
    """Some stream broke and was continued elsewhere; that it was gapless is `no_lies`."""
    resumed = evidence.increase("gir_streams_resumed_total", {"result": "ok"})
    total = evidence.increase("gir_streams_resumed_total")
    return Verdict("streams continued elsewhere", ">= 1", f"{resumed:.0f} of {total:.0f} tries", resumed >= 1)


def returns_gently(share_max: float, first_s: float) -> Promise:
    """In the first `first_s` after its return a victim gets at most `share_max` of the traffic."""

    def judge(evidence: Evidence) -> Verdict:
        back_s = next(
            (b.at_s for a, b in itertools.pairwise(evidence.scrapes)
             if a.at_s > evidence.at("heal") and evidence.placements(b) > evidence.placements(a)),
            float("inf"),
        )  # fmt: skip
        until_s = back_s + first_s * evidence.facts.scale
        sent = [r for r in evidence.experiment if back_s <= r.sent_s <= until_s and r.cluster]
        share = sum(r.cluster in evidence.facts.victims for r in sent) / max(1, len(sent))
        kept = len(sent) >= SAMPLES_MIN and share <= share_max
        return Verdict(
            f"victims' share in the first {first_s:g} s of their return", f"<= {share_max:.0%}",
            f"{share:.0%} of {len(sent)}", kept,
        )  # fmt: skip

    return judge


def comes_back_for_good(within_s: float) -> Promise:
    """From its return on a victim's share only grows, is whole `within_s` after the heal, and is not lost again."""

    def judge(evidence: Evidence) -> Verdict:
        bound = within_s * evidence.facts.scale + TOLERANCE_S
        since = [s for s in evidence.scrapes if s.at_s >= evidence.at("recovered")]
        shares = [min(_weights(s, evidence), default=0.0) for s in since]
        whole_s = next((s.at_s for s, share in zip(since, shares, strict=True) if share > WHOLE), float("inf"))
        took_s = whole_s - evidence.at("heal")
        fell = sum(later < earlier for earlier, later in itertools.pairwise(shares))
        shown = f"whole after {took_s:.1f} s, fell {fell} times" if shares else "no evidence"
        kept = took_s <= bound and not fell
        return Verdict("a returning victim's share", f"only grows, whole within {bound:.1f} s", shown, kept)

    return judge


def _weights(scrape: Scrape, evidence: Evidence) -> list[float]:
    return [evidence.total(scrape, "gir_cluster_weight_ratio", {"cluster": name}) for name in evidence.facts.victims]


def settles_down(changes_max: float, *, since: str) -> Promise:
    """From a mark to the heal, at most `changes_max` changes of the victims' status a minute."""

    def judge(evidence: Evidence) -> Verdict:
        inside = [s for s in evidence.scrapes if evidence.at(since) <= s.at_s <= evidence.at("heal")]
        if len(inside) < SAMPLES_MIN:
            return Verdict("status changes a minute", f"<= {changes_max:g}", "no evidence", False)
        counts = [
            sum(
                evidence.total(scrape, "gir_cluster_events_total", {"cluster": name, "kind": "status"})
                for name in evidence.facts.victims
            )
            for scrape in (inside[0], inside[-1])
        ]
        minutes = (inside[-1].at_s - inside[0].at_s) / 60.0 / evidence.facts.scale
        rate = (counts[1] - counts[0]) / minutes
        shown = f"{rate:.1f} ({counts[1] - counts[0]:.0f} in {minutes:.1f} min)"
        return Verdict(
            "status changes a minute, once it flaps", f"<= {changes_max:g}", shown, rate <= changes_max + 1 / minutes
        )

    return judge


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


def victims_share_at_most(share_max: float, *, after_s: float, within_s: float, since: str = "fault") -> Promise:
    """Of the requests sent from `after_s` to `within_s` past a mark, the victims answer at most `share_max`."""

    def judge(evidence: Evidence) -> Verdict:
        scale, mark_s = evidence.facts.scale, evidence.at(since)
        start_s, end_s = mark_s + after_s * scale, mark_s + within_s * scale
        answered = [r for r in evidence.experiment if start_s <= r.sent_s <= end_s and r.cluster]
        share = sum(r.cluster in evidence.facts.victims for r in answered) / max(1, len(answered))
        name = f"victims' share from {after_s:g} s to {within_s:g} s after the {since} mark"
        kept = len(answered) >= SAMPLES_MIN and share <= share_max
        return Verdict(name, f"<= {share_max:.0%}", f"{share:.0%} of {len(answered)}", kept)

    return judge


def never_called(*statuses: str, whom: str = "victims") -> Promise:
    """Between fault and heal no cluster (of the victims, or of all) is given one of these statuses."""

    def judge(evidence: Evidence) -> Verdict:
        seen: set[str] = set()
        for scrape in evidence.scrapes:
            if evidence.at("fault") < scrape.at_s <= evidence.at("end"):
                for status in statuses:
                    names = evidence.facts.victims if whom == "victims" else ("",)
                    for name in names:
                        labels = {"status": status} | ({"cluster": name} if name else {})
                        if evidence.total(scrape, "gir_cluster_status", labels):
                            seen.add(status)
        shown = ", ".join(sorted(seen)) or "never"
        return Verdict(f"clusters called {' or '.join(statuses)}", "never", shown, not seen)

    return judge


def refusals_are_quick_and_honest(bound_s: float) -> Promise:
    """While nobody can serve, clients get 503 with Retry-After, p99 within `bound_s` (not scaled)."""

    def judge(evidence: Evidence) -> Verdict:
        start_s = evidence.at("fault") + TOLERANCE_S
        refused = [r for r in evidence.experiment if start_s <= r.sent_s <= evidence.at("heal") and not r.ok]
        rude = [r for r in refused if r.status not in (429, 503) or not r.retry_after.isdigit() or r.retry_after == "0"]
        p99 = percentile([r.end_s - r.sent_s for r in refused], 0.99) or 0.0
        shown = f"{len(refused)} refused, {len(rude)} without 503 and Retry-After, p99 {p99 * 1e3:.0f} ms"
        kept = len(refused) >= SAMPLES_MIN and not rude and p99 <= bound_s
        return Verdict("refusals", f"503 with Retry-After, p99 <= {bound_s * 1e3:.0f} ms", shown, kept)

    return judge


def serving_again_within(bound_s: float, *, since: str = "heal", scaled: bool = True) -> Promise:
    """After the fault is mended, a request gets its first token within `bound_s`, and none fails from then on.

    Not `scaled` where whole seconds of `Retry-After` are waited for, whatever the scale.
    """

    def judge(evidence: Evidence) -> Verdict:
        bound = bound_s * (evidence.facts.scale if scaled else 1.0) + TOLERANCE_S
        healed_s = evidence.at(since)
        after = [r for r in evidence.experiment if r.sent_s >= healed_s]
        first = min((r.first_token_s - healed_s for r in after if r.first_token_s is not None), default=None)
        failed = sum(not r.ok for r in after if r.sent_s >= healed_s + bound)
        shown = "never" if first is None else f"first token {first:.2f} s after, {failed} failures later"
        return Verdict("serving again", f"<= {bound:.2f} s", shown, first is not None and first <= bound and not failed)

    return judge


def as_fast_as_before_within(bound_s: float, *, since: str = "heal") -> Promise:
    """`bound_s` after the fault is mended (not scaled), requests take as long as before it: p95 within a half."""

    def judge(evidence: Evidence) -> Verdict:
        from_s = evidence.at(since) + bound_s
        before = percentile(_totals([r for r in evidence.experiment if r.end_s <= evidence.at("fault")]), 0.95)
        after = percentile(_totals([r for r in evidence.experiment if r.sent_s >= from_s]), 0.95)
        if before is None or after is None:
            return Verdict("as fast as before", "p95 within a half", "no requests to compare", False)
        limit = max(1.5 * before, before + TOLERANCE_S)
        return Verdict(
            f"p95 from {bound_s:g} s after the {since} mark", f"<= {limit:.2f} s", f"{after:.2f} s", after <= limit
        )

    return judge


def others_unmoved(evidence: Evidence) -> Verdict:
    """The experiment's own, well-behaved clients are as fast as before: p99 within 10 %, or within the tolerance."""
    before = percentile(_totals([r for r in evidence.experiment if r.end_s <= evidence.at("fault")]), 0.99)
    during = [r for r in evidence.experiment if evidence.at("fault") <= r.sent_s <= evidence.at("heal")]
    is_ = percentile(_totals(during), 0.99)
    if before is None or is_ is None or len(during) < SAMPLES_MIN:
        return Verdict("others' p99", "unmoved", "no requests to compare", False)
    limit = max(1.1 * before, before + TOLERANCE_S)
    return Verdict("others' p99", f"<= {limit:.2f} s", f"{is_:.2f} s (before: {before:.2f} s)", is_ <= limit)


ALWAYS: tuple[Promise, ...] = (
    steady_state,
    no_lies,
    attempts_bounded,
    every_request_has_one_end,
    nothing_leaks,
    control_unmoved,
)
"""Promises of every drill whose fault leaves the control group alone."""
EVERYBODY_HURT: tuple[Promise, ...] = (steady_state, no_lies, every_request_has_one_end, nothing_leaks)
"""Promises of a drill that is meant to reach everybody."""

RUDE: tuple[Promise, ...] = (steady_state, no_lies, nothing_leaks)
"""Promises of a drill whose fault is made of requests: those are in no history, so nothing can be counted."""


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
