"""In a very large fleet only the promising candidates are scored."""

from collections.abc import Set as AbstractSet
from heapq import nsmallest

from gir.model.ids import ClusterId
from gir.place.roster import Roster, Row

SCORED_MAX = 32
"""Candidates scored one by one; beyond it a shortlist stands for the fleet."""
_PER_TIER = 12
_USES_MAX = 64
"""Decisions a shortlist serves before it is drawn up again: own dispatches move the queues between two views."""


def shortlist(roster: Roster, rows: list[Row], wanted: AbstractSet[ClusterId]) -> list[Row]:
    """The dozen best rows of each tier by round trip and queue, and the `wanted` ones (affinity, session)."""
    if rows is not roster.open:
        return _draw_up(rows, roster) if len(rows) > SCORED_MAX else rows
    if not roster.top or roster.top_uses >= _USES_MAX:
        roster.top = _draw_up(rows, roster)
        roster.top_uses = 0
    roster.top_uses += 1
    if not wanted:
        return roster.top
    names = {row.cluster for row in roster.top}
    more = [roster.members[name] for name in wanted if name in roster.members and name not in names]
    return roster.top + [row for row in more if not row.suspect or roster.view.fail_open]


def _draw_up(rows: list[Row], roster: Roster) -> list[Row]:
    key = _promise_for_adapter if roster.adapter else _promise
    if len(roster.tiers) == 1:
        return nsmallest(_PER_TIER, rows, key=key)
    groups: list[list[Row]] = [[] for _ in roster.tiers]
    for row in rows:
        groups[row.index].append(row)
    return [row for group in groups for row in nsmallest(_PER_TIER, group, key=key)]


def _promise_for_adapter(row: Row) -> tuple[int, float]:
    """In the order of `gir.place.choose`: who holds it, who has most room for it, who will be soonest."""
    room = row.slots_free - row.ledger.delta
    if room < 1:
        return 2, _promise(row)
    return (0, _promise(row)) if row.resident else (1, float(-room))


def _promise(row: Row) -> float:
    room = row.slots_free - row.ledger.delta
    waiting = row.waiting if room >= 1 else row.waiting + 1 - room
    return row.static_s + waiting * row.service_s + row.ledger.pending_tokens * row.token_total_s
