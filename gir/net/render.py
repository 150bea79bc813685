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


def header_block(headers: Headers) -> bytes:
    """Header lines, each with its line end; raises ValueError on CR, LF or NUL in a name or value."""
    block = b"".join([b"%b: %b\r\n" % header for header in headers])
    # Counting line ends of the whole block is much cheaper than looking into every value.
    if block.count(b"\n") != len(headers) or block.count(b"\r") != len(headers) or b"\0" in block:
        raise ValueError("a header holds CR, LF or NUL: strip or refuse it before it is sent on")
    return block


def request_head(method: str, target: bytes, host: bytes, headers: Headers, body_length: int) -> bytes:
    """Request line, Host, `headers` and Content-Length, up to and with the empty line.

    `headers` must hold neither Host nor framing; raises ValueError on characters that could split a message.
    """
    line = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode("ascii"), target, host)
    if line.count(b"\n") != 2 or line.count(b"\r") != 2 or line.count(b" ") != 3 or b"\0" in line:
        raise ValueError(f"request line {method} {target!r} to host {host!r} holds a space or control character")
    if body_length or method not in _METHODS_WITHOUT_BODY:
        return b"%b%bcontent-length: %d\r\n\r\n" % (line, header_block(headers), body_length)
    return b"%b%b\r\n" % (line, header_block(headers))


def response_head(status: int, headers: Headers, framing: bytes) -> bytes:
    """Status line, `headers` and the `framing` lines (Content-Length, CHUNKED, CLOSE), with the empty line."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
    return b"%b%b%b\r\n" % (line, header_block(headers), framing)


def chunk(data: bytes) -> bytes:
    """`data` (not empty: that would end the body) as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
