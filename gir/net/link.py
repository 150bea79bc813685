"""One connection to an upstream: parses what comes back and hands it to the call in progress."""

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from gir.net.errors import BadResponse, ConnectionLost, UpstreamError
from gir.net.message import Headers, ResponseHead
from gir.net.silence import be_patient

if TYPE_CHECKING:
    from gir.net.pool import UpstreamPool
    from gir.net.upstream import UpstreamCall

_JOIN_BYTES_MAX = 65_536
"""Above this, copying head and body together costs more than handing the transport two buffers."""
_HEAD_BYTES_MAX = 65_536
_TAKEN_UNREAD_MAX = 32_768
"""A request up to this size is taken by the peer's kernel, whether or not anybody reads it."""
_HEADERS_MAX = 200
_SWITCHING_PROTOCOLS = 101
_OK = 200
_BODYLESS = frozenset({204, 304})


class UpstreamLink(asyncio.Protocol):
    """Protocol object of one upstream connection.

    It carries one call at a time and goes back to the pool only when the answer ended where its framing says, the
    request was sent in full and the upstream did not ask to close.
    """

    __slots__ = (
        "_call",
        "_complete",
        "_first",
        "_framed",
        "_head_bytes",
        "_head_seen",
        "_headers",
        "_keep_alive",
        "_parser",
        "_parts",
        "_patient",
        "_paused",
        "_pool",
        "_transport",
        "idle_since_s",
        "on_body",
        "usable",
        "wheel_slot",
    )

    def __init__(self, pool: "UpstreamPool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._call: UpstreamCall | None = None
        self._headers: Headers = []
        self._first: dict[bytes, bytes] = {}
        self._head_seen = False
        self._head_bytes = 0
        self._framed = False
        """The answer ends by Content-Length, chunking or status; otherwise by the close of the connection."""
        self._complete = False
        self._keep_alive = False
        self._paused = False
        self._patient = False
        """The kernel was told to be patient, for the request is large."""
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        """Called by the parser; a list's own method costs no call into Python."""
        self._parser = httptools.HttpResponseParser(self)
        self.idle_since_s = 0.0
        self.usable = True
        self.wheel_slot = 0

    # The call

    def begin(self, call: "UpstreamCall", head: bytes, body: bytes) -> None:
        """Start a call by writing its whole request."""
        self._call = call
        self._headers, self._first = [], {}
        self._head_seen = self._complete = self._framed = self._keep_alive = False
        self._head_bytes = 0
        transport = self._transport
        assert transport is not None
        if len(body) > _TAKEN_UNREAD_MAX:
            self._be_patient(self._pool.limits.unread_s)
        if len(body) > _JOIN_BYTES_MAX:
            transport.writelines((head, body))
        else:
            transport.write(head + body)

    def _be_patient(self, unread_s: float) -> None:
        transport = self._transport
        sock = transport.get_extra_info("socket") if transport is not None and not transport.is_closing() else None
        if sock is not None:
            be_patient(sock, unread_s)
        self._patient = unread_s > self._pool.limits.dead_s

    def pause(self) -> None:
        """Stop reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Close at once, whatever is in progress; the pool has room again before the transport reports its end."""
        self.usable = False
        self._pool.lost(self)
        if self._transport is not None:
            self._transport.abort()

    def watch(self, due_s: float) -> None:
        """Have the wheel look at the call no later than `due_s`."""
        self._pool.wheel.watch(self, due_s)

    @property
    def open(self) -> bool:
        """Whether a request may be written: between a reset and the news of it the transport is closed already."""
        return self.usable and self._transport is not None and not self._transport.is_closing()

    def check(self, now_s: float) -> float | None:
        """Deadlines of the call, or of an idle connection."""
        if not self.usable:
            return None
        if self._call is not None:
            return self._call.check(now_s)
        closes_at_s = self.idle_since_s + self._pool.limits.idle_s
        if now_s < closes_at_s:
            return closes_at_s
        self.close()
        return None

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:
            # Bytes nobody asked for: whatever they are, they must not become the next caller's answer.
            self.close()
            return
        head_seen = self._head_seen
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BadResponse(call.phase, "the upstream switched protocols unasked"))
            return
        except httptools.HttpParserError as error:
            self._fail(BadResponse(call.phase, f"malformed answer: {error}"))
            return
        if not head_seen and self._head_too_large(len(data)):
            self._fail(BadResponse(call.phase, f"the response head exceeds {_HEAD_BYTES_MAX} bytes"))
            return
        if not self._head_seen:
            call.any_byte = True
            return
        parts = self._parts
        if parts and not call.method_is_head:
            call.received(parts[0] if len(parts) == 1 else b"".join(parts))
            parts.clear()
        if self._complete:
            self._finish()

    def _head_too_large(self, received: int) -> bool:
        """Whether the head has outgrown its bound; one read may hold it all, and part of the body with it."""
        self._head_bytes += received
        if self._head_bytes <= _HEAD_BYTES_MAX:
            return False
        return not self._head_seen or sum(len(name) + len(value) for name, value in self._headers) > _HEAD_BYTES_MAX

    def eof_received(self) -> bool:
        self.usable = False
        if self._call is not None and self._head_seen and not self._framed:
            self._complete = True
            self._finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._pool.lost(self)
        call = self._call
        if call is not None:
            how = str(exc) if exc is not None else "closed by the upstream"
            self._fail(ConnectionLost(call.phase, f"connection lost: {how}"))

    # Parser callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("more bytes than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_seen:
            return  # a trailer: nobody reads it
        name = name.lower()
        self._headers.append((name, value))
        # The index is filled as they come: asking for it afterwards would walk them again.
        self._first.setdefault(name, value)
        if len(self._headers) > _HEADERS_MAX:
            raise ValueError("too many headers")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < _OK:
            if status == _SWITCHING_PROTOCOLS:
                raise ValueError("the upstream switched protocols unasked")
            self._headers, self._first = [], {}  # interim answer: the real one follows
            return
        self._head_seen = True
        if self._patient:
            self._be_patient(self._pool.limits.dead_s)
        head = ResponseHead(status, self._headers, self._first)
        call = self._call
        assert call is not None
        coding = head.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise ValueError("a transfer coding nobody offered to understand")
        self._framed = (
            coding is not None or head.get(b"content-length") is not None or status in _BODYLESS or call.method_is_head
        )
        connection = head.get(b"connection")
        if connection is not None:
            head.drop_named(connection)
        if call.method_is_head:
            # The parser goes on to expect a body; this connection is not used again.
            self.usable = False
            self._complete = True
        call.head_received(head)

    def on_message_complete(self) -> None:
        if self._head_seen:
            self._complete = True
            # Asked here, for the parser forgets it with the message.
            self._keep_alive = self._parser.should_keep_alive()

    # Endings

    def _finish(self) -> None:
        """The answer is complete: release the connection before the call's owner runs."""
        call, self._call = self._call, None
        assert call is not None
        transport = self._transport
        assert transport is not None
        if self.usable and not transport.is_closing() and self._keep_alive and not transport.get_write_buffer_size():
            if self._paused:
                self.resume()
            self.idle_since_s = self._pool.clock.monotonic_s()
            self._pool.give_back(self)
        else:
            self.close()
        call.completed()

    def _fail(self, error: UpstreamError) -> None:
        call, self._call = self._call, None
        self.close()
        if call is not None:
            call.failed(error)

    def drop(self, call: "UpstreamCall") -> None:
        """The owner of `call` gives it up."""
        if self._call is call:
            self._call = None
            self.close()
