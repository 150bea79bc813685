"""Where the top-level keys of a JSON object stand in its bytes, and how deep it nests, without building it.

The relay forwards bodies byte for byte and edits them by splices, so it needs offsets, which no decoder gives. Every
step here is one C-speed pass over the bytes (replace, split, translate), so a hostile body costs linear time: escapes
are blanked, strings are cut out at their quotes, and what remains is the outline: brackets, colons and marks.

All functions expect text that already passed a JSON decoder and a UTF-8 check. They never look at values.
"""

import re
from itertools import accumulate

OUTLINE_MAX = 50_000
"""Brackets and mentions of one key in a body. Real requests have hundreds; decoding more would block the loop."""
QUOTES_MAX = 8 * OUTLINE_MAX
"""Quotes around the strings of a body: four strings for each bracket. Cutting out millions would block the loop."""

_MARK = b"\xff"
_KEY = b"\xfe"
"""Stand for a string that equals the key, and for one that is a key. Neither octet occurs in UTF-8."""
_SPACE = b" \t\r\n"
_NOT_OUTLINE = bytes(set(range(256)) - set(b"{}[]" + _MARK + _KEY))
_SIGNS = bytes.maketrans(b"{[}]" + _MARK + _KEY, b"\x01\x01\xff\xff\x00\x00")
"""Depth change of each outline byte, as a signed octet."""
_MARK_OR_KEY = re.compile(b"[\xfe\xff]")
COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
"""What makes the string before it a key."""


class OutlineError(ValueError):
    """The body has more than OUTLINE_MAX brackets or mentions of the key, or more than QUOTES_MAX quotes."""


class Key:
    """A key name, ready to be searched for in every spelling JSON allows."""

    __slots__ = ("literal", "pattern")

    def __init__(self, name: str) -> None:
        self.literal = f'"{name}"'.encode()
        spellings = (rf"(?:{re.escape(char)}|\\u00{_hex_any_case(char)})" for char in name)
        self.pattern = re.compile(f'"{"".join(spellings)}"'.encode())


def _hex_any_case(char: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{ord(char):02x}")


def key_offsets(body: bytes, key: Key) -> list[int]:
    """Offsets of the opening quotes of every top-level occurrence of `key` in the object `body`, in order.

    Raises OutlineError.
    """
    plain = _blank_escapes(body)
    outline = _outline(key.pattern.sub(_MARK, plain))
    depths = _depths(outline)
    top_level = {
        ordinal
        for ordinal, mark in enumerate(_MARK_OR_KEY.finditer(outline))
        if outline[mark.start()] == _KEY[0] and depths[mark.start()] == 1
    }
    if not top_level:
        return []
    return [match.start() for ordinal, match in enumerate(key.pattern.finditer(plain)) if ordinal in top_level]


def value_offset(body: bytes, key_offset: int) -> int:
    """Offset of the first byte of the value whose key's opening quote is at `key_offset`.

    Raises ValueError when that string is no key.
    """
    quote = body.index(b'"', key_offset + 1)
    colon = COLON.match(body, quote + 1)
    if colon is None:
        raise ValueError(f"no colon follows the string at byte {key_offset}: it is a value, not a key")
    return colon.end()


def opened(prefix: bytes) -> int:
    """How many objects and arrays are still open at the end of `prefix`, the beginning of a JSON text."""
    outside = b"".join(_blank_escapes(prefix).split(b'"')[::2])
    return outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")


def depth(body: bytes) -> int:
    """How many objects and arrays are open at once, at most. Raises OutlineError."""
    return max(_depths(_outline(_blank_escapes(body))), default=0)


def _blank_escapes(body: bytes) -> bytes:
    """Same length, with `\\\\` and `\\"` blanked, so that every quote left opens or closes a string.

    Raises OutlineError before anything is built of a body with too many of them.
    """
    plain = body.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in body else body
    quotes = plain.count(b'"')
    if quotes > QUOTES_MAX:
        raise OutlineError(f"{quotes // 2} strings; at most {QUOTES_MAX // 2} are accepted")
    return plain


def _outline(plain: bytes) -> bytes:
    """Brackets and marks of `plain` in order; a mark before a colon becomes a key."""
    outside = b"".join(plain.split(b'"')[::2])
    outline = outside.translate(None, _SPACE).replace(_MARK + b":", _KEY).translate(None, _NOT_OUTLINE)
    if len(outline) > OUTLINE_MAX:
        raise OutlineError(f"{len(outline)} brackets and keys; at most {OUTLINE_MAX} are accepted")
    return outline


def _depths(outline: bytes) -> list[int]:
    return list(accumulate(memoryview(outline.translate(_SIGNS)).cast("b")))
