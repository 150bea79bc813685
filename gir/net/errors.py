"""How a call to an upstream can fail. Every transport or parser exception becomes one of these at the edge.

`phase` says how far the call got, which is all a caller needs to know whether another try is safe.
"""

from gir.model.outcome import Phase

# ruff: noqa: N818 - the names say what happened; a suffix would only repeat the base class


class UpstreamError(Exception):
    """A call to an upstream ended without a complete answer; `detail` is one line for logs and messages."""

    def __init__(self, phase: Phase, detail: str) -> None:
        super().__init__(detail)
        self.phase = phase
        self.detail = detail


class ConnectFailed(UpstreamError):
    """No connection: refused, unreachable, name unknown, TLS refused, too slow, or the pool is full."""

    def __init__(self, detail: str) -> None:
        super().__init__(Phase.CONNECTING, detail)


class HeadTimeout(UpstreamError):
    """The request was sent and no response head came in time."""


class FirstTokenTimeout(UpstreamError):
    """A response head came, but no content in time."""


class IdleTimeout(UpstreamError):
    """The answer began and then stood still for too long."""


class TotalTimeout(UpstreamError):
    """The deadline of the whole request passed."""


class ConnectionLost(UpstreamError):
    """The connection ended before the answer was complete: reset, end of input, cut chunk, short Content-Length."""


class BadResponse(UpstreamError):
    """What came back is not HTTP/1.1 as this engine accepts it."""


class ResponseTooLarge(UpstreamError):
    """The answer outgrew the bound the caller set."""
