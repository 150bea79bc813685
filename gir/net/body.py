"""Readers of request bodies: bytes in, leftovers out. No I/O.

The chunked reader is stricter than the grammar on purpose: extensions and trailers have no use here, and parsers that
disagree about them are how requests get smuggled.
"""

import re
from typing import Protocol

from gir.model.errors import ErrorKind, RequestError
from gir.net.request import bad_framing

_SIZE_LINE = re.compile(rb"[0-9A-Fa-f]{1,16}")
_SIZE_LINE_BYTES_MAX = 18


def body_too_large(bytes_max: int) -> RequestError:
    """The 413 that names the bound."""
    return RequestError(ErrorKind.BODY_TOO_LARGE, f"the request body exceeds {bytes_max} bytes: send a smaller one")


class BodyReader(Protocol):
    """Collects one body."""

    received: int
    """Body bytes so far."""

    def feed(self, data: bytes) -> bytes | None:
        """Take `data`; the bytes beyond the body once it is complete, None before. Raises RequestError."""

    def body(self) -> bytes:
        """The whole body, once."""


class LengthReader:
    """A body whose length was announced."""

    __slots__ = ("_length", "_parts", "received")

    def __init__(self, length: int) -> None:
        self._length = length
        self._parts: list[bytes] = []
        self.received = 0

    def feed(self, data: bytes) -> bytes | None:
        missing = self._length - self.received
        if len(data) < missing:
            self._parts.append(data)
            self.received += len(data)
            return None
        self._parts.append(data[:missing])
        self.received = self._length
        return data[missing:]

    def body(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class ChunkedReader:
    """A chunked body, bounded, without extensions and trailers."""

    __slots__ = ("_bytes_max", "_chunk_left", "_held", "_parts", "received")

    _SIZE_LINE_NEXT = -1
    _LAST_LINE_NEXT = -2

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._held = b""
        """Start of a line that has not ended yet; a few bytes at most."""
        self._chunk_left = self._SIZE_LINE_NEXT
        """Bytes of the current chunk still to come, or which line comes next."""
        self.received = 0

    def feed(self, data: bytes) -> bytes | None:
        if self._held:
            data = self._held + data
            self._held = b""
        position = 0
        while True:
            if self._chunk_left > 0:
                part = data[position : position + self._chunk_left]
                if not part:
                    return None
                self._parts.append(part)
                position += len(part)
                self.received += len(part)
                self._chunk_left -= len(part)
                continue
            end = self._line_end(data, position)
            if end is None:
                self._held = data[position:]
                return None
            if self._chunk_left == self._LAST_LINE_NEXT:
                if end != position:
                    raise bad_framing("trailers are not accepted")
                return data[end + 2 :]
            self._start_chunk(data[position:end])
            position = end + 2

    def _line_end(self, data: bytes, position: int) -> int | None:
        """Where the line at `position` ends; None when more bytes are needed."""
        end = data.find(b"\r\n", position, position + _SIZE_LINE_BYTES_MAX)
        if end >= 0:
            return end
        if len(data) - position >= _SIZE_LINE_BYTES_MAX:
            raise bad_framing("a chunk's line is too long; extensions and trailers are not accepted")
        return None

    def _start_chunk(self, line: bytes) -> None:
        """Read what follows a chunk's data (its line end) or a size line."""
        if self._chunk_left == 0:
            if line:
                raise bad_framing("a chunk is longer than its size says")
            self._chunk_left = self._SIZE_LINE_NEXT
            return
        if not _SIZE_LINE.fullmatch(line):
            raise bad_framing("a chunk's size must be hexadecimal digits alone")
        size = int(line, 16)
        if self.received + size > self._bytes_max:
            raise body_too_large(self._bytes_max)
        self._chunk_left = size or self._LAST_LINE_NEXT

    def body(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
