"""Why a request goes where it goes: ranked candidates with their terms, and those removed with the reason."""

import msgspec

from gir.model.ids import ClusterId, ModelId, RegionId, TierName


class Term(msgspec.Struct, frozen=True):
    """One addend of a candidate's score, in seconds of expected time to first token (or its equivalent)."""

    name: str
    seconds: float
    detail: str = ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that may serve the request. Lower `score_s` is better."""

    cluster: ClusterId
    url: str
    tier: TierName
    score_s: float
    region: RegionId = RegionId("")
    probation: bool = False
    """Its breaker is half open: claim the one probing request before sending, or take the next candidate."""
    terms: tuple[Term, ...] = ()
    """Addends of `score_s`, filled in only when an explanation was asked for."""
    room: float = 0.0
    """Slots predicted free: last beat minus own dispatches it has not seen; negative when requests queue."""
    unknown: tuple[str, ...] = ()
    """Signals the cluster did not report and for which policy's defaults stand in (explanations only)."""
    held_back: bool = False
    """Ramping or pinned to a part of its share, and not drawn this time: behind its peers, not removed."""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that may not, with the filter that took it out and the detail an operator needs."""

    cluster: ClusterId
    filter: str
    detail: str = ""


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """Arithmetic of one cost tier at the moment of a decision. Shares are of this model's traffic, 0 to 1."""

    tier: TierName
    price_per_slot_hour: float = 0.0
    clusters: int = 0
    slots_total: float = 0.0
    slots_free: float = 0.0
    """Predicted: beats minus own dispatches they have not seen, waiting requests, and what a prefill backlog delays."""
    reserve_slots: float = 0.0
    """Kept for Critical requests; zero when this request is one."""
    headroom: float = 0.0
    """(slots_free - reserve_slots) / slots_total, minus the trend."""
    trend: float = 0.0
    """How much of the headroom the recent rise in load is expected to take before the next beat."""
    spill_at: float = 0.0
    return_at: float = 0.0
    spilled: float = 0.0
    """Share remembered from recent pressure; falls to zero as headroom returns."""
    share: float = 0.0


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Ranked answer of `plan`. Empty `ranked` means nobody can take it now; `removed` says why."""

    ranked: tuple[Candidate, ...] = ()
    removed: tuple[Removed, ...] = ()
    """Filled in when `ranked` is empty or an explanation was asked for."""
    reason: str = ""
    """Why the first is first: `cheapest`, `spill`, `affinity`, `session`, `pinned`, `fail_open`, `only`, ..."""
    tier_shares: tuple[tuple[TierName, float], ...] = ()
    """Share of this model's traffic each cost tier takes now, in price order."""
    tier_drawn: TierName | None = None
    tiers: tuple[TierView, ...] = ()
    """Arithmetic behind `tier_shares` (explanations only)."""
    model_known: bool = True
    """False when no cluster, live or not, has ever reported the model: 404 rather than 503."""
    forbidden: bool = False
    """Nobody is left because policy says so (residency, tenant, pin): 403 rather than 503."""
    retry_after_s: float | None = None
    view_version: int = 0
    policy_version: int = 0
    canary: str = ""
    """`rule=... draw=... -> target` when a canary rule matched."""
    model: ModelId = ModelId("")
    draw: float = 0.0
    """Number the random choices were made with, in [0, 1)."""
    notes: tuple[str, ...] = ()
    """Sentences an operator can read: what the choice turned on (explanations only)."""
