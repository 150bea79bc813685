"""Decisions as they were made, cheap to keep and complete enough to be told again later."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from gir.model.cluster import ClusterState, ClusterView
from gir.model.decision import Candidate, Placement, Removed, TierView
from gir.model.ids import ModelId, RequestId, TierName
from gir.place.filters import Moment, forbids, removed, unmet
from gir.place.roster import Roster, is_suspect
from gir.place.score import Mark, terms, unknown
from gir.place.tiers import TierLoad, TierShare

RANKED_MAX = 8
"""Candidates listed without an explanation: more than any request may try."""


class Decision(msgspec.Struct, kw_only=True, gc=False):
    """One run of `plan`: what of its inputs an explanation needs, and the numbers it turned on. No prompt, no key."""

    request_id: RequestId
    prompt_tokens: int
    roster: Roster
    view: ClusterView
    """The view it was made under; the roster may have moved on since."""
    marks: list[Mark]
    """In rank order."""
    moment: Moment
    draw: float
    reason: str
    drawn: int
    held: int | None = None
    """Tier that holds the session or the prompt's prefix, which the draw favours."""
    loads: tuple[TierLoad, ...] = ()
    shares: tuple[TierShare, ...] = ()
    canary: str = ""
    notes: tuple[str, ...] = ()

    def brief(self) -> Placement:
        """The placement a request needs: ranked clusters without their terms."""
        roster = self.roster
        tiers = roster.tiers
        marks = self.marks
        names = [TierName(tier.name) for tier in tiers]
        return Placement(
            ranked=tuple([_candidate(mark) for mark in (marks if len(marks) <= RANKED_MAX else marks[:RANKED_MAX])]),
            reason=self.reason,
            tier_shares=tuple([(name, share.share) for name, share in zip(names, self.shares, strict=True)])
            if self.shares
            else ((names[0], 1.0),),
            tier_drawn=names[self.drawn],
            view_version=self.view.version,
            policy_version=roster.index.policy.version,
            canary=self.canary,
            model=roster.kind.model,
            draw=self.draw,
        )

    def full(self) -> Placement:
        """The same with every term, every cluster taken out and the arithmetic of the tiers."""
        roster = self.roster
        rules = roster.rules
        tokens = self.prompt_tokens
        ranked = tuple(
            msgspec.structs.replace(_candidate(mark), terms=terms(mark, rules, tokens), unknown=unknown(mark.row))
            for mark in self.marks
        )
        out = removed(roster.kind, roster.index, self.view, self.moment)
        listed = {each.cluster for each in ranked}
        told = listed.union([each.cluster for each in out])
        passed_over = tuple([_passed_over(state, roster.base) for state in self.view.clusters if state.id not in told])
        plain = self.brief() if ranked else nobody(self)
        return msgspec.structs.replace(
            plain,
            ranked=ranked,
            removed=tuple(each for each in out if each.cluster not in listed) + passed_over,
            tiers=self._tiers(),
            notes=self.notes + _notes(self),
        )

    def _tiers(self) -> tuple[TierView, ...]:
        views = []
        for tier, load, share in zip(self.roster.tiers, self.loads, self.shares, strict=False):
            views.append(
                TierView(
                    tier=TierName(tier.name),
                    price_per_slot_hour=tier.price_per_slot_hour,
                    clusters=sum(1 for row in self.roster.members.values() if row.tier == tier.name),
                    slots_total=load.total,
                    slots_free=load.free,
                    reserve_slots=load.reserve,
                    headroom=share.headroom,
                    trend=share.trend,
                    spill_at=load.spill_at,
                    return_at=load.return_at,
                    spilled=share.spilled,
                    share=share.share,
                )
            )
        return tuple(views)


def nobody(decision: Decision) -> Placement:
    """The placement when no cluster is left: why, whether that is policy or circumstance, and when to come back."""
    roster, now_s = decision.roster, decision.moment.now_s
    out = removed(roster.kind, roster.index, decision.view, decision.moment)
    waits = [
        row.backoff_until_s - now_s
        for row in roster.members.values()
        if row.backoff_until_s > now_s and decision.moment.pinned in (None, row.cluster)
    ]
    return Placement(
        removed=out,
        reason=decision.reason or unmet(out, roster.kind.criticality),
        model_known=roster.kind.model in decision.view.by_model,
        forbidden=forbids(out, decision.moment.pinned),
        retry_after_s=min(waits) if waits else None,
        view_version=decision.view.version,
        policy_version=roster.index.policy.version,
        canary=decision.canary,
        model=roster.kind.model,
        draw=decision.draw,
    )


class Decisions:
    """The last decisions. Each is kept for the price of an append and looked for only when somebody asks."""

    __slots__ = ("_kept", "decisions_max", "keep")

    def __init__(self, decisions_max: int) -> None:
        self.decisions_max = decisions_max
        self._kept: deque[Decision] = deque(maxlen=decisions_max)
        self.keep = self._kept.append
        """Remember a decision; the oldest goes when there are too many."""

    def of(self, request_id: str) -> tuple[Placement, ...]:
        """What was decided for a request, in order: one for each attempt. Empty when it is not (or no longer) known."""
        found = [decision for decision in self._kept if decision.request_id == request_id]
        return tuple(decision.full() for decision in found[:RANKED_MAX])

    def latest(self, count: int) -> list[RequestId]:
        """The newest request ids, newest first."""
        return list(dict.fromkeys(decision.request_id for decision in reversed(self._kept)))[:count]

    def __len__(self) -> int:
        return len(self._kept)


def _passed_over(state: ClusterState, base: ModelId) -> Removed:
    """Why a cluster that no filter takes out is not among the ranked ones."""
    if is_suspect(state, base):
        about = f" ({state.reason})" if state.reason else ""
        return Removed(cluster=state.id, filter="suspect", detail=f"in reserve while others can serve{about}")
    return Removed(cluster=state.id, filter="shortlist", detail="others promise more; not scored in a fleet this large")


def as_json(placement: Placement) -> Mapping[str, Any]:
    """A placement as plain lists and dictionaries."""
    plain: dict[str, Any] = msgspec.to_builtins(placement)
    return plain


def _candidate(mark: Mark) -> Candidate:
    row = mark.row
    state = row.state
    return Candidate(
        cluster=row.cluster,
        url=state.url,
        tier=row.tier,
        score_s=mark.score_s,
        region=state.region,
        probation=row.probation,
        room=mark.room,
        held_back=mark.held_back,
    )


def _notes(decision: Decision) -> tuple[str, ...]:
    """The story in sentences."""
    notes = []
    tiers = decision.roster.tiers
    for tier, load, share in zip(tiers, decision.loads, decision.shares, strict=False):
        verdict = "keeps everything" if share.share >= 1.0 else f"takes {share.share:.0%}"
        notes.append(
            f"tier {tier.name}: {load.free:.0f} of {load.total:.0f} slots predicted free, headroom "
            f"{share.headroom:.0%} (spill below {load.spill_at:.0%}, return above {load.return_at:.0%}): {verdict}"
        )
    if len(tiers) > 1 and decision.marks:
        favoured = f", favouring {tiers[decision.held].name} for what it holds" if decision.held is not None else ""
        notes.append(f"draw {decision.draw:.4f}{favoured} fell to tier {tiers[decision.drawn].name}")
    if decision.canary:
        notes.append(f"model chosen by canary: {decision.canary}")
    return tuple(notes)
