"""The home of a prompt nobody here has seen: rendezvous hashing with bounded load.

The index (`gir.place.affinity`) knows only what this replica sent. For the rest, each session, or failing that each
prompt's leading kilobytes, has a home that every replica computes alike. It is worth half of what a cached prefix would
be, because it may or may not be there; and it is passed on to the next in line when it would load a cluster beyond
`bounded_load` times its fair share.
"""

import math

from gir.model.ids import ClusterId, ModelId
from gir.model.request import InferenceRequest
from gir.place.rendezvous import Rendezvous, key_of
from gir.place.roster import Roster
from gir.place.score import Mark

HOME_BLOCKS = 8
"""Prompt blocks that make the key: about a thousand tokens, past most system prompts shared by everybody."""
_BELIEF = 0.5


class Homes:
    """Rendezvous rings by model, remade when members or capacities change."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings: dict[ModelId, Rendezvous] = {}

    def credit(
        self, marks: list[Mark], request: InferenceRequest, roster: Roster, drawn: int | None, cached: float
    ) -> None:
        """Lower the score of the home of `request` among the candidates of tier `drawn` (None: of all tiers).

        `cached` is the greatest number of prompt tokens the index predicts anywhere: a prompt whose key blocks are
        known needs no home.
        """
        hashes = request.prefix_hashes
        tokens = float(request.prompt_tokens_estimate)
        if hashes and len(hashes) > HOME_BLOCKS:
            tokens *= HOME_BLOCKS / len(hashes)
        if not tokens or cached >= tokens or not (hashes or request.session_key) or len(marks) < 2:
            return
        if request.session_key:
            key = key_of(f"{request.principal.tenant}\0{request.session_key}")
        else:
            key = hashes[min(len(hashes), HOME_BLOCKS) - 1]
        home = _within_bound(self.ring(roster).order(key), marks, drawn, roster.rules.bounded_load)
        if home is not None:
            home.home_s = roster.rules.weights.affinity * min(
                _BELIEF * tokens * home.row.token_s, roster.rules.affinity_max_s
            )
            home.score_s -= home.home_s

    def ring(self, roster: Roster) -> Rendezvous:
        """Ring over every cluster that serves the model, whatever its health: a flap must not move other keys."""
        ring = roster.ring
        if ring is None:
            model, view = roster.kind.model, roster.view
            base = view.base_of.get(model, model)
            weights = tuple(
                [
                    (state.id, float(state.pools[base].slots_total))
                    for state in view.by_model.get(model, ())
                    if base in state.pools
                ]
            )
            ring = self._rings.get(model)
            if ring is None or ring.weights != weights:
                if len(self._rings) >= 1_024:
                    self._rings.clear()
                ring = self._rings[model] = Rendezvous(weights)
            roster.ring = ring
        return ring


def _within_bound(order: tuple[ClusterId, ...], marks: list[Mark], drawn: int | None, factor: float) -> Mark | None:
    """First of `order` that one more request keeps within `factor` times its fair share, by capacity, of the load.

    The bound is ceil(factor x (all load + 1) x capacity / all capacity), as consistent hashing with bounded loads has
    it. None when everybody is over it.
    """
    there = {mark.row.cluster: mark for mark in marks if drawn is None or mark.row.index == drawn}
    load = 1.0
    capacity = 0.0
    for mark in there.values():
        load += mark.load
        capacity += mark.row.capacity
    for name in order:
        mark_there = there.get(name)
        if mark_there is not None and mark_there.load + 1.0 <= math.ceil(
            factor * load * mark_there.row.capacity / capacity
        ):
            return mark_there
    return None
