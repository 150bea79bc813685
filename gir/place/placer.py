"""Placement: which clusters may serve a request, in which order, and why.

`Placer` is the one facade: it owns what this replica remembers (own dispatches, prefix affinity, sessions, the tiers'
hysteresis) and decides by pure rules over a `ClusterView` and a `PolicySnapshot`. Time and chance come in as arguments,
so the same sequence of calls always gives the same answers.
"""

from typing import Any

from gir.model.cluster import ClusterView
from gir.model.decision import Placement
from gir.model.ids import ClusterId
from gir.model.policy import PlacementPolicy, PolicySnapshot
from gir.model.request import Criticality, InferenceRequest, Usage
from gir.place.affinity import AffinityIndex, Trust
from gir.place.choose import order
from gir.place.decisions import Decision, Decisions, nobody
from gir.place.draw import draw_tier, holding_tier, tier_loads
from gir.place.filters import candidates, moment_of
from gir.place.home import Homes
from gir.place.loads import Dispatch, Loads
from gir.place.rendezvous import key_of
from gir.place.roster import Kind, PolicyIndex, Roster, Row, build, follow
from gir.place.score import Mark, credit_cached, mark
from gir.place.sessions import Sessions
from gir.place.shortlist import SCORED_MAX, shortlist
from gir.place.tiers import TierMemory

_KINDS_MAX = 512
_SESSIONS_MAX = 100_000
_DECISIONS_MAX = 256
"""Enough to look a request up a moment later; a longer ring only washes the processor's cache out."""
_LEDGERS_MIN = 64
_NONE_TRIED: frozenset[ClusterId] = frozenset()


