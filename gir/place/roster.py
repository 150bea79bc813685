"""Who may serve one kind of request under one view and one policy: the part of a decision that requests share.

A *kind* is what the filters look at apart from the moment: model, criticality, allowed Regions, tenant. Its roster is
compiled once per view and policy and holds, for each cluster that passes, a `Row` of plain numbers ready for the score;
rows of clusters that did not change are carried over. Reasons are not kept: `gir.place.filters` gives them again to
whoever asks for an explanation.
"""

from collections.abc import Iterable

import msgspec
import xxhash

from gir.model.cluster import ClusterState, ClusterStatus, ClusterView, Intent, PoolState
from gir.model.ids import ClusterId, ModelId, TenantId, TierName
from gir.model.policy import (
    ClusterPolicy,
    ModelPolicy,
    PlacementPolicy,
    PolicySnapshot,
    TenantPolicy,
    TierPolicy,
)
from gir.model.request import Criticality, InferenceRequest, Principal
from gir.place.loads import Ledger, Loads
from gir.place.rendezvous import Rendezvous

NO_LIMIT = 1 << 62


class Kind(msgspec.Struct, frozen=True):
    """What the lasting filters look at. Equal kinds share a roster."""

    model: ModelId
    criticality: Criticality
    regions: frozenset[str] | None
    tenant: TenantId | None
    """None when no cluster is reserved for particular tenants."""


class PolicyIndex:
    """A policy with its lists turned into look-ups; made once per policy."""

    __slots__ = ("_tenanted", "clusters", "models", "policy", "tenants", "tiers")

    def __init__(self, policy: PolicySnapshot) -> None:
        self.policy = policy
        self.models: dict[ModelId, ModelPolicy] = {each.name: each for each in policy.models}
        self.tenants: dict[TenantId, TenantPolicy] = {each.id: each for each in policy.tenants}
        self.clusters: dict[ClusterId, ClusterPolicy] = {each.id: each for each in policy.clusters}
        self.tiers: dict[TierName, TierPolicy] = {TierName(each.name): each for each in policy.tiers}
        self._tenanted = any(each.tenants is not None for each in policy.clusters)

    def kind_of(self, request: InferenceRequest) -> Kind:
        """The kind of `request`."""
        return self.kind(request.model, request.criticality, request.principal)

    def kind(self, model: ModelId, criticality: Criticality, principal: Principal) -> Kind:
        """The kind of a request of `principal`; residency is what both the credential and the tenant's policy allow."""
        regions: frozenset[str] | None = principal.regions_allowed
        tenant = self.tenants.get(principal.tenant) if self.tenants else None
        if tenant is not None and tenant.regions is not None:
            allowed = frozenset(tenant.regions)
            regions = allowed if regions is None else allowed & regions
        return Kind(model, criticality, regions, principal.tenant if self._tenanted else None)

    def placement(self, model: ModelId) -> PlacementPolicy:
        """Placement section in force for `model`."""
        own = self.models.get(model) if self.models else None
        return self.policy.placement if own is None or own.placement is None else own.placement

    def tier_of(self, state: ClusterState) -> TierName:
        """Tier of a cluster: the operator's word over the cluster's own."""
        own = self.clusters.get(state.id) if self.clusters else None
        return state.tier if own is None or own.tier is None else TierName(own.tier)


