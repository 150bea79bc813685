"""Why a cluster may not serve a request. One reason each: the first filter that fails, in the order below.

The fast path (`gir.place.roster.lasting`, `Moment.admits`) answers the same questions with yes or no; a property test
holds the two together.
"""

import msgspec

from gir.model.cluster import ClusterState, ClusterStatus, ClusterView, Intent
from gir.model.decision import Removed
from gir.model.ids import ClusterId
from gir.model.request import Criticality, InferenceRequest
from gir.place.roster import Kind, PolicyIndex, Roster, Row

_POLICY_FILTERS = frozenset({"residency", "tenant", "tier"})
"""Filters that express what is allowed rather than what is possible now."""


class Moment(msgspec.Struct, frozen=True):
    """What the filters look at that differs from request to request."""

    now_s: float
    tokens: int
    """Prompt estimate plus the client's own cap on output."""
    tried: frozenset[ClusterId]
    pinned: str | None

    def admits(self, row: Row) -> bool:
        """Whether `row` may take this request now."""
        return (
            row.backoff_until_s <= self.now_s
            and self.tokens <= row.context_max
            and row.cluster not in self.tried
            and (self.pinned is None or row.cluster == self.pinned)
        )


def moment_of(request: InferenceRequest, now_s: float, tried: frozenset[ClusterId]) -> Moment:
    """The moment of `request`."""
    return Moment(
        now_s, request.prompt_tokens_estimate + (request.output_tokens_max or 0), tried, request.cluster_pinned
    )


def candidates(roster: Roster, moment: Moment) -> tuple[list[Row], str]:
    """Rows that pass every filter now, and why they are a last resort ('' when they are not)."""
    rows = roster.open
    plain = (
        moment.tokens <= roster.context_min
        and roster.backoff_until_s <= moment.now_s
        and not moment.tried
        and moment.pinned is None
    )
    if not plain:
        rows = [row for row in rows if moment.admits(row)]
    if rows:
        if moment.pinned is not None:
            return rows, "pinned"
        return rows, "fail_open" if roster.view.fail_open else ""
    rows = [row for row in roster.suspects if moment.admits(row)]
    if rows:
        return rows, "last_resort"
    rows = _widest(roster.open, moment) or _widest(roster.suspects, moment)
    return rows, "longest_context" if rows else ""


def _widest(rows: list[Row], moment: Moment) -> list[Row]:
    """Those with the longest context, when the prompt is too long for all that the request may go to.

    The prompt's length is an estimate. When it seems to fit nowhere, the longest context is left to judge: an engine
    refuses with the true count, and no client is told to come back later for something that will never fit.
    """
    if moment.pinned is not None:
        rows = [row for row in rows if row.cluster == moment.pinned]
    widest = max((row.context_max for row in rows), default=0)
    anyhow = msgspec.structs.replace(moment, tokens=0)
    return [row for row in rows if row.context_max == widest and anyhow.admits(row)]


def removed(kind: Kind, index: PolicyIndex, view: ClusterView, moment: Moment) -> tuple[Removed, ...]:
    """Every cluster of the view that may not serve, with the first filter that says so."""
    out = []
    for state in view.clusters:
        if moment.pinned is not None and state.id != moment.pinned:
            reason: tuple[str, str] | None = ("pin", f"the request is pinned to {moment.pinned}")
        else:
            reason = lasting_reason(state, kind, index, view) or moment_reason(state, kind, view, moment)
        if reason is not None:
            out.append(Removed(cluster=state.id, filter=reason[0], detail=reason[1]))
    return tuple(out)


def lasting_reason(state: ClusterState, kind: Kind, index: PolicyIndex, view: ClusterView) -> tuple[str, str] | None:
    """Filter and detail that take a cluster out for a whole kind of request; None when it passes them all."""
    pool = state.pools.get(view.base_of.get(kind.model, kind.model))
    if pool is None or not (
        kind.model == pool.model or kind.model in pool.adapters_resident or kind.model in pool.adapters_loadable
    ):
        return "model", f"does not serve {kind.model} and cannot load it"
    if kind.regions is not None and state.region not in kind.regions:
        return (
            "residency",
            f"Region {state.region} is not among the allowed {', '.join(sorted(kind.regions)) or 'none'}",
        )
    own = index.clusters.get(state.id)
    if kind.tenant is not None and own is not None and own.tenants is not None and kind.tenant not in own.tenants:
        return "tenant", f"reserved for {', '.join(own.tenants) or 'nobody'}; the request is of {kind.tenant}"
    tier = index.tiers.get(index.tier_of(state))
    if tier is not None and kind.criticality < tier.lowest:
        return (
            "tier",
            f"tier {tier.name} takes {tier.criticality_min} and above; the request is {kind.criticality.label}",
        )
    if state.intent is not Intent.SERVE:
        return "intent", f"set to {state.intent.value} by an operator"
    if not view.fail_open and (state.status is ClusterStatus.DEAD or state.status is ClusterStatus.UNKNOWN):
        return "state", _because(state)
    if state.weight <= 0.0:
        return "weight", f"weight is 0: {_because(state)}"
    if pool.slots_total <= 0:
        return "capacity", f"no slots: {pool.pods_ready} pods ready, {pool.pods_warming} warming"
    return None


def moment_reason(state: ClusterState, kind: Kind, view: ClusterView, moment: Moment) -> tuple[str, str] | None:
    """Filter and detail that take a cluster out for this one request; None when it passes."""
    if state.id in moment.tried:
        return "tried", "an attempt of this request was already made here"
    pool = state.pools[view.base_of.get(kind.model, kind.model)]
    if pool.context_tokens_max is not None and moment.tokens > pool.context_tokens_max:
        return "context", f"needs about {moment.tokens} tokens of context, has {pool.context_tokens_max}"
    backoff_until_s = max(state.backoff_until_s, state.refusing.get(pool.model, 0.0))
    if backoff_until_s > moment.now_s:
        return "backoff", f"asked for less work; back in {backoff_until_s - moment.now_s:.1f} s"
    return None


def forbids(removed_now: tuple[Removed, ...], pinned: str | None) -> bool:
    """Whether waiting cannot help, because what stands in the way is not allowed rather than not possible now."""
    if pinned is not None:
        own = next((each for each in removed_now if each.cluster == pinned), None)
        return own is None or own.filter in _POLICY_FILTERS or own.filter == "model"
    serving = [each for each in removed_now if each.filter != "model"]
    return bool(serving) and all(each.filter in _POLICY_FILTERS for each in serving)


def unmet(removed_now: tuple[Removed, ...], criticality: Criticality) -> str:
    """One clause on why nobody is left, from the filters that removed them."""
    counts: dict[str, int] = {}
    for each in removed_now:
        counts[each.filter] = counts.get(each.filter, 0) + 1
    listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"no cluster can take a {criticality.label} request now (removed by {listed})" if listed else "no clusters"


def _because(state: ClusterState) -> str:
    return f"{state.status.value}: {state.reason}" if state.reason else state.status.value
