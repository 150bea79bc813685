"""What single server-sent events mean in each API. Pure: bytes and parsed JSON in, judgements out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gir.model.errors import ErrorKind, error_body
from gir.model.request import Api

DONE = b"[DONE]"
_BOUNDARY = re.compile(rb"\n\r?\n")
_RESPONSES_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_MESSAGES_TERMINAL = frozenset({"message_stop"})

_MARKERS = {
    Api.MESSAGES: re.compile(rb'"(?:usage"\s*:\s*\{|message_stop"|error")'),
    Api.RESPONSES: re.compile(rb'"(?:response\.(?:completed|incomplete|failed)"|error"\s*[,}]|error"\s*:\s*[^n\s])'),
}
_CHOICES_MARKER = re.compile(rb'"(?:usage"\s*:\s*\{|finish_reason"\s*:\s*"|error")')


def marker_of(api: Api) -> re.Pattern[bytes]:
    """What an event after the first token must hold to matter; without it, it is neither split off nor parsed.

    Text cannot imitate a marker, for inside a JSON string every quote is escaped. All alternatives begin with the same
    character, which lets the matcher skip to it at the speed of memchr.
    """
    return _MARKERS.get(api, _CHOICES_MARKER)


def split_events(block: bytes) -> Iterator[bytes]:
    """The events of `block`, each with the blank line that ends it; joined they are `block` again."""
    start = 0
    for boundary in _BOUNDARY.finditer(block):
        yield block[start : boundary.end()]
        start = boundary.end()
    if start < len(block):
        yield block[start:]


def whole_events_end(data: bytes | bytearray, start: int = 0) -> int:
    """End of the last complete event in `data`, looking from `start` on; 0 when none is complete."""
    lf = data.rfind(b"\n\n", start)
    crlf = data.rfind(b"\n\r\n", start)
    return max(lf + 2 if lf >= 0 else 0, crlf + 3 if crlf >= 0 else 0)


def first_event_end(data: bytearray, start: int) -> int:
    """End of the first event that ends in `data` at or after `start`; 0 when none does."""
    boundary = _BOUNDARY.search(data, start)
    return boundary.end() if boundary is not None else 0


def payload_of(event: bytes) -> bytes | None:
    """The data of an event, its lines joined; None for comments and empty events."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def is_whole(event: bytes) -> bool:
    """Whether an event without its blank line is all there: its data is `[DONE]` or an object."""
    payload = payload_of(event)
    return payload is not None and (payload.strip() == DONE or bool(parse_payload(payload)))


def parse_payload(payload: bytes) -> Mapping[str, Any]:
    """The JSON object of an event; empty when it is something else, which no judgement finds anything in."""
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def choices_of(chunk: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The choices of a chat or completions chunk, those that are objects."""
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def is_error(chunk: Mapping[str, Any]) -> bool:
    """Whether the engine reports failure: an `error` object, an object that is an error, or a failed response."""
    return (
        (bool(chunk.get("error")) and "choices" not in chunk)
        or chunk.get("object") == "error"
        or chunk.get("type") in {"error", "response.failed"}
    )


def is_content(api: Api, chunk: Mapping[str, Any]) -> bool:
    """Whether this event carries the first sign of generated output."""
    kind = chunk.get("type")
    if api is Api.MESSAGES:
        return kind in {"content_block_delta", "message_delta", "message_stop"}
    if api is Api.RESPONSES:
        return isinstance(kind, str) and (kind.endswith(".delta") or kind in _RESPONSES_TERMINAL)
    for choice in choices_of(chunk):
        delta = choice.get("delta")
        if "text" in choice or choice.get("finish_reason") is not None:
            return True
        if isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role"):
            return True
    return False


def is_terminal(api: Api, chunk: Mapping[str, Any]) -> bool:
    """Whether this event proves that nothing is missing (for choices see `finished_choices`)."""
    kind = chunk.get("type")
    if api is Api.MESSAGES:
        return kind in _MESSAGES_TERMINAL
    return api is Api.RESPONSES and kind in _RESPONSES_TERMINAL


def finished_choices(chunk: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Index and reason of each choice that ends here."""
    for choice in choices_of(chunk):
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            index = choice.get("index")
            yield (index if isinstance(index, int) else 0), reason


def stop_reason(api: Api, chunk: Mapping[str, Any]) -> str | None:
    """Why a message ended, in the Messages API, which calls it by another name."""
    delta = chunk.get("delta")
    reason = delta.get("stop_reason") if api is Api.MESSAGES and isinstance(delta, dict) else None
    return reason if isinstance(reason, str) else None


def text_of(api: Api, chunk: Mapping[str, Any]) -> str:
    """Text this event adds to the first choice."""
    if api is Api.MESSAGES:
        delta = chunk.get("delta")
        text = delta.get("text") if isinstance(delta, dict) else None
    elif api is Api.RESPONSES:
        text = chunk.get("delta") if chunk.get("type") == "response.output_text.delta" else None
    else:
        text = next((_choice_text(choice) for choice in choices_of(chunk) if choice.get("index", 0) == 0), None)
    return text if isinstance(text, str) else ""


def _choice_text(choice: Mapping[str, Any]) -> object:
    delta = choice.get("delta")
    return delta.get("content") if isinstance(delta, dict) else choice.get("text")


def usage_fields(chunk: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The usage object of an event, wherever the API puts it; None when it has none (null included)."""
    for holder in (chunk, chunk.get("response"), chunk.get("message")):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            return usage
    return None


def error_bytes(api: Api, kind: ErrorKind, message: str, origin: str = "gir") -> bytes:
    """The event that ends a broken stream, in the shape the clients of `api` understand."""
    row = kind.value
    if api is Api.MESSAGES:
        body = {"type": "error", "error": {"type": row.type, "message": f"{origin}: {message}"}}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(body)
    if api is Api.RESPONSES:
        text = f"{origin}: {message}"
        error = {"message": text, "type": row.type, "param": None, "code": row.code}
        failure = {"type": "error", "code": row.code, "message": text, "param": None, "error": error}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(failure)
    return b"data: %b\n\n" % error_body(kind, message, origin=origin)
