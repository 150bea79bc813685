"""Look through a large body before it is decoded, a little at a time, so that no body holds up the event loop.

A decoder works in one go: thirty megabytes of brackets, of values or of members would stop every other request for
hundreds of milliseconds. What a body's structure costs to decode is known once its brackets and commas are counted, so
they are counted first, in slices between which others get their turn. A body within the bounds decodes in the time that
its length alone takes.
"""

from collections.abc import Iterator
from itertools import accumulate

import msgspec
from msgspec import Raw

from gir.wire import jsonscan, refusals
from gir.wire.structure import MODEL_KEY

LARGE_BYTES = 1024 * 1024
"""Smaller bodies are decoded at once: whatever they hold, that takes less than 30 ms."""
SLICE_BYTES = 128 * 1024
VALUES_MAX = 1_000_000
"""Commas outside strings: a prompt of as many token ids."""
MEMBERS_MAX = 10_000
"""Members of the outermost object."""
MENTIONS_MAX = 10_000
"""Strings that could be one of the keys whose place is looked for."""
OUTSIDE_BYTES_MAX = 12 * 1024 * 1024
"""Bytes outside strings: white space takes a decoder longer than text does."""
BACKSLASHES_MAX = 2_000_000
"""A decoder takes ten times as long for an escape as for a letter; a prompt of as many Chinese characters, escaped."""
NAME_BYTES_MAX = 64 * 1024
"""Longest raw value of a field that is read as text, such as `user`."""

_ESCAPED = rb"\u00"
_BACKSLASH = 0x5C
OPTIONS_KEY = jsonscan.Key("stream_options")
_KEY_BYTES_MAX = 6 * len("stream_options") + 2
"""A key with each letter spelled as an escape, and its quotes."""

_NOT_OUTLINE = bytes(set(range(256)) - set(b"{}[],"))
_SIGNS = bytes.maketrans(b"{[}],", b"\x01\x01\xff\xff\x00")


class _Names(msgspec.Struct):
    model: Raw = Raw()
    user: Raw = Raw()
    prompt_cache_key: Raw = Raw()
    conversation: Raw = Raw()
    metadata: Raw = Raw()
    stream_options: Raw = Raw()
    n: Raw = Raw()
    max_tokens: Raw = Raw()
    max_completion_tokens: Raw = Raw()
    max_output_tokens: Raw = Raw()


_decode_names = msgspec.json.Decoder(_Names).decode


def is_large(body: bytes) -> bool:
    """Whether `body` must be surveyed before `peek`."""
    return len(body) > LARGE_BYTES


