"""One try of one request on one cluster, up to the moment when the client could be answered.

The response head is held until there is something to show for it: the first token of a stream, the whole body
otherwise. So a 200 whose first event is an error, a truncated body or silence can still be tried elsewhere.
"""

import asyncio
from collections.abc import Callable

import msgspec

from gir.forward.phases import classify
from gir.forward.resume import Delivered, ResumedFramer
from gir.forward.underway import ClusterLostError, Underway
from gir.model.outcome import AttemptResult, Phase
from gir.model.request import Api
from gir.net.errors import TotalTimeout, UpstreamError
from gir.net.message import ResponseHead
from gir.net.pool import UpstreamPool
from gir.net.sse import EventFramer
from gir.net.upstream import CallDeadlines, UpstreamCall
from gir.wire import headers as names

_ERROR_BODY_BYTES_MAX = 1024 * 1024


class Answer(msgspec.Struct, kw_only=True):
    """How far one attempt got. `call` is still open only when a stream is ready to be relayed."""

    result: AttemptResult
    phase: Phase
    head: ResponseHead | None = None
    body: bytes = b""
    call: UpstreamCall | None = None
    framer: EventFramer | None = None
    held: bytes = b""
    """Bytes of the stream up to and including its first token."""
    may_be_elsewhere: bool = False
    lost: bool = False
    """The cluster was taken out of service: its requests move, which makes no work for the fleet that it had not."""
    detail: str = ""

    @property
    def status(self) -> int | None:
        """HTTP status, if a head came."""
        return self.head.status if self.head else None

    @property
    def retry_after_s(self) -> float | None:
        """`Retry-After` of the answer in seconds; None when absent or not a plain number."""
        value = self.head.get(names.RETRY_AFTER) if self.head else None
        return float(value) if value and value.isdigit() and len(value) < 8 else None


class AttemptPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What every attempt of a request has in common."""

    api: Api
    body: bytes
    deadlines: CallDeadlines
    response_bytes_max: int
    choices: int = 1
    """How many choices must have ended before the stream has."""
    hide_usage: bool = False
    resumable: bool = False
    """Remember the delivered text, so that the stream can be continued elsewhere."""
    resumes: Delivered | None = None
    """What an earlier attempt has delivered already, when this one is to continue it."""

    def framer(self) -> EventFramer:
        """A framer for the answer of one attempt."""
        if self.resumes is not None:
            return ResumedFramer(self.resumes, hide_usage=self.hide_usage)
        return EventFramer(
            self.api,
            hide_usage=self.hide_usage,
            hide_late_error=self.resumable,
            keep_text=self.resumable,
            choices=self.choices,
        )


async def open_answer(
    pool: UpstreamPool, wire_head: bytes, plan: AttemptPlan, underway: Underway, may_move: Callable[[], bool]
) -> Answer:
    """Send and wait until the client could be answered, or until it is clear that it cannot.

    While nothing has come, the call is listed in `underway`, so that health may fail it early if it `may_move`. Never
    raises UpstreamError: faults are answers. Cancellation closes the upstream at once.
    """
    call: UpstreamCall | None = None
    try:
        call = await pool.send(wire_head, plan.body, deadlines=plan.deadlines)
        underway.waiting[call] = may_move
        head = await call.head()
        return await _read(call, head, plan)
    except UpstreamError as error:
        if call is not None:
            call.abort()
        # How much time a request has is its client's choice: that it was too little says nothing about the cluster.
        result = AttemptResult.CANCELLED if isinstance(error, TotalTimeout) else AttemptResult.LOCAL_FAULT
        lost = isinstance(error, ClusterLostError)
        return Answer(result=result, phase=error.phase, lost=lost, detail=error.detail)
    except asyncio.CancelledError:
        if call is not None:
            call.abort()
        raise
    finally:
        if call is not None:
            underway.waiting.pop(call, None)


async def _read_error(call: UpstreamCall, head: ResponseHead) -> Answer:
    verdict = classify(head.status, from_agent=head.get(names.ORIGIN) == b"agent")
    body = await call.read_all(_ERROR_BODY_BYTES_MAX)
    return Answer(
        result=verdict.result,
        phase=Phase.HEAD,
        head=head,
        body=body,
        may_be_elsewhere=verdict.may_be_elsewhere,
        detail=f"status {head.status}",
    )


async def _read(call: UpstreamCall, head: ResponseHead, plan: AttemptPlan) -> Answer:
    if not 200 <= head.status < 300:
        return await _read_error(call, head)
    if not head.is_event_stream:
        body = await call.read_all(plan.response_bytes_max)
        return Answer(result=AttemptResult.OK, phase=Phase.DONE, head=head, body=body)
    framer = plan.framer()
    held = await call.hold(framer)
    trouble = ""
    if framer.error_event is not None:
        trouble = "error event before the first token"
    elif not framer.content_seen and not framer.terminal_seen:
        trouble = "the stream ended before its first token"
    if trouble:
        call.abort()
        return Answer(result=AttemptResult.UPSTREAM_FAULT, phase=Phase.HEAD, head=head, detail=trouble)
    return Answer(result=AttemptResult.OK, phase=Phase.STREAMING, head=head, call=call, framer=framer, held=held)
