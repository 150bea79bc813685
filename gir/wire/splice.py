"""The two edits a router may make to a body. Every byte outside the edited value stays as it came."""

import re

import msgspec
from msgspec import Raw

from gir.wire import jsonscan, refusals
from gir.wire.structure import MODEL_KEY
from gir.wire.survey import Survey

_STREAM_OPTIONS = jsonscan.Key("stream_options")
_INCLUDE_USAGE = jsonscan.Key("include_usage")
_ESCAPED = rb"\u00"
_NEAR_BYTES = 256
_NEAR_MODEL = re.compile(rb'(?<!\\)"model"[ \t\r\n]*:')
"""The key, and not the end of a longer one with a quote in it."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def with_model(body: bytes, new_model: str) -> bytes:
    """`body` with the value of its top-level `model` replaced.

    `body` must have passed `peek`; raises ValueError when it has no `model` string.
    """
    start = _model_offset(body)
    old = _STRING.match(body, start)
    if old is None:
        raise ValueError(f"the value of model at byte {start} is not a string: pass only bodies that peek accepted")
    return b"".join((body[:start], msgspec.json.encode(new_model), body[old.end() :]))


def with_include_usage(body: bytes, *, absent: bool = False) -> bytes:
    """`body` with `stream_options.include_usage` true.

    `body` must have passed `peek` for an API with stream_options (chat or completions); `absent`: it has none, as
    `Peek.options_absent` knows.
    """
    options = None if absent else _decode_members(body).get("stream_options")
    if options is None:
        start = body.index(b"{") + 1
        return b"".join((body[:start], b'"stream_options":{"include_usage":true},', body[start:]))
    start = _value_offset(body, _STREAM_OPTIONS)
    return b"".join((body[:start], _with_true(bytes(options)), body[start + len(options) :]))


def edited(surveyed: Survey, *, model: str | None, include_usage: bool) -> bytes:
    """Both edits on a large body at once, by the places its survey has found; `model` None leaves the model alone.

    The body must have passed `peek`.
    """
    body = surveyed.body
    edits: list[tuple[int, int, bytes]] = []
    if model is not None:
        start = jsonscan.value_offset(body, surveyed.model_at[-1])
        old = _STRING.match(body, start)
        assert old is not None, "peek has read it"
        edits.append((start, old.end(), msgspec.json.encode(model)))
    if include_usage and surveyed.options_at:
        start = jsonscan.value_offset(body, surveyed.options_at[-1])
        edits.append((start, start + len(surveyed.options), _with_true(surveyed.options)))
    elif include_usage:
        start = body.index(b"{") + 1
        edits.append((start, start, b'"stream_options":{"include_usage":true},'))
    parts: list[bytes] = []
    at = 0
    for start, end, new in sorted(edits):
        parts += (body[at:start], new)
        at = end
    return b"".join((*parts, body[at:])) if parts else body


def _with_true(options: bytes) -> bytes:
    """The raw value of stream_options (an object or null), with include_usage true."""
    if options == b"null":
        return b'{"include_usage":true}'
    members = _decode_members(options)
    old = members.get("include_usage")
    if old is None:
        return b"".join((b'{"include_usage":true', b"," if members else b"", options[1:]))
    start = _value_offset(options, _INCLUDE_USAGE)
    return b"".join((options[:start], b"true", options[start + len(old) :]))


def _model_offset(body: bytes) -> int:
    """Offset of the value of the one top-level `model`: most clients begin with it."""
    first = _NEAR_MODEL.search(body, 0, _NEAR_BYTES)
    if first is not None and jsonscan.opened(body[: first.start()]) == 1:
        return jsonscan.value_offset(body, first.start())
    return _value_offset(body, MODEL_KEY)


def _value_offset(body: bytes, key: jsonscan.Key) -> int:
    """Offset of the value of the top-level `key`: of the last one, which engines obey, when there are several.

    Raises RequestError BAD_JSON when there is too much to look through.
    """
    if body.count(key.literal) == 1 and _ESCAPED not in body:
        return jsonscan.value_offset(body, body.index(key.literal))
    try:
        offsets = jsonscan.key_offsets(body, key)
    except jsonscan.OutlineError as error:
        refusals.refuse_outline(error)
    if not offsets:
        raise ValueError(f"the body has no top-level {key.literal.decode()}: pass only bodies that peek accepted")
    return jsonscan.value_offset(body, offsets[-1])