class Survey:
    """What is found out about one body on the way through it."""

    __slots__ = (
        "_depth",
        "_depth_max",
        "_inside",
        "_mentions",
        "_slice_bytes",
        "body",
        "model_at",
        "options",
        "options_at",
    )

    def __init__(self, body: bytes, depth_max: int, *, slice_bytes: int = SLICE_BYTES) -> None:
        self.body = body
        self._depth_max = depth_max
        self._slice_bytes = slice_bytes
        self._depth = 0
        self._inside = 0
        """1 while the place reached lies in a string."""
        self._mentions = 0
        self.model_at: list[int] = []
        """Offsets of the opening quotes of every top-level key `model`."""
        self.options_at: list[int] = []
        """The same of `stream_options`."""
        self.options = b""
        """Raw value of the last `stream_options`."""

    def steps(self) -> Iterator[None]:
        """Prove that decoding the body takes little more than its length costs; yields where others may have a turn.

        Raises RequestError BAD_JSON for more structure than that, for nesting too deep and for text that is not UTF-8;
        BAD_REQUEST for a name as long as a text. What is no JSON passes: the decoder says best what is wrong with it.
        """
        try:
            yield from self._structure()
        except jsonscan.OutlineError as error:
            refusals.refuse_outline(error)
        try:
            names = _decode_names(self.body)
        except (msgspec.DecodeError, RecursionError):
            return
        for name in names.__struct_fields__:
            length = len(memoryview(getattr(names, name)))
            if length > NAME_BYTES_MAX:
                refusals.refuse_long(name, length, NAME_BYTES_MAX)
        self.options = bytes(names.stream_options)
        yield

    def _structure(self) -> Iterator[None]:
        body, at = self.body, 0
        values = brackets = members = outside_bytes = backslashes = 0
        while at < len(body):
            part = _slice(body, at, self._slice_bytes)
            backslashes += part.count(b"\\")
            _bound(backslashes, BACKSLASHES_MAX, "backslashes")
            if not part.isascii():
                part = _whole_characters(body, at, part)
            if b'"' in part or not self._inside:
                self._find(MODEL_KEY, at, len(part), self.model_at)
                self._find(OPTIONS_KEY, at, len(part), self.options_at)
                outside, self._inside = _outside(part, self._inside)
                outside_bytes += len(outside)
                _bound(outside_bytes, OUTSIDE_BYTES_MAX, "bytes outside strings")
                outline = outside.translate(None, _NOT_OUTLINE)
                commas = outline.count(b",")
                values += commas
                brackets += len(outline) - commas
                _bound(brackets, jsonscan.OUTLINE_MAX, "brackets")
                _bound(values, VALUES_MAX, "values")
                members += self._descend(outline)
                _bound(members, MEMBERS_MAX, "fields")
            at += len(part)
            yield

    def _descend(self, outline: bytes) -> int:
        """Follow the brackets; how many commas of the outermost object they pass."""
        depths = list(accumulate(memoryview(outline.translate(_SIGNS)).cast("b"), initial=self._depth))
        self._depth = depths[-1]
        if max(depths) > self._depth_max:
            refusals.refuse_depth(self._depth_max)
        return sum(map(_is_member, outline, depths)) if min(depths) <= 1 else 0

    def _find(self, key: jsonscan.Key, at: int, length: int, found: list[int]) -> None:
        """Note where `key` stands as a top-level key in the slice of so many bytes at `at`."""
        body, depth, inside, seen = self.body, self._depth, self._inside, at
        end = min(at + length + _KEY_BYTES_MAX, len(body))
        if body.find(key.literal, at, end) < 0 and body.find(_ESCAPED, at, end) < 0:
            return
        for match in key.pattern.finditer(body, at, end):
            start = match.start()
            if start >= at + length:
                break
            if _is_escaped(body, seen, start):
                continue
            self._mentions += 1
            _bound(self._mentions, MENTIONS_MAX, "mentions of the fields `model` and `stream_options`")
            outside, inside = _outside(body[seen:start], inside)
            depth += outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")
            seen = start
            if not inside and depth == 1 and jsonscan.COLON.match(body, match.end()):
                found.append(start)


def _bound(count: int, count_max: int, what: str) -> None:
    if count > count_max:
        raise jsonscan.OutlineError(f"more than {count_max} {what}")


def _is_member(octet: int, depth: int) -> bool:
    return octet == 0x2C and depth == 1


def _slice(body: bytes, at: int, length: int) -> bytes:
    """The next slice, which ends after a whole escape sequence."""
    end = min(at + length, len(body))
    return body[at : end + _is_escaped(body, at, end)]


def _whole_characters(body: bytes, at: int, part: bytes) -> bytes:
    """`part` lengthened to whole characters. Raises RequestError when it is not UTF-8."""
    end = at + len(part)
    while end < len(body) and body[end] & 0xC0 == 0x80 and end - at < len(part) + 3:
        end += 1
    part = body[at:end]
    try:
        part.decode()
    except UnicodeDecodeError as error:
        error.start += at
        refusals.refuse_utf8(error)
    return part


def _outside(part: bytes, inside: int) -> tuple[bytes, int]:
    """What stands outside strings in `part`, which begins within one if `inside`; and whether it ends within one."""
    plain = part.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in part else part
    pieces = plain.split(b'"')
    return b"".join(pieces[inside::2]), (inside + len(pieces) - 1) % 2


def _is_escaped(body: bytes, start: int, end: int) -> bool:
    """Whether an escape sequence that begins at `start` or later ends with the octet at `end`. Copies nothing."""
    run = end
    while run > start and body[run - 1] == _BACKSLASH:
        run -= 1
    return (end - run) % 2 == 1
