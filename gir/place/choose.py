"""From scored candidates to an order: tier first, then score, and the best of two near the top by load."""

from operator import attrgetter

from gir.place.score import Mark

_TIE_FLOOR_S = 0.005
"""Differences below 5 ms are noise of the round-trip measurement."""
_by_score = attrgetter("score_s")


_MASK = 0xFFFF_FFFF_FFFF_FFFF
_FOR_WEIGHT = 0x9E37_79B9_7F4A_7C15
_FOR_TIES = 0xD6E8_FEB8_6659_FD93


def sub_draw(draw: float, salt: int, purpose: int) -> float:
    """A cluster's own draw in [0, 1) for one purpose, from the request's single draw (splitmix64's finaliser)."""
    mixed = (int(draw * 0x1_0000_0000_0000) ^ salt) * purpose & _MASK
    mixed = (mixed ^ (mixed >> 32)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    return (mixed ^ (mixed >> 29)) / 18_446_744_073_709_551_616.0


def hold_back(marks: list[Mark], draw: float) -> bool:
    """Mark the candidates that carry only a part of their share and are not drawn this time. True when any is."""
    any_held = False
    for mark in marks:
        if mark.row.weight < 1.0 and sub_draw(draw, mark.row.salt, _FOR_WEIGHT) >= mark.row.weight:
            mark.held_back = any_held = True
    return any_held


def order(marks: list[Mark], *, draw: float, tie_share: float, adapter: bool) -> list[Mark]:
    """Order the candidates of one tier, best first."""
    if len(marks) == 1:
        return marks
    marks.sort(key=_by_score)
    if adapter:
        _resident_first(marks)
    if hold_back(marks, draw):
        marks.sort(key=attrgetter("held_back"))
    best = marks[0]
    # Round trip and queue are the uncertain part; how long the prompt itself takes does not blur the comparison.
    bound_s = best.score_s + max(_TIE_FLOOR_S, tie_share * (best.row.rtt_s + best.queue_s))
    if marks[1].score_s <= bound_s:
        _better_of_two(marks, draw, bound_s)
    return marks


def _better_of_two(marks: list[Mark], draw: float, bound_s: float) -> None:
    """Move to the front the less loaded of two of the candidates that score like the best.

    The two are drawn by cluster, not by position, so that a cluster cannot gain by scoring worse.
    """
    first = second = None
    first_at = second_at = 2.0
    best = marks[0]
    for mark in marks:
        if mark.score_s > bound_s:
            break
        if mark.held_back is not best.held_back or mark.row.resident is not best.row.resident:
            continue
        at = sub_draw(draw, mark.row.salt, _FOR_TIES)
        if at < first_at:
            first, second, first_at, second_at = mark, first, at, first_at
        elif at < second_at:
            second, second_at = mark, at
    if first is None or second is None:
        return
    chosen = second if second.use < first.use else first
    if chosen is not best:
        marks.remove(chosen)
        marks.insert(0, chosen)


def _resident_first(marks: list[Mark]) -> None:
    """For an adapter: clusters that hold it and have room; then those with room that can load it, most spare capacity
    first; when nobody has room, by expected time, loading included."""
    marks.sort(key=_for_adapter)


def _for_adapter(mark: Mark) -> tuple[int, float]:
    if mark.room < 1:
        return 2, mark.score_s
    return (0, mark.score_s) if mark.row.resident else (1, -mark.room)