class Row:
    """One eligible cluster as numbers. Times in seconds, rates turned into seconds per unit."""

    __slots__ = (
        "backoff_until_s", "capacity", "cluster", "context_max", "held", "index", "inflight", "known_waiting", "ledger",
        "load_s", "place", "pool", "probation", "resident", "rtt_s", "salt", "service_s", "slots_free", "slots_total",
        "state", "static_s", "suspect", "tier", "token_s", "token_total_s", "waiting", "waiting_tokens", "weight",
    )  # fmt: skip

    def __init__(
        self,
        state: ClusterState,
        pool: PoolState,
        ledger: Ledger,
        tier: TierName,
        model: ModelId,
        rules: PlacementPolicy,
    ) -> None:
        weights = rules.weights
        self.state = state
        self.pool = pool
        self.ledger = ledger
        self.cluster = state.id
        self.tier = tier
        self.index = 0
        """Position of its tier in the roster."""
        self.place = 0
        """Its own position among the rows it stands with."""
        self.suspect = is_suspect(state, pool.model)
        self.probation = state.probation or pool.model in state.pools_on_trial
        """One request may go, and must be claimed."""
        self.weight = state.weight
        self.salt = xxhash.xxh3_64_intdigest(state.id.encode())
        """Turns a request's one draw into a draw of this cluster's own."""
        self.backoff_until_s = max(state.backoff_until_s, state.refusing.get(pool.model, 0.0))
        self.context_max = NO_LIMIT if pool.context_tokens_max is None else pool.context_tokens_max
        self.slots_free = pool.slots_free
        self.slots_total = pool.slots_total
        self.capacity = pool.slots_total * min(1.0, state.weight / state.pressure)
        """Slots it may use while ramping or pinned. Were back-pressure to count here, a fleet that has refused for a
        while would seem full long after it is free again, and everybody would wait beside idle engines."""
        self.held = pool.slots_total - max(1.0, self.capacity)
        """Slots kept from it meanwhile. One is always left: a tenth of four slots would be none, and a model that only
        one cluster serves, just back, would wait beside idle engines until it is half way up.
        """
        self.rtt_s = rules.rtt_default_s if state.rtt_s is None else state.rtt_s
        pods = max(1, pool.pods_ready)
        rate = pool.prefill_tokens_per_s or rules.prefill_tokens_per_s_default * pods
        self.token_total_s = 1.0 / rate
        """Seconds the whole pool needs for one prompt token of the queue."""
        self.token_s = pods / rate
        """Seconds the one pod that gets the request needs for each of its own prompt tokens."""
        self.service_s = 1.0 / (pool.service_rate_per_s or rules.service_rate_per_s_default)
        self.waiting = _waiting(pool)
        self.known_waiting = pool.waiting or 0
        self.waiting_tokens = (
            self.waiting * ledger.prompt_tokens_mean if pool.waiting_tokens is None else float(pool.waiting_tokens)
        )
        self.inflight = pool.slots_total - pool.slots_free + self.waiting
        self.resident = model == pool.model or model in pool.adapters_resident
        self.load_s = 0.0 if self.resident else rules.adapter_load_s
        """Until the adapter is there."""
        self.static_s = weights.rtt * self.rtt_s + weights.error * error_s(pool, rules) + weights.adapter * self.load_s
        """Addends that do not depend on the request or the moment."""

    def __repr__(self) -> str:
        return f"<Row {self.cluster} {self.tier} {self.slots_free}/{self.slots_total} free, w={self.weight:.2f}>"


class Roster:
    """Rows of one kind, with what is needed to draw a tier and to skip filters nobody can fail."""

    __slots__ = (
        "adapter", "backoff_until_s", "base", "context_min", "index", "kind", "members", "objective_s", "open", "ring",
        "rules", "states", "suspects", "tiers", "top", "top_uses", "view",
    )  # fmt: skip

    def __init__(self, kind: Kind, index: PolicyIndex, view: ClusterView) -> None:
        self.kind = kind
        self.index = index
        self.view = view
        self.base = view.base_of.get(kind.model, kind.model)
        self.states = view.by_model.get(kind.model, ())
        """Clusters of the model, whatever may be wrong with them."""
        self.rules = index.placement(kind.model)
        own = index.models.get(kind.model)
        self.objective_s: float | None = None if own is None else own.ttft_objective_s
        self.adapter = self.base != kind.model
        self.open: list[Row] = []
        """Rows that may take work."""
        self.suspects: list[Row] = []
        """Rows that may take work only when nobody else can."""
        self.members: dict[ClusterId, Row] = {}
        self.tiers: tuple[TierPolicy, ...] = ()
        """Tiers of the rows, first to fill first."""
        self.context_min = NO_LIMIT
        self.backoff_until_s = 0.0
        """Latest back-off among the rows: later than this nobody can fail that filter."""
        self.ring: Rendezvous | None = None
        """Home order of prompts, made on first use."""
        self.top: list[Row] = []
        """Shortlist of a very large fleet, and how many decisions have used it."""
        self.top_uses = 0

    def __repr__(self) -> str:
        return (
            f"<Roster {self.kind.model} {len(self.open)} open, {len(self.suspects)} suspect, {len(self.tiers)} tiers>"
        )


def error_s(pool: PoolState, rules: PlacementPolicy) -> float:
    """Penalty for recent errors, in seconds of TTFT: 0 up to what is tolerated, from there in proportion to the rest.

    Never above `error_penalty_s`. Few samples are little evidence, which agents allow for in the rate they report.
    """
    if not pool.error_rate:
        return 0.0
    tolerated = rules.error_rate_tolerated
    return max(0.0, pool.error_rate - tolerated) / (1.0 - tolerated) * rules.error_penalty_s


def build(kind: Kind, index: PolicyIndex, view: ClusterView, loads: Loads) -> Roster:
    """Compile the roster of `kind` under `view`."""
    roster = Roster(kind, index, view)
    for state in roster.states:
        pool = state.pools.get(roster.base)
        if pool is None or not lasting(state, pool, kind, index, view.fail_open):
            continue
        row = _row(roster, state, pool, loads)
        roster.members[state.id] = row
        peers = roster.suspects if row.suspect and not view.fail_open else roster.open
        row.place = len(peers)
        peers.append(row)
    roster.tiers = _tiers(roster.members.values(), index)
    position = {TierName(tier.name): place for place, tier in enumerate(roster.tiers)}
    for row in roster.members.values():
        row.index = position[row.tier]
    return roster


