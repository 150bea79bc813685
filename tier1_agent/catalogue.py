"""The models this cluster serves, as `/v1/models` lists them: the engines' own words where they have been read.

Answered from what is known, never by asking an engine while somebody waits.
"""

from collections.abc import Callable, Mapping
from urllib.parse import unquote

import msgspec

from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, PodId
from gir.net.exchange import Exchange
from tier1_agent.fleet import Fleet
from tier1_agent.pool import Pool

_JSON = [(b"content-type", b"application/json")]
Cards = Mapping[PodId, Mapping[ModelId, str]]


class Catalogue:
    """`cards()` gives each pod's own model cards, as JSON text."""

    __slots__ = ("_cards", "_fleet")

    def __init__(self, fleet: Fleet, cards: Callable[[], Cards]) -> None:
        self._fleet = fleet
        self._cards = cards

    def entries(self) -> dict[ModelId, msgspec.Raw]:
        """A card for every servable name; fields an engine gave are kept, whatever they are."""
        given = {name: card for cards in self._cards().values() for name, card in cards.items()}
        return {
            name: msgspec.Raw(given[name].encode()) if name in given else _made_up(name, base)
            for name, base in sorted(self._fleet.names().items())
        }

    def of_pool(self, pool: Pool) -> dict[ModelId, str]:
        """The engines' cards for the names of one pool, for the beat."""
        names = {name for name, base in self._fleet.names().items() if base == pool.model}
        return {name: card for cards in self._cards().values() for name, card in cards.items() if name in names}

    def answer(self, exchange: Exchange) -> None:
        """`GET /v1/models` or `GET /v1/models/NAME`; raises RequestError MODEL_NOT_FOUND."""
        entries = self.entries()
        wanted = unquote(exchange.head.path.removeprefix("/v1/models").removeprefix("/"))
        if not wanted:
            body = msgspec.json.encode({"object": "list", "data": list(entries.values())})
        elif (card := entries.get(ModelId(wanted))) is not None:
            body = bytes(card)
        else:
            raise RequestError(ErrorKind.MODEL_NOT_FOUND, f"model {wanted[:80]!r} is not served here", param="model")
        exchange.respond(200, _JSON, body)


def _made_up(name: ModelId, base: ModelId) -> msgspec.Raw:
    card = {"id": name, "object": "model", "created": 0, "owned_by": "gir"}
    if name != base:
        card["parent"] = base
    return msgspec.Raw(msgspec.json.encode(card))
