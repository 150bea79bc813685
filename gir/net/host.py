"""What a client connection needs of its server, and nothing more."""

from typing import TYPE_CHECKING, Protocol

from gir.clock import Clock
from gir.model.errors import ErrorKind
from gir.net.limits import ServerLimits
from gir.net.turns import Turns
from gir.net.wheel import Wheel

if TYPE_CHECKING:
    from gir.net.connection import ServerConnection
    from gir.net.exchange import Exchange


class Host(Protocol):
    """The server, as its connections see it."""

    limits: ServerLimits
    clock: Clock
    wheel: Wheel
    turns: Turns
    origin: str
    draining: bool
    """Answers say `Connection: close`."""

    def room(self, body_bytes: int) -> bool:
        """Whether one more request, with a body of so many bytes, may be in flight."""

    def grown(self, exchange: "Exchange", body_bytes: int) -> bool:
        """The body of `exchange`, of unknown length, has come to so many bytes; whether there is room for them."""

    def serve(self, exchange: "Exchange") -> None:
        """Run the handler."""

    def never_begun(self, exchange: "Exchange") -> None:
        """The client left before the handler's first step."""

    def refused(self, kind: ErrorKind) -> None:
        """A request was turned away before a handler saw it."""

    def lost(self, connection: "ServerConnection") -> None:
        """The connection has ended."""