class Placer:
    """Ranks clusters for requests and learns from what becomes of them."""

    __slots__ = ("_asked", "_asked_roster", "_before", "_homes", "_index", "_memory", "_rosters", "_sweep_at", "_view",
                 "affinity", "decisions", "loads", "sessions", "trust")  # fmt: skip

    def __init__(self, *, affinity_blocks_max: int = 200_000, decisions_max: int = _DECISIONS_MAX) -> None:
        self.loads = Loads()
        self.affinity = AffinityIndex(affinity_blocks_max)
        self.sessions = Sessions(_SESSIONS_MAX)
        self.trust: dict[ClusterId, Trust] = {}
        self.decisions = Decisions(decisions_max)
        self._homes = Homes()
        self._index = PolicyIndex(PolicySnapshot())
        self._view = ClusterView()
        self._rosters: dict[Kind, Roster] = {}
        self._before = (self._index, self._rosters)
        """The policy before, with its rosters: requests that began under it are still asking."""
        self._sweep_at = _LEDGERS_MIN
        """Ledgers at which those of clusters that left are looked for."""
        self._memory: dict[Kind, TierMemory] = {}
        self._asked: InferenceRequest | None = None
        """Request of `_asked_roster`: flow control asks for its room, and at once it is placed."""
        self._asked_roster: Roster | None = None

    def plan(
        self,
        request: InferenceRequest,
        view: ClusterView,
        policy: PolicySnapshot,
        *,
        now_s: float,
        draw: float,
        tried: frozenset[ClusterId] = _NONE_TRIED,
        explain: bool = False,
        canary: str = "",
    ) -> Placement:
        """Rank the clusters that may serve `request` now.

        `draw` is one random number in [0, 1); every choice by chance in this decision derives from it. `tried` are
        clusters this request has already been sent to. With `explain` nothing is remembered and the answer carries
        every term, filter and tier; without, the decision is kept and `decisions.of(request_id)` explains it later.
        """
        roster = self._roster(request, view, policy)
        moment = moment_of(request, now_s, tried)
        rows, fallback = candidates(roster, moment)
        decision = Decision(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens_estimate,
            roster=roster,
            view=view,
            marks=[],
            moment=moment,
            draw=draw,
            reason=fallback,
            drawn=0,
            canary=canary,
        )
        if request.hops >= roster.rules.hops_max:
            decision.reason = f"loop: the request has crossed {request.hops} routers"
            rows = []
        if rows:
            self._decide(decision, request, rows, advance=not explain and not tried and request.cluster_pinned is None)
        if explain:
            return decision.full()
        self.decisions.keep(decision)
        return decision.brief() if rows else nobody(decision)

    def slots(
        self, request: InferenceRequest, view: ClusterView, policy: PolicySnapshot, *, now_s: float
    ) -> tuple[int, int]:
        """Slots in all and predicted free over the clusters that may serve `request` now; (0, 0) if there is none."""
        rows, _ = candidates(self._roster(request, view, policy), moment_of(request, now_s, _NONE_TRIED))
        total, free = 0, 0.0
        for row in rows:
            total += row.slots_total
            room = row.slots_free - row.held - row.ledger.delta
            if room > 0.0:
                free += room
        return total, int(free)

    def elsewhere(
        self,
        request: InferenceRequest,
        view: ClusterView,
        policy: PolicySnapshot,
        *,
        now_s: float,
        tried: frozenset[ClusterId],
    ) -> bool:
        """Whether a cluster in good health that is not among `tried` may serve `request` now."""
        roster, moment = self._roster(request, view, policy), moment_of(request, now_s, tried)
        return any(moment.admits(row) and not row.probation for row in roster.open)

    def dispatched(self, request: InferenceRequest, cluster: ClusterId, now_s: float) -> Dispatch:
        """Count a request that is leaving for `cluster` now, and remember what prefix and session it takes there."""
        base = self._view.base_of.get(request.model, request.model)
        hashes = request.prefix_hashes
        blocks = self.affinity.match(hashes).get(cluster, 0) if hashes else 0
        dispatch = Dispatch(
            cluster=cluster,
            model=base,
            ledger=self.loads.of(cluster, base),
            at_s=now_s,
            prompt_tokens=request.prompt_tokens_estimate,
            cached_tokens=self._believed(cluster, blocks, request),
            stream=request.stream,
            hashes=hashes,
            blocks_known=blocks,
        )
        dispatch.ledger.add(dispatch)
        self.affinity.learn(cluster, hashes)
        if request.session_key:
            self.sessions.put(_session(request), cluster)
        return dispatch

    def first_token(self, dispatch: Dispatch, now_s: float) -> None:  # noqa: ARG002 (one shape for all three events)
        """The request's prefill is over."""
        dispatch.ledger.first_token(dispatch)

    def finished(self, dispatch: Dispatch, *, now_s: float, usage: Usage | None, ok: bool) -> None:
        """The request ended, whichever way; calling it twice changes nothing."""
        if not (ok or dispatch.first_seen or dispatch.done) and dispatch.hashes:
            self.affinity.unlearn(dispatch.cluster, dispatch.hashes, beyond=dispatch.blocks_known)
        if dispatch.ledger.finish(dispatch, now_s) and ok and usage is not None and not usage.estimated:
            trust = self.trust.get(dispatch.cluster)
            if trust is None:
                trust = self.trust[dispatch.cluster] = Trust()
            trust.observe(dispatch.predicted_tokens, usage.cached_tokens)

    def status(self) -> dict[str, Any]:
        """What this replica remembers, JSON-able: affinity, trust in predictions, own work and spills."""
        names = sorted({*self.trust, *(state.id for state in self._view.clusters)})
        return {
            "affinity": {
                "blocks": len(self.affinity),
                "blocks_max": self.affinity.blocks_max,
                "sessions": len(self.sessions),
            },
            "clusters": [
                {
                    "cluster": name,
                    "in_flight": self.loads.open(name),
                    "cache_trust": self.trust[name].value if name in self.trust else None,
                    "cache_divergence": self.trust[name].divergence if name in self.trust else None,
                    "cache_samples": self.trust[name].samples if name in self.trust else 0,
                }
                for name in names
            ],
            "spilled": [
                {"model": kind.model, "criticality": kind.criticality.label, "tiers": memory.spilled()}
                for kind, memory in self._memory.items()
            ],
        }

    def tier_shares(self) -> dict[tuple[str, str], float]:
        """Share of each model's Standard traffic that each tier takes, as last decided: (model, tier) -> 0 to 1."""
        return {
            (kind.model, tier): share
            for kind, memory in self._memory.items()
            if kind.criticality is Criticality.STANDARD
            for tier, share in memory.last.items()
        }

    def _decide(self, decision: Decision, request: InferenceRequest, rows: list[Row], *, advance: bool) -> None:
        """Draw a tier, score the candidates and put them in order.

        `advance` is False when the candidates are not all there are (a retry, a pin, a question): what is scarce for
        them must not be remembered as pressure on the tier.
        """
        roster, rules = decision.roster, decision.roster.rules
        cached = self._cached_tokens(request)
        session = self.sessions.get(_session(request)) if request.session_key else None
        saturated = False
        if len(roster.tiers) > 1:
            decision.loads = tier_loads(rows, roster, request.criticality, decision.moment.now_s)
            decision.shares = self._tier_memory(roster.kind).shares(
                decision.loads,
                now_s=decision.moment.now_s,
                return_within_s=rules.return_within_s,
                advance=advance,
            )
            decision.held = holding_tier(roster, cached, session, request.prompt_tokens_estimate)
            decision.drawn, saturated = draw_tier(decision.shares, decision.draw, decision.held)
        if len(rows) > SCORED_MAX:
            rows = shortlist(roster, rows, cached.keys() | ({session} if session else set()))
        tokens, now_s = request.prompt_tokens_estimate, decision.moment.now_s
        marks = [mark(row, tokens, rules, now_s) for row in rows]
        if cached:
            credit_cached(marks, cached, rules)
        if session is not None:
            _credit_session(marks, session, rules)
        else:
            deepest = max(cached.values()) if cached else 0.0
            self._homes.credit(marks, request, roster, None if saturated else decision.drawn, deepest)
        if saturated or len(roster.tiers) == 1:
            decision.marks = order(marks, draw=decision.draw, tie_share=rules.tie_share, adapter=roster.adapter)
            decision.drawn = decision.marks[0].row.index
        else:
            self._by_tier(decision, marks)
        if not decision.reason:
            decision.reason = _reason(decision, saturated)

    def _by_tier(self, decision: Decision, marks: list[Mark]) -> None:
        """Order each tier by itself: the drawn one first, then the others from the cheapest."""
        roster = decision.roster
        groups: list[list[Mark]] = [[] for _ in roster.tiers]
        for each in marks:
            groups[each.row.index].append(each)
        for position, group in enumerate(groups):
            if group:
                groups[position] = order(
                    group, draw=decision.draw, tie_share=roster.rules.tie_share, adapter=roster.adapter
                )
        if not groups[decision.drawn]:
            decision.drawn = next(position for position, group in enumerate(groups) if group)
        objective_s = roster.objective_s
        if objective_s is not None and roster.kind.criticality >= Criticality.CRITICAL:
            best_s = [group[0].expected_s if group else float("inf") for group in groups]
            if best_s[decision.drawn] > objective_s and (there := _meets(best_s, objective_s)) != decision.drawn:
                decision.drawn, decision.reason = there, "objective"
        first = groups[decision.drawn]
        decision.marks = first + [each for group in groups if group is not first for each in group]

    def _cached_tokens(self, request: InferenceRequest) -> dict[ClusterId, float]:
        """Prompt tokens each cluster is believed to hold in its prefix cache."""
        if not request.prefix_hashes:
            return {}
        matched = self.affinity.match(request.prefix_hashes)
        return {cluster: self._believed(cluster, blocks, request) for cluster, blocks in matched.items()}

    def _believed(self, cluster: ClusterId, blocks: int, request: InferenceRequest) -> float:
        """Prompt tokens in `blocks` blocks, as far as predictions for the cluster have come true."""
        if not blocks:
            return 0.0
        trust = self.trust.get(cluster)
        tokens = blocks * request.prompt_tokens_estimate / len(request.prefix_hashes)
        return tokens if trust is None else tokens * trust.value

    def _tier_memory(self, kind: Kind) -> TierMemory:
        memory = self._memory.get(kind)
        if memory is None:
            memory = self._memory[kind] = TierMemory()
        return memory

    def _roster(self, request: InferenceRequest, view: ClusterView, policy: PolicySnapshot) -> Roster:
        """The roster of the request's kind; kept for the next question, which is about the same request as a rule."""
        roster = self._asked_roster
        if request is self._asked and roster is not None and roster.view is view and roster.index.policy is policy:
            return roster
        self._asked, self._asked_roster = request, self._compiled(request, view, policy)
        return self._asked_roster

    def _compiled(self, request: InferenceRequest, view: ClusterView, policy: PolicySnapshot) -> Roster:
        """The roster of the request's kind, compiled again when the view or the policy is another."""
        if policy is not self._index.policy:
            self._policy_changed(policy)
        if view is not self._view:
            self._fleet_changed(view)
        kind = self._index.kind_of(request)
        roster = self._rosters.get(kind)
        if (
            roster is not None
            and roster.index is self._index
            and (roster.view is view or follow(roster, view, self.loads))
        ):
            return roster
        if kind.model not in view.by_model:
            return build(kind, self._index, view, self.loads)  # any name a client makes up: not worth remembering
        if roster is None and max(len(self._rosters), len(self._memory)) >= _KINDS_MAX:
            self._rosters.clear()
            self._memory.clear()
        roster = self._rosters[kind] = build(kind, self._index, view, self.loads)
        return roster

    def _policy_changed(self, policy: PolicySnapshot) -> None:
        """Take the policy of whoever asks. An older one costs an exchange, and changes nothing for good."""
        newer = policy.version >= self._index.policy.version
        index, rosters = self._before
        self._before = (self._index, self._rosters)
        self._index, self._rosters = (index, rosters) if index.policy is policy else (PolicyIndex(policy), {})
        if newer and self.affinity.blocks_max != policy.placement.affinity_blocks_max:
            self.affinity = AffinityIndex(policy.placement.affinity_blocks_max)

    def _fleet_changed(self, view: ClusterView) -> None:
        """Take a new view; forget clusters that left."""
        if len(view.clusters) < len(self._view.clusters) or len(self.loads) > self._sweep_at:
            names = frozenset(state.id for state in view.clusters)
            self.loads.forget(names)
            self._sweep_at = max(_LEDGERS_MIN, 2 * len(self.loads))
            for name in self.affinity.clusters():
                if name not in names:
                    self.affinity.forget(name)
            for name in self.trust.keys() - names:
                del self.trust[name]
        self._view = view

    def __repr__(self) -> str:
        return f"<Placer {len(self._rosters)} kinds, {self.affinity!r}, {self.sessions!r}>"


