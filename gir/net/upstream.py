"""One call to an upstream: its deadlines, its answer, and the splice to a client.

Bytes arrive by callback (`received`, `completed`, `failed`); the owner's coroutine asks for the head, then either for
the whole body, or for the bytes up to the first token and a relay of the rest. While relaying, a read from the
upstream becomes a write to the client inside the same callback: no task, no await and no JSON per chunk.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from gir.model.outcome import Phase
from gir.net.errors import (
    ConnectionLost,
    FirstTokenTimeout,
    HeadTimeout,
    IdleTimeout,
    ResponseTooLarge,
    TotalTimeout,
    UpstreamError,
)
from gir.net.exchange import Exchange
from gir.net.link import UpstreamLink
from gir.net.message import ResponseHead
from gir.net.sse import EventFramer
from gir.net.wheel import HORIZON_S

if TYPE_CHECKING:
    from gir.net.pool import UpstreamPool

_HELD_BYTES_HIGH = 65_536
"""Bytes waiting for the owner above which the upstream is paused."""
_HOLD_BYTES_MAX = 1_048_576
"""What may come before the first token."""


class CallDeadlines(msgspec.Struct, frozen=True):
    """Longest waits of one call, in seconds; `total_at_s` is a moment of the monotonic clock."""

    head_s: float
    """From dispatch to the response head."""
    first_token_s: float
    """From dispatch to the first content."""
    idle_s: float
    """Without a byte while the body is coming."""
    total_at_s: float = float("inf")


class UpstreamCall:
    """A request that was sent and its answer. Made by `UpstreamPool.send`.

    Whoever is cancelled while waiting here aborts the call: an upstream works for nobody.
    """

    __slots__ = (
        "_body",
        "_client",
        "_complete",
        "_deadlines",
        "_error",
        "_framer",
        "_head",
        "_held",
        "_held_bytes",
        "_link",
        "_paused",
        "_pool",
        "_progress",
        "_progress_at_s",
        "_request",
        "_resend",
        "_sent_at_s",
        "_streaming",
        "_waiter",
        "_waits_for_token",
        "any_byte",
        "body_bytes",
        "method_is_head",
        "reused",
    )

    def __init__(
        self, pool: "UpstreamPool", head: bytes, body: bytes, deadlines: CallDeadlines, *, resend: bool
    ) -> None:
        self._pool = pool
        self._request = head
        self._body = body
        self._deadlines = deadlines
        self._resend = resend
        self._link: UpstreamLink | None = None
        self._head: ResponseHead | None = None
        self._error: UpstreamError | None = None
        self._complete = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._client: Exchange | None = None
        self._framer: EventFramer | None = None
        self._streaming = False
        self._waits_for_token = False
        self._sent_at_s = 0.0
        self._progress = -1
        """Body bytes at the wheel's last look."""
        self._progress_at_s = 0.0
        self.any_byte = False
        self.body_bytes = 0
        self.method_is_head = head.startswith(b"HEAD ")
        self.reused = False

    def __repr__(self) -> str:
        return f"<UpstreamCall {self._pool.endpoint} {self.phase.value}, {self.body_bytes} bytes>"

    @property
    def dispatched(self) -> bool:
        """Whether the request's bytes were handed to a connected transport."""
        return self._link is not None

    @property
    def phase(self) -> Phase:
        """How far the call got."""
        if self._streaming:
            return Phase.STREAMING
        if self._head is not None:
            return Phase.HEAD
        return Phase.DISPATCHED

    @property
    def held_up(self) -> bool:
        """The upstream is not read from, because the client does not keep up."""
        return self._paused

    # Towards the owner

    async def head(self) -> ResponseHead:
        """The response head; raises UpstreamError."""
        while self._head is None:
            if self._error is not None:
                if not self._may_resend():
                    raise self._error
                await self._send_again()
            else:
                await self._wait()
        return self._head

    async def read_all(self, limit_bytes: int) -> bytes:
        """The whole body; raises UpstreamError, ResponseTooLarge beyond `limit_bytes`, ConnectionLost if cut."""
        if self._head is None:
            await self.head()
        parts: list[bytes] = []
        while True:
            parts += self._take_held()
            if self.body_bytes > limit_bytes:
                self.abort()
                raise ResponseTooLarge(self.phase, f"the answer exceeds {limit_bytes} bytes")
            if self._complete:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            if self._error is not None:
                raise self._error
            await self._wait()

    async def hold(self, framer: EventFramer) -> bytes:
        """Feed `framer` until it has seen content, an error event or the end; the bytes to send the client first.

        Raises UpstreamError; FirstTokenTimeout counts from dispatch.
        """
        await self.head()
        self._waits_for_token = True
        if self._link is not None:
            self._link.watch(self._sent_at_s + self._deadlines.first_token_s)
        ready: list[bytes] = []
        while True:
            ready.extend(map(framer.feed, self._take_held()))
            if framer.content_seen or framer.error_event is not None:
                break
            if self._complete:
                ready.append(framer.end())
                break
            if self._error is not None:
                raise self._error
            if self.body_bytes > _HOLD_BYTES_MAX:
                self.abort()
                raise ResponseTooLarge(self.phase, f"no content in the first {_HOLD_BYTES_MAX} bytes")
            await self._wait()
        self._waits_for_token = False
        return ready[0] if len(ready) == 1 else b"".join(ready)

    async def relay(self, exchange: Exchange, framer: EventFramer | None) -> None:
        """Copy the rest of the body to `exchange`, whose answer has started; returns at its clean end.

        Raises UpstreamError when the body is cut or stalls; what came before that has been sent.
        """
        await self.head()
        self._streaming = True
        self._framer = framer
        self._client = exchange
        exchange.source = self
        try:
            for part in self._take_held():
                exchange.write(part if framer is None else framer.feed(part))
            if not exchange.writable:
                self.pause()
            if not self._complete and self._error is None:
                self._watch_progress()
            while not self._complete:
                if self._error is not None:
                    raise self._error
                await self._wait()
            if framer is not None:
                rest = framer.end()
                if rest:
                    exchange.write(rest)
        finally:
            exchange.source = None
            self._client = None

    def abort(self) -> None:
        """Close the upstream connection at once. Harmless when the call is over."""
        if self._link is not None:
            self._link.drop(self)
        if self._error is not None:
            # The frames it was raised through hold this call and the request's body: only the collector would end that.
            self._error.__traceback__ = None

    def give_up(self, error: UpstreamError) -> None:
        """End the call from outside: close the upstream and raise `error` to whoever waits here."""
        self._expire(error)

    # Towards the client's connection (exchange.Source)

    def pause(self) -> None:
        """Stop reading from the upstream: the client does not keep up."""
        if not self._paused and self._link is not None and not self._complete:
            self._paused = True
            self._link.pause()

    def resume(self) -> None:
        """Read again."""
        if self._paused and self._link is not None:
            self._paused = False
            self._progress_at_s = self._pool.clock.monotonic_s()
            if not self._complete:
                self._link.resume()

    # From the link

    def dispatch(self, link: UpstreamLink, now_s: float, *, reused: bool) -> None:
        """Send the request over `link`."""
        self._link = link
        self.reused = reused
        self._sent_at_s = now_s
        due_s = min(now_s + self._deadlines.head_s, self._deadlines.total_at_s)
        if due_s < now_s + HORIZON_S:
            link.watch(due_s)
        link.begin(self, self._request, self._body)

    def head_received(self, head: ResponseHead) -> None:
        """The head is here; the request will not be sent again, so its bytes are let go."""
        self._head = head
        self._request = self._body = b""
        self._wake()

    def received(self, data: bytes) -> None:
        """A read's worth of body."""
        self.body_bytes += len(data)
        client = self._client
        if client is not None:
            if self._framer is not None:
                data = self._framer.feed(data)
            client.write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _HELD_BYTES_HIGH:
            self.pause()
        self._wake()

    def completed(self) -> None:
        """The body ended where its framing says."""
        self._complete = True
        self._wake()

    def failed(self, error: UpstreamError) -> None:
        """The connection or the answer broke."""
        self._error = error
        self._wake()

    def check(self, now_s: float) -> float | None:
        """Enforce the deadlines; when to look again."""
        deadlines = self._deadlines
        if now_s >= deadlines.total_at_s:
            self._expire(TotalTimeout(self.phase, "the request's deadline passed"))
            return None
        if self._head is None:
            due_s = self._sent_at_s + deadlines.head_s
            if now_s >= due_s:
                self._expire(HeadTimeout(self.phase, f"no response head within {deadlines.head_s:g} s"))
                return None
        elif self._waits_for_token:
            due_s = self._sent_at_s + deadlines.first_token_s
            if now_s >= due_s:
                self._expire(FirstTokenTimeout(self.phase, f"no content within {deadlines.first_token_s:g} s"))
                return None
        else:
            if self.body_bytes != self._progress or self._paused:
                self._progress = self.body_bytes
                self._progress_at_s = now_s
            elif now_s - self._progress_at_s >= deadlines.idle_s:
                self._expire(IdleTimeout(self.phase, f"nothing came for {deadlines.idle_s:g} s"))
                return None
            due_s = now_s + min(HORIZON_S, deadlines.idle_s / 4)
        return min(due_s, deadlines.total_at_s)

    # Inside

    def _take_held(self) -> list[bytes]:
        held, self._held = self._held, []
        self._held_bytes = 0
        if self._paused:
            self.resume()
        return held

    def _watch_progress(self) -> None:
        self._progress = self.body_bytes
        self._progress_at_s = self._pool.clock.monotonic_s()
        if self._link is not None:
            self._link.watch(self._progress_at_s + min(HORIZON_S, self._deadlines.idle_s / 4))

    def _expire(self, error: UpstreamError) -> None:
        self.abort()
        self.failed(error)

    def _may_resend(self) -> bool:
        return self._resend and self.reused and not self.any_byte and isinstance(self._error, ConnectionLost)

    async def _send_again(self) -> None:
        self._resend = False
        link = await self._pool.connect(self._deadlines.total_at_s)
        self._error = None
        self.dispatch(link, self._pool.clock.monotonic_s(), reused=False)

    async def _wait(self) -> None:
        """Until something happens; a cancelled owner takes the upstream connection with it."""
        self._waiter = self._pool.new_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
