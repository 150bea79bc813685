"""Heads of HTTP messages as plain values. Names are lower-case bytes; order and duplicates are kept."""

Headers = list[tuple[bytes, bytes]]


_UNTOUCHABLE = frozenset({b"host", b"content-length", b"transfer-encoding", b"close", b"keep-alive"})
"""What Connection cannot name away: framing, and its own options."""
_EVENT_STREAM = b"text/event-stream"


class _Head:
    """Header list with a first-value index, built when someone first asks."""

    __slots__ = ("_first", "headers")

    def __init__(self, headers: Headers, first: dict[bytes, bytes] | None = None) -> None:
        self.headers = headers
        self._first = first

    def get(self, name: bytes) -> bytes | None:
        """First value of header `name` (lower-case), or None."""
        if self._first is None:
            # Reversed, so that of several equal names the first one stays.
            self._first = dict(reversed(self.headers))
        return self._first.get(name)

    def drop_named(self, connection: bytes) -> set[bytes]:
        """Obey a Connection header: drop the headers it names, which were meant for this hop only; its tokens."""
        tokens = {token.strip().lower() for token in connection.split(b",")}
        self.drop(tokens - _UNTOUCHABLE)
        return tokens

    def drop(self, names: set[bytes]) -> None:
        """Forget every header called one of `names`."""
        if names:
            self.headers = [header for header in self.headers if header[0] not in names]
            self._first = None


class RequestHead(_Head):
    """What a client asked for, and what it says about its connection and body.

    `target` is the request target in origin form, whatever form it came in; `path` and `query` are its parts, not
    percent-decoded.
    `peer` is the client's address; `peer_names` are the subject alternative names of its verified certificate.
    """

    __slots__ = (
        "body_encoded",
        "body_length",
        "expects_continue",
        "http10",
        "keep_alive",
        "memo",
        "method",
        "path",
        "peer",
        "peer_names",
        "query",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        path: str,
        query: str,
        headers: Headers,
        peer: str = "",
        peer_names: tuple[str, ...] = (),
        first: dict[bytes, bytes] | None = None,
    ) -> None:
        self.headers = headers
        self._first = first
        self.method = method
        self.target = target
        self.path = path
        self.query = query
        self.peer = peer
        self.peer_names = peer_names
        self.body_length = 0
        """Bytes, or `gir.net.request.CHUNKED`."""
        self.keep_alive = True
        self.memo: object = None
        """Free for the handler: what it has worked out from this head, while the client repeats it."""
        self.http10 = False
        """HTTP/1.0 connections serve one request: their clients learn the end of the answer from the close."""
        self.expects_continue = False
        self.body_encoded = False
        """The body is compressed; it will be refused, for its size is known only after the harm is done."""

    def __repr__(self) -> str:
        return f"<RequestHead {self.method} {self.path}>"


class ResponseHead(_Head):
    """Status and headers of an upstream's answer."""

    __slots__ = ("status",)

    def __init__(self, status: int, headers: Headers, first: dict[bytes, bytes] | None = None) -> None:
        self.headers = headers
        self._first = first
        self.status = status

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is Server-Sent Events; media types are compared without regard to case (RFC 9110, 8.3.1)."""
        content_type = self.get(b"content-type") or b""
        return content_type[: len(_EVENT_STREAM)].lower() == _EVENT_STREAM

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status}>"
