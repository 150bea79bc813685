"""One try of one request on one pod, up to its end or to the failure that another pod may hide.

What a retry may do is decided by one fact: has the client seen anything? Until the first token of a stream, or the last
byte of a whole answer, nothing was shown, and `run` returns a `Failed`; from then on it finishes what it began, with an
error event if it must.
"""

import msgspec

from gir.clock import Clock
from gir.model.errors import ErrorKind
from gir.model.outcome import Outcome
from gir.model.request import Api, Usage
from gir.net.errors import ConnectFailed, TotalTimeout, UpstreamError
from gir.net.message import Headers, ResponseHead
from gir.net.pool import UpstreamPool
from gir.net.sse import EventFramer, error_bytes
from gir.net.upstream import CallDeadlines, UpstreamCall
from gir.wire.openai import read_usage
from tier1_agent.config import ForwardSection
from tier1_agent.job import Job, returned
from tier1_agent.pods import Ticket

_BUSY = frozenset({429, 503})


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of which the client saw nothing."""

    detail: str
    kind: ErrorKind = ErrorKind.UPSTREAM_FAILED
    """What to say when nobody else can serve it."""
    answer: tuple[int, Headers, bytes] | None = None
    """The engine's own answer, which is better than ours."""
    fault: bool = True
    """Counts against the pod; a full one is no fault."""


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt whose answer reached the client, whole or cut."""

    outcome: Outcome
    usage: Usage | None = None
    detail: str = ""
    fault: bool = False
    served: bool = False
    """The engine did the work that was asked for: not a refusal, not cut."""


class Attempt:
    """The attempt `number` of `job` under `ticket`. Whoever runs it closes the ticket."""

    __slots__ = ("_clock", "_job", "_limits", "_ticket", "_upstream")

    def __init__(self, job: Job, ticket: Ticket, upstream: UpstreamPool, limits: ForwardSection, clock: Clock) -> None:
        self._job = job
        self._ticket = ticket
        self._upstream = upstream
        self._limits = limits
        self._clock = clock

    async def run(self) -> Failed | Delivered:
        """Try; on cancellation (the client left) the pod's connection is closed at once."""
        limits, job = self._limits, self._job
        head_s = limits.head_s if job.peeked.stream else limits.whole_s
        deadlines = CallDeadlines(head_s, limits.first_token_s, limits.idle_s, job.deadline_s)
        head = job.head_for(self._ticket.pod, self._upstream.endpoint)
        try:
            call = await self._upstream.send(head, job.body, deadlines=deadlines)
        except UpstreamError as error:
            return _failed(error)
        try:
            return await self._answer(call)
        except UpstreamError as error:
            return _failed(error)
        finally:
            call.abort()

    async def _answer(self, call: UpstreamCall) -> Failed | Delivered:
        head = await call.head()
        headers = returned(head, self._ticket.pod)
        if head.status == 200 and head.is_event_stream:
            return await self._stream(call, headers)
        body = await call.read_all(self._limits.response_bytes_max)
        if head.status >= 500 or head.status in _BUSY:
            busy = head.status in _BUSY
            kind = ErrorKind.NO_CAPACITY if busy else ErrorKind.UPSTREAM_FAILED
            detail = f"{self._ticket.pod.spec.id} answered {head.status}"
            return Failed(detail=detail, kind=kind, answer=(head.status, headers, body), fault=not busy)
        return self._whole(head, headers, body)

    def _whole(self, head: ResponseHead, headers: Headers, body: bytes) -> Delivered:
        """A complete answer; the engine's refusals (4xx) pass as they came."""
        self._job.exchange.respond(head.status, headers, body)
        if head.status >= 300:
            return Delivered(outcome=Outcome.COMPLETED, detail=f"status {head.status}")
        return Delivered(outcome=Outcome.COMPLETED, usage=read_usage(body), served=True)

    async def _stream(self, call: UpstreamCall, headers: Headers) -> Failed | Delivered:
        job, exchange = self._job, self._job.exchange
        framer = EventFramer(job.api, choices=job.peeked.choices)
        held = await call.hold(framer)
        pod = self._ticket.pod.spec.id
        if framer.error_event is not None:
            return Failed(detail=f"{pod} reported an error: {framer.error_event[:200].decode('utf-8', 'replace')}")
        if not framer.content_seen and not framer.terminal_seen and job.api is not Api.OTHER:
            return Failed(detail=f"{pod} ended the stream before its first token")
        job.pool.first_token(self._ticket, self._clock.monotonic_s())
        job.body = b""
        exchange.body_ready = None
        exchange.start(200, headers)
        exchange.write(held)
        trouble: UpstreamError | None = None
        try:
            await call.relay(exchange, framer)
        except UpstreamError as error:
            trouble = error
        if framer.loose_end:
            exchange.write(framer.loose_end)
        usage = framer.usage or Usage(completion_tokens=framer.events, estimated=True)
        if framer.terminal_seen or (trouble is None and job.api is Api.OTHER):
            if framer.missing_end:
                exchange.write(framer.missing_end)
            exchange.finish()
            return Delivered(outcome=Outcome.COMPLETED, usage=usage, served=True)
        return self._cut(framer, trouble, usage)

    def _cut(self, framer: EventFramer, trouble: UpstreamError | None, usage: Usage) -> Delivered:
        """End a stream that broke: one error event in the shape of its API, and no proof of completeness."""
        exchange, api = self._job.exchange, self._job.api
        expired = isinstance(trouble, TotalTimeout)
        detail = trouble.detail if trouble is not None else "it ended without its terminal event"
        if framer.late_error is None:
            kind = ErrorKind.DEADLINE_EXCEEDED if expired else ErrorKind.UPSTREAM_FAILED
            exchange.write(error_bytes(api, kind, f"the stream broke after its first token: {detail}", "agent"))
        exchange.finish()
        outcome = Outcome.EXPIRED if expired else Outcome.TRUNCATED
        return Delivered(outcome=outcome, usage=usage, detail=detail, fault=not expired)


def _failed(error: UpstreamError) -> Failed:
    """A transport failure as what it means for the request and the pod."""
    if isinstance(error, TotalTimeout):
        return Failed(detail=error.detail, kind=ErrorKind.DEADLINE_EXCEEDED, fault=False)
    kind = ErrorKind.NO_CAPACITY if isinstance(error, ConnectFailed) else ErrorKind.UPSTREAM_FAILED
    return Failed(detail=error.detail, kind=kind)
