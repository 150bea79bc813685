"""Why a request goes where it goes: ranked candidates with their terms, and those removed with the reason."""

import msgspec

from gir.model.ids import ClusterId, ModelId, TierName


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
    terms: tuple[Term, ...] = ()


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that may not, with the filter that took it out and the detail an operator needs."""

    cluster: ClusterId
    filter: str
    detail: str = ""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Ranked answer of `plan`. Empty `ranked` means nobody can take it now; `removed` says why."""

    ranked: tuple[Candidate, ...] = ()
    removed: tuple[Removed, ...] = ()
    reason: str = ""
    """Why the first is first: `cheapest`, `spill`, `affinity`, `session`, `pinned`, `fail_open`, `only`, ..."""
    tier_shares: tuple[tuple[TierName, float], ...] = ()
    """Share of this model's traffic each cost tier takes now, in price order."""
    tier_drawn: TierName | None = None
    model_known: bool = True
    """False when no cluster, live or not, has ever reported the model: 404 rather than 503."""
    retry_after_s: float | None = None
    view_version: int = 0
    policy_version: int = 0
    canary: str = ""
    """`rule=... draw=... -> target` when a canary rule matched."""
    model: ModelId = ModelId("")
