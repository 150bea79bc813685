"""Heads of HTTP/1.1 messages as bytes. The only place that writes a header line, so the only one that must refuse
characters which would let a value start a line of its own."""

import http

from gir.net.message import Headers

CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
_METHODS_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


def request_head(method: str, target: bytes, host: bytes, headers: Headers, body_length: int) -> bytes:
    """Request line, Host, `headers` and Content-Length, up to and with the empty line.

    `headers` must hold neither Host nor framing; raises ValueError on characters that could split a message.
    """
    start = request_start(method, target, host, headers)
    if body_length or method not in _METHODS_WITHOUT_BODY:
        return b"%bcontent-length: %d\r\n\r\n" % (start, body_length)
    return start + b"\r\n"


def request_start(method: str, target: bytes, host: bytes, headers: Headers) -> bytes:
    """Request line, Host and `headers`: what `request_end` completes. Raises ValueError as `request_head`."""
    if b" " in target or not target:
        raise ValueError(f"request target {target!r} is empty or holds a space: percent-encode it")
    start = b"%b %b HTTP/1.1\r\nhost: %b\r\n%b" % (method.encode("ascii"), target, host, _lines(headers))
    _check(start, len(headers) + 2)
    return start


def request_end(lines: bytes, body_length: int) -> bytes:
    """More header `lines` and Content-Length, with the empty line."""
    return b"%bcontent-length: %d\r\n\r\n" % (lines, body_length)


def response_head(status: int, headers: Headers | bytes, framing: bytes) -> bytes:
    """Status line, `headers` (or their lines) and the `framing` (Content-Length, CHUNKED, CLOSE), with the empty line.

    Raises ValueError on characters that could split a message.
    """
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
    lines = headers if isinstance(headers, bytes) else header_lines(headers)
    return b"%b%b%b\r\n" % (line, lines, framing)


def header_lines(headers: Headers) -> bytes:
    """`headers` as they stand in a head, for whoever keeps them. Raises ValueError as `request_head`.

    A value may be a `%` format, which makes a template. What fills it is not looked at again: numbers and names of
    ours only.
    """
    lines = _lines(headers)
    _check(lines, len(headers))
    return lines


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def _check(head: bytes, lines: int) -> None:
    """Counting the line ends of a whole head is much cheaper than looking into every value."""
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise ValueError("a header holds CR, LF or NUL: strip or refuse it before it is sent on")