def _credit_session(marks: list[Mark], session: ClusterId, rules: PlacementPolicy) -> None:
    """Lower the score of the cluster the session was last sent to."""
    for each in marks:
        if each.row.cluster == session:
            each.session_s = rules.weights.session * rules.session_bonus_s
            each.score_s -= each.session_s


def _meets(best_s: list[float], objective_s: float) -> int:
    """Cheapest tier whose best candidate meets the objective; the fastest when none does."""
    for position, expected_s in enumerate(best_s):
        if expected_s <= objective_s:
            return position
    return best_s.index(min(best_s))


def _reason(decision: Decision, saturated: bool) -> str:
    """Why the first is first, in one word."""
    marks = decision.marks
    first = marks[0]
    if len(marks) == 1:
        return "only"
    if saturated:
        return "saturated"
    if decision.drawn > 0 and decision.shares and decision.shares[0].share < 1.0:
        return "spill"
    if first.session_s:
        return "session"
    if first.cached_s:
        return "affinity"
    return "cheapest" if decision.shares else "fastest"


def _session(request: InferenceRequest) -> int:
    """Hash that stands for the request's session: its name is not kept."""
    return key_of(f"{request.principal.tenant}\0{request.session_key}\0{request.model}")


__all__ = ["Dispatch", "Placer"]
