"""GET /v1/models and GET /v1/models/NAME: the union over live clusters, answered from the router's own view.

Each model's JSON object is the one its engines show, so fields this project does not know survive. A model served by
several clusters is listed once, with the object of the first cluster in id order. Aliases are listed under their own
names.
"""

import msgspec

from gir.model.cluster import ClusterState, ClusterStatus, ClusterView, Intent
from gir.model.ids import ModelId
from gir.model.policy import PolicySnapshot
from gir.model.request import Principal

_LIVE = frozenset({ClusterStatus.HEALTHY, ClusterStatus.RAMPING, ClusterStatus.SUSPECT})
_CACHED_MAX = 256


class Catalog:
    """Builds the listing once for each view, policy and set of allowed models."""

    def __init__(self) -> None:
        self._view: ClusterView | None = None
        self._policy: PolicySnapshot | None = None
        self._bodies: dict[frozenset[ModelId] | None, bytes] = {}

    def body(self, view: ClusterView, policy: PolicySnapshot, principal: Principal) -> bytes:
        """JSON of the listing `principal` may see."""
        if view is not self._view or policy is not self._policy or len(self._bodies) >= _CACHED_MAX:
            self._view, self._policy = view, policy
            self._bodies.clear()
        body = self._bodies.get(principal.models_allowed)
        if body is None:
            cards = _shown(view, policy, principal.models_allowed).values()
            body = self._bodies[principal.models_allowed] = b'{"object":"list","data":[%b]}' % b",".join(cards)
        return body

    def card(self, view: ClusterView, policy: PolicySnapshot, principal: Principal, name: str) -> bytes | None:
        """JSON of one model that `principal` may see; None when the listing has no such name."""
        return _shown(view, policy, principal.models_allowed).get(ModelId(name))


def _shown(view: ClusterView, policy: PolicySnapshot, allowed: frozenset[ModelId] | None) -> dict[ModelId, bytes]:
    """Cards by name, in the order of names."""
    cards = _cards(view)
    hidden = {entry.name for entry in policy.models if entry.hidden}
    aliases = {ModelId(alias): entry.name for entry in policy.models if entry.name in cards for alias in entry.aliases}
    entries = {name: card for name, card in cards.items() if name not in hidden}
    for alias, target in aliases.items():
        entries.setdefault(alias, _renamed(cards[target], alias))
    return {
        name: card
        for name, card in sorted(entries.items())
        if allowed is None or name in allowed or aliases.get(name) in allowed
    }


def _cards(view: ClusterView) -> dict[ModelId, bytes]:
    cards: dict[ModelId, bytes] = {}
    for cluster in sorted((item for item in view.clusters if _lists(item)), key=lambda item: item.id):
        for pool in cluster.pools.values():
            for name in sorted({pool.model, *pool.adapters_resident, *pool.adapters_loadable}):
                if name not in cards:
                    card = pool.cards.get(name)
                    cards[name] = card.encode() if card else _plain(name, parent=pool.model)
    return cards


def _lists(cluster: ClusterState) -> bool:
    return cluster.status in _LIVE and cluster.intent is Intent.SERVE


def _plain(name: ModelId, *, parent: ModelId) -> bytes:
    card: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "gir"}
    if name != parent:
        card["parent"] = parent
    return msgspec.json.encode(card)


def _renamed(card: bytes, name: ModelId) -> bytes:
    fields = msgspec.json.decode(card, type=dict[str, msgspec.Raw])
    fields["id"] = msgspec.Raw(msgspec.json.encode(name))
    return msgspec.json.encode(fields)
