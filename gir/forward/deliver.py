"""Give the client the answer of an attempt that succeeded so far, and find out how it really ended.

The end of a stream is proved by its terminal event, never by the end of the bytes. A stream that breaks gets one error
event in the shape of its API, and no `[DONE]`.
"""

import msgspec

from gir.forward.answer import Answer
from gir.model.errors import ErrorKind
from gir.model.outcome import AttemptResult, Outcome, Phase
from gir.model.request import Api, Usage
from gir.net.errors import TotalTimeout, UpstreamError
from gir.net.exchange import Exchange
from gir.net.message import Headers
from gir.net.sse import error_bytes
from gir.wire.openai import read_usage


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """How a delivery ended."""

    outcome: Outcome
    result: AttemptResult
    phase: Phase
    usage: Usage | None = None
    detail: str = ""


async def deliver(exchange: Exchange, answer: Answer, headers: Headers, api: Api) -> Delivery:
    """Write the answer to the client. On cancellation (the client left) the upstream is closed at once."""
    if answer.call is None or answer.framer is None or answer.head is None:
        return _deliver_whole(exchange, answer, headers, api)
    call, framer = answer.call, answer.framer
    exchange.start(answer.head.status, headers)
    exchange.write(answer.held)
    trouble = ""
    outcome = Outcome.TRUNCATED
    try:
        await call.relay(exchange, framer)
    except UpstreamError as error:
        trouble = error.detail
        if isinstance(error, TotalTimeout):
            outcome = Outcome.EXPIRED
    except BaseException:
        call.abort()
        raise
    if framer.terminal_seen:
        exchange.finish()
        return Delivery(
            outcome=Outcome.COMPLETED, result=AttemptResult.OK, phase=Phase.DONE, usage=framer.usage, detail=trouble
        )
    call.abort()
    detail = trouble or "the stream ended without its terminal event"
    kind = ErrorKind.DEADLINE_EXCEEDED if outcome is Outcome.EXPIRED else ErrorKind.UPSTREAM_FAILED
    exchange.write(error_bytes(api, kind, f"the stream broke after its first token: {detail}", "gir"))
    exchange.finish()
    result = AttemptResult.CANCELLED if outcome is Outcome.EXPIRED else AttemptResult.UPSTREAM_FAULT
    return Delivery(outcome=outcome, result=result, phase=Phase.STREAMING, usage=framer.usage, detail=detail)


def _deliver_whole(exchange: Exchange, answer: Answer, headers: Headers, api: Api) -> Delivery:
    assert answer.head is not None, "a whole answer has a head"
    exchange.respond(answer.head.status, headers, answer.body)
    return Delivery(
        outcome=Outcome.COMPLETED, result=AttemptResult.OK, phase=Phase.DONE, usage=read_usage(api, answer.body)
    )
