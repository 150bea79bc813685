"""Continuing a broken stream on another cluster: the question for the rest, and the seam in the answer.

The engine is asked to go on with an unfinished assistant message (`continue_final_message`, as vLLM has it): delivered
text becomes the last message, `max_tokens` shrinks by what was delivered. The second half is rewritten to look like the
first: same id, created and model, no second role, usage summed over both. Only plain text chats are continued; grammar
state, tool calls, log probabilities and several choices cannot be carried over by text alone.
"""

import json
from typing import Any

import msgspec

from gir.model.request import Api, Usage
from gir.net.events import choices_of, parse_payload, payload_of, split_events
from gir.net.sse import EventFramer, StreamIdentity

_DATA = b"data: "


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """What the client has received so far of a stream that broke."""

    text: str
    tokens: int
    """Token events delivered; engines send one token in each."""
    identity: StreamIdentity


def tokens_in(framer: EventFramer) -> int:
    """Tokens that `framer` let through: engines send one in each event from the first token on."""
    return framer.events - framer.lead_events


def delivered_by(framer: EventFramer) -> Delivered | None:
    """What `framer` has let through; None when that cannot be continued (no text yet, or no identity)."""
    if framer.identity is None or not framer.text or framer.finish_reason is not None:
        return None
    if isinstance(framer, ResumedFramer):
        before = framer.before
        return Delivered(
            text=before.text + framer.text, tokens=before.tokens + tokens_in(framer), identity=before.identity
        )
    return Delivered(text=framer.text, tokens=tokens_in(framer), identity=framer.identity)


def body_for_the_rest(body: bytes, delivered: Delivered) -> bytes | None:
    """The request for the rest of the answer; None when nothing is left to ask for, or the body cannot say it."""
    asked: dict[str, Any] = json.loads(body)
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    last = messages[-1]
    if isinstance(last, dict) and last.get("role") == "assistant" and asked.get("continue_final_message"):
        if not isinstance(last.get("content"), str):
            return None
        messages = [*messages[:-1], {**last, "content": last["content"] + delivered.text}]
    else:
        messages = [*messages, {"role": "assistant", "content": delivered.text}]
    asked |= {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    for name in ("max_tokens", "max_completion_tokens"):
        bound = asked.get(name)
        if isinstance(bound, int):
            if bound <= delivered.tokens:
                return None
            asked[name] = bound - delivered.tokens
    floor = asked.get("min_tokens")
    if isinstance(floor, int):
        asked["min_tokens"] = max(0, floor - delivered.tokens)
    return json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()


class ResumedFramer(EventFramer):
    """Frames the second half of a stream and makes it the continuation of the first."""

    __slots__ = ("before",)

    def __init__(self, before: Delivered, *, hide_usage: bool) -> None:
        super().__init__(Api.CHAT, hide_usage=hide_usage, hide_late_error=True, keep_text=True)
        self.before = before

    def feed(self, data: bytes) -> bytes:
        """Whole events of the second half, rewritten."""
        return self._rewritten(super().feed(data))

    def end(self) -> bytes:
        """What may still go on at the end of the body, rewritten."""
        return self._rewritten(super().end())

    def total_usage(self) -> Usage | None:
        """Usage over both halves: the delivered text was prompt to the second engine and is output to the client."""
        second = self.usage
        if second is None:
            return None
        return Usage(
            prompt_tokens=max(0, second.prompt_tokens - self.before.tokens),
            completion_tokens=self.before.tokens + second.completion_tokens,
            cached_tokens=second.cached_tokens,
            reasoning_tokens=second.reasoning_tokens,
            estimated=True,
        )

    def _rewritten(self, block: bytes) -> bytes:
        return b"".join(map(self._event, split_events(block)))

    def _event(self, event: bytes) -> bytes:
        payload = payload_of(event)
        chunk = dict(parse_payload(payload)) if payload is not None else {}
        if not chunk:
            return event  # a comment, `[DONE]`, or nothing that could be told apart from the first half
        identity = self.before.identity
        chunk |= {"id": identity.id, "created": identity.created, "model": identity.model}
        for choice in choices_of(chunk):
            delta = choice.get("delta")
            if not isinstance(delta, dict):
                continue
            if delta.pop("role", None) is not None and not delta.get("content") and not choice.get("finish_reason"):
                return b""
        if isinstance(chunk.get("usage"), dict):
            chunk["usage"] = self._usage(chunk["usage"])
        return _DATA + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

    def _usage(self, second: dict[str, Any]) -> dict[str, Any]:
        before = self.before.tokens
        completion = before + _number(second.get("completion_tokens"))
        prompt = max(0, _number(second.get("prompt_tokens")) - before)
        return {**second, "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
