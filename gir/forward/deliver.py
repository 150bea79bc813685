"""Give the client the answer of an attempt that succeeded so far, and find out how it really ended.

The end of a stream is proved by its terminal event, never by the end of the bytes. A stream that breaks gets one error
event in the shape of its API, and no `[DONE]`.
"""

import msgspec

from gir.forward.answer import Answer
from gir.forward.resume import ResumedFramer
from gir.model.errors import ErrorKind
from gir.model.outcome import AttemptResult, Outcome, Phase
from gir.model.request import Api, Usage
from gir.net.errors import TotalTimeout, UpstreamError
from gir.net.exchange import Exchange
from gir.net.sse import error_bytes
from gir.wire.usage import read_usage, written_tokens


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """How a delivery ended."""

    outcome: Outcome
    result: AttemptResult
    phase: Phase
    usage: Usage | None = None
    tokens: int = 0
    """Of a whole answer whose engine counted none: an estimate."""
    detail: str = ""
    told: bool = False
    """The upstream's own error event has reached the client, so it needs none of ours."""


def deliver_whole(exchange: Exchange, answer: Answer, headers: bytes) -> Delivery:
    """Answer with a body that is complete."""
    assert answer.head is not None, "a whole answer has a head"
    exchange.respond(answer.head.status, headers, answer.body)
    usage = read_usage(answer.body)
    return Delivery(
        outcome=Outcome.COMPLETED,
        result=AttemptResult.OK,
        phase=Phase.DONE,
        usage=usage,
        tokens=written_tokens(answer.body) if usage is None else 0,
    )


async def deliver_stream(exchange: Exchange, answer: Answer) -> Delivery:
    """Relay a stream whose response has been started; leaves a broken one unfinished.

    On cancellation (the client left) the upstream is closed at once.
    """
    call, framer = answer.call, answer.framer
    assert call is not None and framer is not None, "only an open stream can be relayed"
    exchange.write(answer.held)
    trouble, expired = "", False
    try:
        await call.relay(exchange, framer)
    except UpstreamError as error:
        trouble, expired = error.detail, isinstance(error, TotalTimeout)
    except BaseException:
        call.abort()
        raise
    if framer.loose_end:
        exchange.write(framer.loose_end)
    usage = framer.total_usage() if isinstance(framer, ResumedFramer) else framer.usage
    if framer.terminal_seen:
        if framer.missing_end:
            exchange.write(framer.missing_end)
        exchange.finish()
        return Delivery(
            outcome=Outcome.COMPLETED, result=AttemptResult.OK, phase=Phase.DONE, usage=usage, detail=trouble
        )
    call.abort()
    return Delivery(
        outcome=Outcome.EXPIRED if expired else Outcome.TRUNCATED,
        result=AttemptResult.CANCELLED if expired else AttemptResult.UPSTREAM_FAULT,
        phase=Phase.STREAMING,
        usage=usage,
        detail=trouble or "the stream ended without its terminal event",
        told=framer.late_error is not None and not framer.hide_late_error,
    )


def tell_broken(exchange: Exchange, delivery: Delivery, api: Api) -> None:
    """End a stream that broke: one error event, no `[DONE]`."""
    if not delivery.told:
        kind = ErrorKind.DEADLINE_EXCEEDED if delivery.outcome is Outcome.EXPIRED else ErrorKind.UPSTREAM_FAILED
        exchange.write(error_bytes(api, kind, f"the stream broke after its first token: {delivery.detail}", "gir"))
    exchange.finish()