def follow(roster: Roster, view: ClusterView, loads: Loads) -> bool:
    """Bring a roster up to a later view in place; False when who may serve has changed and it must be built anew.

    A beat changes one cluster's numbers and nobody's eligibility: replacing one row of a thousand is a hundred times
    cheaper than compiling them all, and beats of a thousand clusters come every two milliseconds.
    """
    states = view.by_model.get(roster.kind.model, ())
    before = roster.states
    if (
        len(states) != len(before)
        or view.fail_open != roster.view.fail_open
        or view.base_of.get(roster.kind.model, roster.kind.model) != roster.base
    ):
        return False
    fresh = []
    for old, new in [(old, new) for old, new in zip(before, states, strict=True) if old is not new]:
        pool = new.pools.get(roster.base)
        passes = pool is not None and lasting(new, pool, roster.kind, roster.index, view.fail_open)
        row = roster.members.get(old.id)
        if new.id != old.id or passes != (row is not None):
            return False
        if _slots(old, roster.base) != _slots(new, roster.base):
            roster.ring = None
        if pool is None or row is None:
            continue
        if old.price_per_slot_hour != new.price_per_slot_hour and row.tier not in roster.index.tiers:
            return False  # its price is what orders a tier that no policy declares
        if row.tier != roster.index.tier_of(new) or row.suspect != is_suspect(new, roster.base):
            return False
        fresh.append((row, new, pool))
    for row, state, pool in fresh:
        _replace(roster, row, _row(roster, state, pool, loads))
    roster.view, roster.states = view, states
    return True


def _row(roster: Roster, state: ClusterState, pool: PoolState, loads: Loads) -> Row:
    """The row of one cluster; tells its ledger of the beat behind it and keeps the roster's bounds."""
    ledger = loads.of(state.id, roster.base)
    row = Row(state, pool, ledger, roster.index.tier_of(state), roster.kind.model, roster.rules)
    if state.beat_at_s is not None:
        ledger.reconcile(state.beat_at_s, row.rtt_s, row.waiting_tokens, row.token_total_s)
    roster.context_min = min(roster.context_min, row.context_max)
    roster.backoff_until_s = max(roster.backoff_until_s, row.backoff_until_s)
    return row


def _replace(roster: Roster, old: Row, new: Row) -> None:
    new.index, new.place = old.index, old.place
    roster.members[new.cluster] = new
    (roster.open if roster.open and _at(roster.open, old) else roster.suspects)[old.place] = new
    if old in roster.top:
        roster.top[roster.top.index(old)] = new


def is_suspect(state: ClusterState, base: ModelId) -> bool:
    """Whether a cluster, or its pool of the base model, should get new work only when nobody else can take it."""
    return state.status is ClusterStatus.SUSPECT or base in state.pools_ejected


def _slots(state: ClusterState, base: ModelId) -> int:
    pool = state.pools.get(base)
    return 0 if pool is None else pool.slots_total


def _at(rows: list[Row], row: Row) -> bool:
    return row.place < len(rows) and rows[row.place] is row


def lasting(state: ClusterState, pool: PoolState, kind: Kind, index: PolicyIndex, fail_open: bool) -> bool:
    """Whether a cluster passes every filter that holds for a whole kind. `filters.lasting_reason` says which not."""
    if state.intent is not Intent.SERVE or state.weight <= 0.0 or pool.slots_total <= 0:
        return False
    name = kind.model
    if name != pool.model and name not in pool.adapters_resident and name not in pool.adapters_loadable:
        return False  # the cluster is listed for an adapter of that name which another of its pools has
    if not fail_open and (state.status is ClusterStatus.DEAD or state.status is ClusterStatus.UNKNOWN):
        return False
    if kind.regions is not None and state.region not in kind.regions:
        return False
    if kind.tenant is not None:
        own = index.clusters.get(state.id)
        if own is not None and own.tenants is not None and kind.tenant not in own.tenants:
            return False
    if index.tiers:
        tier = index.tiers.get(index.tier_of(state))
        if tier is not None and kind.criticality < tier.lowest:
            return False
    return True


def _waiting(pool: PoolState) -> float:
    """Requests queued. Unknown is taken for what does not fit into the slots, and for one at least: never idle."""
    if pool.waiting is not None:
        return float(pool.waiting)
    return max(1.0, float((pool.running or 0) - pool.slots_total))


def _tiers(rows: Iterable[Row], index: PolicyIndex) -> tuple[TierPolicy, ...]:
    """Tiers present among `rows`: declared ones in declared order, then undeclared ones by reported price."""
    prices: dict[TierName, float] = {}
    for row in rows:
        price = row.state.price_per_slot_hour
        prices[row.tier] = min(price, prices.get(row.tier, price))
    declared = [tier for name, tier in index.tiers.items() if name in prices]
    others = sorted((price, name) for name, price in prices.items() if name not in index.tiers)
    return (*declared, *(TierPolicy(name=name, price_per_slot_hour=price) for price, name in others))
