"""Framing of server-sent event streams: which bytes may go on, and what they prove. No I/O.

Events pass through unchanged and whole. After the first token an event is parsed only if it holds a marker of
something that matters (usage, an end, an error); a typical token costs a few substring searches.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gir.model.request import Api, Usage
from gir.model.usage import merge_usage
from gir.net.events import (
    DONE,
    error_bytes,
    finished_choices,
    first_event_end,
    is_content,
    is_error,
    is_terminal,
    is_whole,
    marker_of,
    parse_payload,
    payload_of,
    split_events,
    stop_reason,
    text_of,
    usage_fields,
    whole_events_end,
)

__all__ = ["EVENT_BYTES_MAX", "EventFramer", "StreamIdentity", "error_bytes"]

EVENT_BYTES_MAX = 1_048_576
_SECOND = 2
"""The second chunk that is no error counts as content whatever it holds: a token may decode to empty text."""
_TYPED = frozenset({Api.MESSAGES, Api.RESPONSES})
"""APIs whose events name what they are, and several of which come before any token."""
_ENDS_WITH_DONE = frozenset({Api.CHAT, Api.COMPLETIONS})
_OBJECT_ENDS = (b"}\n\n", b"}\r\n\r\n")
"""How a block ends whose last event is an object; `[DONE]`, comments and half events end otherwise."""


class StreamIdentity(msgspec.Struct, frozen=True):
    """What stays the same in every chunk of one stream."""

    id: str
    created: int
    model: str


class EventFramer:
    """Feeds on the body of a streamed answer; gives back whole events, bytes unchanged.

    A half event is held back, so that a cut stream never leaks a broken one. `hide_usage` removes the usage-only
    chunk that was asked for on the client's behalf. `choices` (the request's `n`) says how many finish reasons prove
    the end. `keep_text` collects the text of the first choice, at the price of parsing every event. `hide_late_error`
    keeps an error that breaks the stream from the client, for a caller that means to mend it.
    """

    __slots__ = (
        "_careful",
        "_event_bytes_max",
        "_finished",
        "_held",
        "_marker",
        "_raw",
        "_text",
        "_unfinished",
        "api",
        "content_seen",
        "done_seen",
        "error_event",
        "events",
        "finish_reason",
        "hide_late_error",
        "hide_usage",
        "identity",
        "keep_text",
        "late_error",
        "lead_events",
        "terminal_seen",
        "usage",
    )

    def __init__(
        self,
        api: Api,
        *,
        hide_usage: bool = False,
        hide_late_error: bool = False,
        event_bytes_max: int = EVENT_BYTES_MAX,
        keep_text: bool = False,
        choices: int = 1,
    ) -> None:
        self.api = api
        self._event_bytes_max = event_bytes_max
        self._marker = marker_of(api).search
        self._held = bytearray()
        self._raw = False
        """In the middle of an event too large to be held: bytes pass until it ends."""
        self._careful = True
        """Every event is parsed: before the first token, or to keep the text."""
        self._text: list[str] = []
        self._finished: set[int] = set()
        self._unfinished = choices
        self.hide_usage = hide_usage
        self.hide_late_error = hide_late_error
        self.keep_text = keep_text
        self.content_seen = False
        self.error_event: bytes | None = None
        """Data of an error event that came before any content."""
        self.late_error: bytes | None = None
        """Data of an error event that came after content; passed on unless `hide_late_error`. A `[DONE]` after it
        proves nothing and is not passed on.
        """
        self.terminal_seen = False
        """The stream has proved its own end."""
        self.done_seen = False
        """By `[DONE]`, that is."""
        self.events = 0
        """Data events passed on, `[DONE]` and errors aside; one whose data spans lines counts each."""
        self.lead_events = 0
        """Of them, those before the first token: a role, or what typed APIs announce."""
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.identity: StreamIdentity | None = None

    def __repr__(self) -> str:
        state = "ended" if self.terminal_seen else "content" if self.content_seen else "waiting"
        return f"<EventFramer {self.api.value} {state}, {self.events} events, {len(self._held)} bytes held>"

    @property
    def text(self) -> str:
        """Text of the first choice so far, with `keep_text`."""
        return "".join(self._text)

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the body; the whole events that may go on (the same object, when nothing stands in the way)."""
        if data.endswith(_OBJECT_ENDS) and not self._held and not self._careful:
            if self._marker(data) is not None:
                return self._examine(data)
            self.events += data.count(b"\ndata:") + data.startswith(b"data:")
            return data
        return self._feed_slowly(data)

    def end(self) -> bytes:
        """The body has ended as its framing says; what may still go on.

        An engine that leaves out the last blank line is forgiven if its last event is whole and proves the end, or
        comes after the proof; any other rest is a cut event.
        """
        rest = bytes(self._held)
        self._held.clear()
        if self._raw or not is_whole(rest):
            return b""
        passed = self._examine(rest)
        return passed if self.terminal_seen else b""

    @property
    def missing_end(self) -> bytes:
        """The `[DONE]` that a complete stream still lacks: it was cut between its last token and there."""
        due = self.terminal_seen and self.late_error is None and self.api in _ENDS_WITH_DONE
        return b"data: [DONE]\n\n" if due and not self.done_seen else b""

    @property
    def loose_end(self) -> bytes:
        """What ends an event too large to be held that was cut in the middle, so that what follows is its own event."""
        return b"\n\n" if self._raw else b""

    # Framing

    def _feed_slowly(self, data: bytes) -> bytes:
        held = self._held
        searched = max(0, len(held) - 2)
        held += data
        if self._raw:
            return self._pass_raw(searched)
        end = whole_events_end(held, searched)
        if end:
            block = bytes(held[:end])
            del held[:end]
            return self._judge(block) + self._bound_held()
        return self._bound_held()

    def _bound_held(self) -> bytes:
        """Let go of an event that outgrew the bound; nothing is known about it but that it is no small talk."""
        if len(self._held) <= self._event_bytes_max:
            return b""
        self._raw = True
        self.content_seen = True
        self._careful = self.keep_text
        self.events += 1
        return self._pass_raw(len(self._held))

    def _pass_raw(self, searched: int) -> bytes:
        """Pass an oversized event; keep the last two bytes, in which its end may have begun."""
        held = self._held
        end = first_event_end(held, searched)
        if end:
            self._raw = False
            passed = bytes(held[:end])
            rest = bytes(held[end:])
            held.clear()
            return passed + (self.feed(rest) if rest else b"")
        passed = bytes(held[:-2])
        del held[:-2]
        return passed

    # Judging

    def _judge(self, block: bytes) -> bytes:
        """Note what whole events mean; `block` itself unless something in it is hidden."""
        if self._careful or not block.endswith(_OBJECT_ENDS) or self._marker(block) is not None:
            return self._examine(block)
        self.events += block.count(b"\ndata:") + block.startswith(b"data:")
        return block

    def _examine(self, block: bytes) -> bytes:
        hidden = False
        passed = []
        for event in split_events(block):
            if self._note(event):
                passed.append(event)
            else:
                hidden = True
        return b"".join(passed) if hidden else block

    def _note(self, event: bytes) -> bool:
        """Learn from one event; False when it must be hidden."""
        payload = payload_of(event)
        if payload is None:
            return True
        if payload.strip() == DONE:
            if self.late_error is not None:
                # Some engines say it after a failure, too; clients take it for the proof of success.
                return False
            self.terminal_seen = self.done_seen = True
            return True
        chunk = parse_payload(payload)
        if is_error(chunk):
            if self.terminal_seen:
                # Nothing was missing when it failed: to its client it is as complete as one that was cut here.
                return False
            self._note_end(chunk)
            if not self.content_seen:
                self.error_event = payload
                return True
            self.late_error = payload
            return not self.hide_late_error
        fields = usage_fields(chunk)
        if fields is not None:
            self.usage = merge_usage(self.usage, fields)
            if self.hide_usage and chunk.get("choices") == []:
                return False
        self.events += payload.count(b"\n") + 1
        self._note_content(chunk)
        self._note_end(chunk)
        return True

    def _note_content(self, chunk: Mapping[str, Any]) -> None:
        if self.keep_text:
            self._text.append(text_of(self.api, chunk))
        if self.content_seen:
            return
        if self.identity is None:
            self.identity = _identity(chunk)
        if is_content(self.api, chunk) or (self.events >= _SECOND and self.api not in _TYPED):
            self.content_seen = True
            self.lead_events = self.events - 1
            self._careful = self.keep_text

    def _note_end(self, chunk: Mapping[str, Any]) -> None:
        for index, reason in finished_choices(chunk):
            self._finished.add(index)
            self.finish_reason = reason
        self.finish_reason = stop_reason(self.api, chunk) or self.finish_reason
        if len(self._finished) >= self._unfinished or is_terminal(self.api, chunk):
            self.terminal_seen = True


def _identity(chunk: Mapping[str, Any]) -> StreamIdentity | None:
    try:
        return msgspec.convert(chunk, StreamIdentity)
    except msgspec.ValidationError:
        return None
