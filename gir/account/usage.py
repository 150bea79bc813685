"""What a request took, when the engine said so and when it did not. Pure."""

from gir.model.request import Usage

NO_USAGE = Usage()


def delivered_usage(
    reported: Usage | None, *, started: bool, complete: bool, prompt_tokens_estimate: int, content_events: int
) -> Usage:
    """Usage to settle a request by.

    `reported` is what the engine counted, merged over the answer. Without it (the client left, or the stream broke,
    before the final count) the tokens are counted from what was delivered: engines send one content event per token,
    and more per event only under speculative decoding. Of a whole answer `content_events` is an estimate by the length
    of its text. Such figures are marked as estimated. A request that delivered nothing (`started` False) took nothing.
    `complete` says that the answer's end was seen: a count that came before the end covers what had been sent when it
    was made, so the larger of the two figures holds.
    """
    if not started:
        return NO_USAGE
    if reported is not None and (complete or reported.completion_tokens >= content_events):
        return reported
    if reported is not None:
        return Usage(
            prompt_tokens=reported.prompt_tokens or prompt_tokens_estimate,
            completion_tokens=content_events,
            cached_tokens=reported.cached_tokens,
            reasoning_tokens=reported.reasoning_tokens,
            estimated=True,
        )
    return Usage(prompt_tokens=prompt_tokens_estimate, completion_tokens=content_events, estimated=True)
