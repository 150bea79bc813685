"""Promises about a new version that is bad: it is gone soon, and who was never drawn to it notices nothing.

Requests on the canary are those of users that the rule draws, sent while the routers give it a share. A request that
failed carries no model in its answer, so users are told apart by the draw; that they were served accordingly is judged.
"""

import msgspec

from chaos.evidence import Evidence, Scrape
from chaos.history import Record, percentile
from chaos.promises import SAMPLES_MIN, TOLERANCE_S, Promise, Verdict

NEVER_S = float("inf")


class Split(msgspec.Struct, frozen=True):
    """A rule that draws some users to a canary."""

    rule: str
    canary: str
    """The canary's model."""
    drawn: frozenset[str]
    """Users who go there."""


def aborted_within(split: Split, bound_s: float, requests_max: int) -> Promise:
    """Nobody is sent to the canary later than `bound_s` (not scaled) after its start, nor once so many requests have
    ended there, whichever is first; and it was the guard that saw to it."""

    def judge(evidence: Evidence) -> Verdict:
        start_s, abort_s = _span(evidence, split)
        sent = _on_canary(evidence, split)
        judged = sum(record.end_s <= abort_s for record in sent)
        late = sum(r.served == split.canary for r in evidence.experiment if r.sent_s > abort_s)
        guards = evidence.increase("gir_canary_aborts_total", {"rule": split.rule})
        promised = f"within {bound_s:g} s and {requests_max} requests, by the guard"
        if abort_s == NEVER_S:
            return Verdict("the canary is aborted", promised, "never" if start_s < NEVER_S else "never begun", False)
        shown = (
            f"after {abort_s - start_s:.1f} s, {judged} requests ended and {len(sent) - judged} under way; "
            f"guards' aborts {guards:.0f}, sent there later {late}"
        )
        in_time = abort_s - start_s <= bound_s + TOLERANCE_S and 0 < judged <= requests_max
        return Verdict("the canary is aborted", promised, shown, in_time and guards == 1 and not late)

    return judge


def stable_users_untouched(split: Split) -> Promise:
    """No user of the stable split fails at any time, nor is slower, nor is served by the canary: p99 within 10 % of
    before, or within the tolerance."""

    def judge(evidence: Evidence) -> Verdict:
        stable = [r for r in evidence.experiment if r.user not in split.drawn and r.ended != "skipped"]
        failed = sum(not r.ok for r in stable)
        strayed = sum(r.served == split.canary for r in stable)
        before = percentile([r.end_s - r.sent_s for r in stable if r.ok and r.end_s <= evidence.at("fault")], 0.99)
        during = [r for r in stable if evidence.at("fault") <= r.sent_s <= evidence.at("heal")]
        is_ = percentile([r.end_s - r.sent_s for r in during if r.ok], 0.99)
        if before is None or is_ is None or len(during) < SAMPLES_MIN:
            return Verdict("users on the stable split", "untouched", "no requests to compare", False)
        limit = max(1.1 * before, before + TOLERANCE_S)
        shown = f"{failed} of {len(stable)} failed, {strayed} strayed, p99 {is_:.2f} s (before: {before:.2f} s)"
        promised = f"0 failed, 0 strayed, p99 <= {limit:.2f} s"
        return Verdict("users on the stable split", promised, shown, not failed and not strayed and is_ <= limit)

    return judge


def canary_failed(split: Split, share_min: float) -> Promise:
    """The fault hit: so many of the canary's requests failed at their first attempt."""

    def judge(evidence: Evidence) -> Verdict:
        ended = _on_canary(evidence, split)
        failed = sum(not r.ok or r.attempts > 1 for r in ended)
        seen = sum(not r.ok for r in ended)
        share = failed / max(1, len(ended))
        shown = f"{failed} of {len(ended)} ({share:.0%}), {seen} of them not healed by another attempt"
        kept = len(ended) >= SAMPLES_MIN and share >= share_min
        return Verdict("the fault hit: canary requests that failed", f">= {share_min:.0%}", shown, kept)

    return judge


def canary_was_slower(split: Split, factor: float) -> Promise:
    """The fault hit: first tokens of the canary's streams took `factor` times as long as others' meanwhile."""

    def judge(evidence: Evidence) -> Verdict:
        start_s, abort_s = _span(evidence, split)
        canary = _first_tokens_s([r for r in _on_canary(evidence, split) if r.served == split.canary])
        stable = _first_tokens_s(
            [r for r in evidence.experiment if r.user not in split.drawn and start_s <= r.sent_s <= abort_s]
        )
        name = "the fault hit: median first token on the canary"
        theirs, others = percentile(canary, 0.5), percentile(stable, 0.5)
        if theirs is None or not others or min(len(canary), len(stable)) < SAMPLES_MIN:
            return Verdict(name, f">= x {factor:g}", "too few streams to compare", False)
        shown = f"{theirs * 1e3:.0f} ms (others: {others * 1e3:.0f} ms), x {theirs / others:.1f} of {len(canary)}"
        return Verdict(name, f">= x {factor:g}", shown, theirs >= factor * others)

    return judge


def _span(evidence: Evidence, split: Split) -> tuple[float, float]:
    """When the canary was first seen to have a share, and when it was first seen to have none again."""
    start_s = next((s.at_s for s in evidence.scrapes if _share(evidence, s, split) > 0.0), NEVER_S)
    after = (s.at_s for s in evidence.scrapes if s.at_s > start_s and not _share(evidence, s, split))
    return start_s, next(after, NEVER_S)


def _share(evidence: Evidence, scrape: Scrape, split: Split) -> float:
    return evidence.total(scrape, "gir_canary_weight_ratio", {"rule": split.rule, "target": split.canary})


def _on_canary(evidence: Evidence, split: Split) -> list[Record]:
    """What drawn users sent while the canary had a share; without those that the stable version answered, which were
    on their way in the moment of its start or end."""
    start_s, abort_s = _span(evidence, split)
    return [
        record
        for record in evidence.experiment
        if record.user in split.drawn
        and start_s <= record.sent_s <= abort_s
        and record.served in ("", split.canary)
        and record.ended != "skipped"
    ]


def _first_tokens_s(records: list[Record]) -> list[float]:
    return [r.first_token_s - r.sent_s for r in records if r.stream and r.first_token_s is not None]
