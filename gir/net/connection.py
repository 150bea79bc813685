"""One client connection: the request side of HTTP/1.1, deadlines and flow control.

The transport is never paused while a whole request is in flight, for a paused transport does not see the client leave;
what a client may send ahead is bounded instead. End of input counts as leaving.
"""

import asyncio
import enum
import random
from typing import cast

from gir.model.errors import ErrorKind, RequestError
from gir.net.answer import error_answer
from gir.net.body import BodyReader, ChunkedReader, LengthReader, body_too_large
from gir.net.exchange import Exchange
from gir.net.host import Host
from gir.net.message import RequestHead
from gir.net.render import CLOSE, response_head
from gir.net.request import CHUNKED, HeadReader, bad_framing
from gir.net.turns import LARGE_BYTES
from gir.net.wheel import HORIZON_S

_UNSTAMPED = -1.0
"""A deadline that starts to run when the wheel next looks: reading the clock for every answer is not worth it."""


class State(enum.Enum):
    """What the next bytes from the client are."""

    HEAD = "head"
    BODY = "body"
    BUSY = "busy"
    """A complete request is in flight; more bytes belong to a later one."""
    LINGER = "linger"
    """The last answer is sent; bytes are dropped until the client hangs up."""
    CLOSED = "closed"


HEAD, BODY, BUSY, LINGER, CLOSED = State
"""Reading a member off its class costs more than the comparison it is wanted for."""


