"""Which cost tier a request is drawn to."""

from collections.abc import Mapping

from gir.model.ids import ClusterId, TierName
from gir.model.request import Criticality
from gir.place.roster import Roster, Row
from gir.place.tiers import TierLoad, TierShare

_HOLDS_SHARE = 0.3
"""Part of the prompt a cluster must be predicted to hold for its tier to be favoured."""
_BACKLOG_FULL_S = 2.0
"""Prefill backlog at which a pool without an objective counts as full. Judged by slots alone, a tier of long prompts
spilled too late: TTFT p95 on the recorded conversations was 7.4 s instead of 5.8 s at the same cost."""
_FAVOUR = 9.0
"""How much likelier the draw falls to the tier that holds the prompt's prefix. Drawn blindly, a conversation would
change tiers with every turn while traffic spills, and pay for its prompt anew each time."""


def tier_loads(rows: list[Row], roster: Roster, criticality: Criticality, now_s: float) -> tuple[TierLoad, ...]:
    """Sum what the candidates of each tier have free.

    A free slot counts less the more prompts wait to be prefilled before it, and nothing once the wait reaches the
    model's objective: a pool can have slots and no time. Requests already waiting take the slots they wait for.
    """
    count = len(roster.tiers)
    patience_s = roster.objective_s or _BACKLOG_FULL_S
    total = [0.0] * count
    free = [0.0] * count
    for row in rows:
        total[row.index] += row.capacity
        ledger = row.ledger
        room = row.slots_free - row.held - ledger.delta
        if row.known_waiting:
            room -= max(0.0, row.known_waiting - ledger.started)
        if room > 0:
            if ledger.pending_tokens or ledger.foreign_tokens:
                wait_s = ledger.own_wait_s(now_s) + ledger.foreign_tokens * row.token_total_s
                room *= max(0.0, 1.0 - wait_s / patience_s)
            free[row.index] += room
    reserve = 0.0 if criticality >= Criticality.CRITICAL else roster.index.policy.flow.critical_reserve
    return tuple(
        [
            TierLoad(
                TierName(tier.name), tier.spill_at, tier.return_at, total[place], free[place], reserve * total[place]
            )
            for place, tier in enumerate(roster.tiers)
        ]
    )


def holding_tier(
    roster: Roster, cached: Mapping[ClusterId, float], session: ClusterId | None, tokens: int
) -> int | None:
    """Position of the tier that holds the session or a good part of the prompt; None when none does."""
    holder = session
    if holder is None and cached:
        holder = max(cached, key=cached.__getitem__)
        if cached[holder] < _HOLDS_SHARE * tokens:
            return None
    row = roster.members.get(holder) if holder is not None else None
    return None if row is None else row.index


def draw_tier(shares: tuple[TierShare, ...], draw: float, held: int | None) -> tuple[int, bool]:
    """Position of the tier that `draw` falls to, and whether no tier has headroom at all.

    Tier `held` weighs nine times its share, which leaves shares of 0 and 1 what they are.
    """
    if all(share.headroom <= 0.0 for share in shares):
        return 0, True
    weights = [share.share for share in shares]
    if held is not None:
        weights[held] *= _FAVOUR
    mark = draw * sum(weights)
    reached = 0.0
    for position, weight in enumerate(weights):
        reached += weight
        if mark < reached:
            return position, False
    return max(range(len(weights)), key=weights.__getitem__), False
