"""One request and its answer, as a handler sees them.

The exchange knows HTTP framing of the answer; its connection knows the transport. Writing never waits: whoever pumps
a long answer watches `writable` (or lets `UpstreamCall.relay` do so).
"""

import asyncio
import random
from typing import Protocol

from gir.model.errors import ErrorKind, RequestError
from gir.net.answer import error_answer
from gir.net.body import BodyReader
from gir.net.message import Headers, RequestHead
from gir.net.render import CHUNKED, CLOSE, CONTINUE, LAST_CHUNK, response_head

_BODYLESS = frozenset({204, 304})
_JOIN_BYTES_MAX = 65_536
"""Above this, copying head and body together costs more than handing the transport two buffers."""


class Source(Protocol):
    """Whatever feeds the answer and can be told to hold on."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Link(Protocol):
    """What an exchange needs of its connection."""

    def send(self, data: bytes) -> None: ...

    def answered(self) -> None:
        """The answer is complete: serve the next request, or close."""

    def drop(self) -> None:
        """Close at once, so that what was sent cannot pass for a complete answer."""

    def closes_after_answer(self) -> bool: ...

    @property
    def writable(self) -> bool: ...

    async def until_writable(self) -> None: ...

    @property
    def origin(self) -> str: ...

    @property
    def chance(self) -> random.Random: ...


class Exchange:
    """A request in flight.

    `arrived_s` is the monotonic time its head was complete. `body_ready` is the whole body once it is here; set it to
    None when it is no longer needed, to free a long prompt during a long stream. `bytes_sent` counts body bytes.
    """

    __slots__ = (
        "_body_error",
        "_body_waiter",
        "_chunked",
        "_left_bytes",
        "_link",
        "_mute",
        "arrived_s",
        "begun",
        "body_bytes",
        "body_ready",
        "bytes_sent",
        "client_gone",
        "finished",
        "head",
        "reader",
        "response_started",
        "source",
        "task",
    )

    def __init__(self, link: Link, head: RequestHead, arrived_s: float) -> None:
        self._link = link
        self.head = head
        self.arrived_s = arrived_s
        self.body_ready: bytes | None = None
        self.reader: BodyReader | None = None
        self.response_started = False
        self.finished = False
        self.client_gone = False
        self.bytes_sent = 0
        self.begun = False
        self.body_bytes = max(0, head.body_length)
        """What the server has set aside for the body."""
        self.task: asyncio.Task[None] | None = None
        self.source: Source | None = None
        self._body_error: RequestError | None = None
        self._body_waiter: asyncio.Future[None] | None = None
        self._chunked = False
        self._left_bytes: int | None = None
        """Body bytes still owed under a declared length."""
        self._mute = False
        """The answer's body is not sent: HEAD, 204, 304."""

    def __repr__(self) -> str:
        state = "gone" if self.client_gone else "finished" if self.finished else "open"
        return f"<Exchange {self.head.method} {self.head.path} {state}, {self.bytes_sent} bytes sent>"

    # The request's body

    async def read_body(self) -> bytes:
        """The whole body; at once when it is already here.

        Raises RequestError: BODY_TOO_LARGE, SLOW_CLIENT, BAD_FRAMING, or UNSUPPORTED_MEDIA for a compressed body.
        """
        while self.body_ready is None:
            if self._body_error is not None:
                raise self._body_error
            if self.head.expects_continue:
                self.head.expects_continue = False
                if self.reader is not None and self.reader.received == 0:
                    self._link.send(CONTINUE)
            self._body_waiter = asyncio.get_running_loop().create_future()
            await self._body_waiter
        return self.body_ready

    def body_arrived(self, body: bytes) -> None:
        """The connection has read the body to its end."""
        if self.head.body_encoded:
            self.body_failed(
                RequestError(
                    ErrorKind.UNSUPPORTED_MEDIA, "compressed request bodies are not accepted: omit Content-Encoding"
                )
            )
            return
        self.body_ready = body
        self._wake_reader()

    def body_failed(self, error: RequestError) -> None:
        """The body will not come; whoever reads it learns why."""
        self._body_error = error
        self._wake_reader()

    def _wake_reader(self) -> None:
        waiter, self._body_waiter = self._body_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # The answer

    def respond(self, status: int, headers: Headers | bytes, body: bytes) -> None:
        """Send a whole answer in one write. `headers` hold no framing; raises ValueError on CR, LF or NUL in them.

        They may have been rendered already, by `gir.net.render.header_lines`.
        """
        self._must_not_have_started()
        framing = b"" if status in _BODYLESS else b"content-length: %d\r\n" % len(body)
        if self._link.closes_after_answer():
            framing += CLOSE
        head = response_head(status, headers, framing)
        self.response_started = True
        if self.client_gone:
            return
        if self.head.method == "HEAD" or status in _BODYLESS:
            body = b""
        if len(body) > _JOIN_BYTES_MAX:
            self._link.send(head)
            self._link.send(body)
        else:
            self._link.send(head + body)
        self.bytes_sent = len(body)
        self._end_answer()

    def respond_error(self, error: RequestError, extra_headers: Headers | None = None) -> None:
        """Send the row of the error table that `error` names."""
        status, headers, body = error_answer(error, self._link.origin, self._link.chance)
        self.respond(status, headers + (extra_headers or []), body)

    def start(self, status: int, headers: Headers | bytes, *, length: int | None = None) -> None:
        """Send the head of an answer whose body follows by `write`; without `length` it is chunked."""
        self._must_not_have_started()
        self._mute = self.head.method == "HEAD" or status in _BODYLESS
        framing = b""
        if status in _BODYLESS:
            pass
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
            self._left_bytes = None if self._mute else length
        elif not self.head.http10:
            framing = CHUNKED
            self._chunked = not self._mute
        if self._link.closes_after_answer():
            framing += CLOSE
        head = response_head(status, headers, framing)
        self.response_started = True
        if not self.client_gone:
            self._link.send(head)

    def write(self, data: bytes) -> None:
        """Send part of the body. Nothing happens once the client is gone."""
        if not data or self.client_gone or self._mute:
            return
        if self.finished or not self.response_started:
            raise RuntimeError(f"{self!r}: write between start and finish only")
        self.bytes_sent += len(data)
        if self._chunked:
            self._link.send(b"%x\r\n%b\r\n" % (len(data), data))
            return
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                self.abort()
                raise RuntimeError(f"{self!r}: the body outgrew its declared length")
        self._link.send(data)

    def finish(self) -> None:
        """End the body. A body shorter than declared is cut off instead, so that it cannot pass for complete."""
        if self.finished or self.client_gone:
            return
        if self._left_bytes:
            self.abort()
            return
        if self._chunked:
            self._link.send(LAST_CHUNK)
        self._end_answer()

    def abort(self) -> None:
        """Close the client's connection at once; a partial answer stays recognisable as such."""
        if not self.finished and not self.client_gone:
            self.finished = True
            self._link.drop()

    @property
    def writable(self) -> bool:
        """Whether the client keeps up; when False, stop writing until `until_writable` returns."""
        return self._link.writable

    async def until_writable(self) -> None:
        """Wait until the client has taken most of what was written."""
        await self._link.until_writable()

    def _must_not_have_started(self) -> None:
        if self.response_started:
            raise RuntimeError(f"{self!r}: the answer has already started")

    def _end_answer(self) -> None:
        self.finished = True
        self.source = None
        self._link.answered()

    # The client

    def left(self) -> None:
        """The client is gone: whatever the handler is doing, it stops now."""
        if self.finished:
            return
        self.client_gone = True
        if self.task is not None:
            self.task.cancel()