class ServerConnection(asyncio.Protocol):
    """Protocol object of one accepted connection."""

    __slots__ = (
        "_drained",
        "_drained_at_s",
        "_due_s",
        "_exchange",
        "_heads",
        "_held",
        "_host",
        "_idle",
        "_keep_alive",
        "_overrun",
        "_reader",
        "_served",
        "_state",
        "_transport",
        "_window_received",
        "_writable_waiter",
        "_written",
        "peer",
        "peer_names",
        "wheel_slot",
        "writable",
    )

    def __init__(self, host: Host, peer: str) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._state = HEAD
        self._idle = False
        """Between requests: not a byte of the next one is here."""
        self._heads = HeadReader()
        self._held = b""
        """Part of a head, or bytes sent ahead."""
        self._overrun = False
        """Input can no longer be told apart into requests; the connection ends with the answer."""
        self._exchange: Exchange | None = None
        self._reader: BodyReader | None = None
        self._keep_alive = True
        self._served = 0
        self._due_s = 0.0
        self._window_received = 0
        self._written = 0
        self._drained = 0
        self._drained_at_s = 0.0
        self._writable_waiter: asyncio.Future[None] | None = None
        self.writable = True
        self.peer = peer
        self.peer_names: tuple[str, ...] = ()
        self.wheel_slot = 0

    def __repr__(self) -> str:
        return f"<ServerConnection {self.peer} {self._state.value}, {self._served} served>"

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio transports by shape, not by inheritance.
        self._transport = cast("asyncio.Transport", transport)
        # Read on only once everything is delivered: a read of the loop can be a quarter of a megabyte.
        self._transport.set_write_buffer_limits(high=self._host.limits.write_high_bytes, low=0)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.peer_names = tuple(str(value) for _, value in certificate.get("subjectAltName", ()))
        self._due_within(self._host.limits.header_read_s)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is HEAD:
            self._read_head(data)
        elif state is BODY:
            self._read_body(data)
        elif state is BUSY:
            self._hold_ahead(data)

    def eof_received(self) -> bool:
        if self._exchange is not None:
            self.drop()
        return False

    def connection_lost(self, _: Exception | None) -> None:
        self._leave()
        self._host.lost(self)

    def pause_writing(self) -> None:
        self.writable = False
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.pause()

    def resume_writing(self) -> None:
        self.writable = True
        waiter, self._writable_waiter = self._writable_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.resume()

    # The request

    def _read_head(self, data: bytes) -> None:
        limits = self._host.limits
        searched = 0
        if self._held:
            searched = max(0, len(self._held) - 3)
            data = self._held + data
            self._held = b""
        end = data.find(b"\r\n\r\n", searched)
        if (end + 4 if end >= 0 else len(data)) > limits.header_bytes_max:
            problem = f"the request head exceeds {limits.header_bytes_max} bytes: shorten it"
            self._refuse(RequestError(ErrorKind.HEADERS_TOO_LARGE, problem))
        elif end < 0:
            self._hold_head(data)
        else:
            try:
                head = self._heads.read(data[: end + 4], limits, self.peer, self.peer_names)
            except RequestError as error:
                self._refuse(error)
                return
            self._begin(head, data[end + 4 :])

    def _hold_head(self, data: bytes) -> None:
        """Keep an unfinished head; refuse at once what can never become one."""
        ends = data.count(b"\r\n")
        if not data[:1].isalpha():
            self._refuse(bad_framing("this is not an HTTP request"))
        elif data.count(b"\n") != ends or data.count(b"\r") - data.endswith(b"\r") != ends:
            self._refuse(bad_framing("lines must end with CR LF"))
        else:
            self._held = data
            if self._idle:
                self._idle = False
                self._due_within(self._host.limits.header_read_s)

    def _begin(self, head: RequestHead, rest: bytes) -> None:
        host = self._host
        length = head.body_length
        if length > host.limits.body_bytes_max:
            self._refuse(body_too_large(host.limits.body_bytes_max))
            return
        self._keep_alive = head.keep_alive
        if not host.room(length):
            self._turn_away(length, rest)
            return
        exchange = self._exchange = Exchange(self, head, host.clock.monotonic_s())
        if length == len(rest):
            self._state = BUSY
            exchange.body_arrived(rest)
        else:
            self._state = BODY
            self._reader = ChunkedReader(host.limits.body_bytes_max) if length == CHUNKED else LengthReader(length)
            exchange.reader = self._reader
            self._window_received = 0
            self._due_within(host.limits.body_window_s)
            self._read_body(rest)
        host.serve(exchange)

    def _turn_away(self, length: int, rest: bytes) -> None:
        """No room: say so without a handler; keep the connection if the request is here to its end."""
        error = _no_room()
        if 0 <= length <= len(rest) and self._keep_alive and not self._host.draining:
            self._state = BUSY
            self._held = rest[length:]
            self._host.refused(error.kind)
            self._send_error(error, b"")
            self.answered()
        else:
            self._refuse(error)

    def _read_body(self, data: bytes) -> None:
        reader, exchange = self._reader, self._exchange
        assert reader is not None
        assert exchange is not None
        try:
            rest = reader.feed(data)
        except RequestError as error:
            self._fail_body(error)
            return
        if rest is None:
            if exchange.head.body_length == CHUNKED and not self._host.grown(exchange, reader.received):
                self._fail_body(_no_room())
            elif max(exchange.head.body_length, reader.received) > LARGE_BYTES and self._transport is not None:
                self._host.turns.took(self._transport, len(data))
            return
        self._state = BUSY
        self._reader = exchange.reader = None
        exchange.body_arrived(reader.body())
        if rest:
            self._hold_ahead(rest)

    def _fail_body(self, error: RequestError) -> None:
        """Stop reading; the handler learns of it, answers, and the connection closes behind the answer."""
        assert self._exchange is not None
        self._reader = self._exchange.reader = None
        self._overrun = True
        self._state = BUSY
        self._exchange.body_failed(error)

    def _hold_ahead(self, data: bytes) -> None:
        """Keep what a pipelining client sends ahead, up to the bound; past it the connection ends with the answer."""
        if self._overrun:
            return
        if len(self._held) + len(data) > self._host.limits.pipeline_bytes_max:
            self._overrun = True
            self._held = b""
        else:
            self._held += data

    # The answer: what Exchange calls

    @property
    def origin(self) -> str:
        return self._host.origin

    @property
    def chance(self) -> random.Random:
        return self._host.clock.random

    def send(self, data: bytes) -> None:
        transport = self._transport
        # Between a reset and the news of it the transport is closed already; writing to it would raise.
        if transport is not None and not transport.is_closing():
            self._written += len(data)
            transport.write(data)

    def closes_after_answer(self) -> bool:
        if self._overrun or self._state is BODY or self._host.draining:
            self._keep_alive = False
        return not self._keep_alive

    async def until_writable(self) -> None:
        while not self.writable:
            if self._writable_waiter is None:
                self._writable_waiter = asyncio.get_running_loop().create_future()
            await self._writable_waiter

    def answered(self) -> None:
        self._exchange = None
        self._served += 1
        if not self._keep_alive or self._overrun:
            self._hang_up()
            return
        self._state = HEAD
        self._idle = True
        self._due_s = _UNSTAMPED
        if self._held:
            held, self._held = self._held, b""
            self._read_head(held)

    def drop(self) -> None:
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    # Endings

    def _refuse(self, error: RequestError) -> None:
        """Answer without a handler and hang up."""
        self._host.refused(error.kind)
        self._send_error(error, CLOSE)
        self._overrun = True
        self._hang_up()

    def _send_error(self, error: RequestError, closing: bytes) -> None:
        status, headers, body = error_answer(error, self.origin, self.chance)
        framing = b"content-length: %d\r\n%b" % (len(body), closing)
        self.send(response_head(status, headers, framing) + body)

    def _hang_up(self) -> None:
        """Close behind the last answer; if input may still come, drop it for a while, lest a reset eat the answer."""
        transport = self._transport
        clean = self._state is BUSY and not self._overrun
        self._state = LINGER
        self._held = b""
        self._reader = None
        if transport is None or transport.is_closing():
            return
        self._host.turns.leave(transport)
        if clean:
            transport.close()
        elif transport.can_write_eof():
            transport.write_eof()
        self._due_within(self._host.limits.linger_s)

    def _leave(self) -> None:
        self._state = CLOSED
        if self._transport is not None:
            self._host.turns.leave(self._transport)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.left()
            if not exchange.begun:
                self._host.never_begun(exchange)
        self.resume_writing()

    def close_if_idle(self, *, fresh_too: bool) -> None:
        """Close between requests, for the server drains; `fresh_too`: also if no request has come so far."""
        if self._state is HEAD and not self._held and (fresh_too or self._served) and self._transport is not None:
            self._transport.close()

    # Deadlines: what Wheel calls

    def _due_within(self, duration_s: float) -> None:
        self._due_s = self._host.clock.monotonic_s() + duration_s
        self._host.wheel.watch(self, self._due_s)

    def check(self, now_s: float) -> float | None:
        """Enforce the deadlines; when to look again."""
        transport = self._transport
        if transport is None or self._state is CLOSED:
            return None
        unsent = transport.get_write_buffer_size()
        if self._stalled(unsent, now_s):
            self.drop()
            return None
        if self._due_s == _UNSTAMPED:
            self._due_s = now_s + self._host.limits.keep_alive_s
        elif now_s >= self._due_s:
            self._overdue(unsent, now_s)
        again_s = self._due_s if self._due_s > now_s else now_s + HORIZON_S
        return min(again_s, now_s + self._host.limits.write_stall_s / 4) if unsent else again_s

    def _stalled(self, unsent: int, now_s: float) -> bool:
        """Whether bytes wait for the client and it has taken none for too long."""
        drained = self._written - unsent
        if not unsent or drained != self._drained:
            self._drained = drained
            self._drained_at_s = now_s
        return now_s - self._drained_at_s >= self._host.limits.write_stall_s

    def _overdue(self, unsent: int, now_s: float) -> None:
        assert self._transport is not None
        if self._state is HEAD and self._held:
            self._refuse(RequestError(ErrorKind.SLOW_CLIENT, "the request head took too long to arrive"))
        elif self._state is HEAD:
            self._transport.close()
        elif self._state is BODY:
            self._judge_body_rate(now_s)
        elif self._state is LINGER and not unsent:
            self._transport.abort()

    def _judge_body_rate(self, now_s: float) -> None:
        limits, turns = self._host.limits, self._host.turns
        assert self._reader is not None
        assert self._transport is not None
        too_slow = self._reader.received - self._window_received < limits.body_bytes_per_s_min * limits.body_window_s
        if too_slow and not turns.waits(self._transport):
            problem = f"the request body came slower than {limits.body_bytes_per_s_min} bytes per second"
            self._fail_body(RequestError(ErrorKind.SLOW_CLIENT, problem))
        else:
            self._window_received = self._reader.received
            self._due_s = now_s + limits.body_window_s


def _no_room() -> RequestError:
    return RequestError(ErrorKind.NO_CAPACITY, "too many requests are in flight here: try again later")
