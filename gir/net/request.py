"""Strict reading of a request head: bytes in, a value or a refusal out. No I/O.

llhttp judges the grammar (it refuses bare CR or LF, obs-fold, NUL, space before a colon, Content-Length beside
Transfer-Encoding, repeated or odd lengths). What it lets pass and a proxy must not is refused here: other protocol
versions, doubled spaces, empty lines before the request, missing or repeated Host, lengths that may be read as octal,
codings besides `chunked`, odd targets, unknown expectations.
Each head gets a fresh parser, so nothing of one request can leak into the reading of the next.
"""

import re
from collections.abc import Callable

import httptools

from gir.model.errors import ErrorKind, RequestError
from gir.net.limits import ServerLimits
from gir.net.message import Headers, RequestHead

CHUNKED = -1
"""Body length that stands for "chunked: known when it ends"."""

_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect", b"content-encoding"})
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,11}")
_LENGTH_LINE = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (%b)(?=\r\n)" % _LENGTH.pattern)
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]+")
_SCHEME = re.compile(rb"https?://([^/?#@]+)", re.IGNORECASE)


class _Sink:
    """What httptools calls back; it looks for no other method, so bodies and events cost nothing."""

    __slots__ = ("on_header",)

    def __init__(self, on_header: Callable[[bytes, bytes], object]) -> None:
        self.on_header = on_header


def bad_framing(why: str) -> RequestError:
    """The 400 after which the connection closes: nobody can tell where the next request begins."""
    return RequestError(ErrorKind.BAD_FRAMING, f"malformed HTTP request: {why}")


class HeadReader:
    """Reads the heads of one connection.

    Clients repeat their head from request to request but for the length of the body, so a head that is the last one
    again, its Content-Length aside, is the same `RequestHead` again, with whatever `memo` a handler left on it.
    """

    __slots__ = ("_after", "_before", "_head")

    def __init__(self) -> None:
        self._head: RequestHead | None = None
        self._before = self._after = b""
        """The last head's bytes before and after the number in its one Content-Length line."""

    def read(self, raw: bytes, limits: ServerLimits, peer: str, peer_names: tuple[str, ...]) -> RequestHead:
        """As `parse_request`. A remembered head's `headers` leave Content-Length out: `body_length` has it."""
        head = self._head
        if head is not None and raw.startswith(self._before) and raw.endswith(self._after):
            length = raw[len(self._before) : len(raw) - len(self._after)]
            if _LENGTH.fullmatch(length):
                head.body_length = int(length)
                return head
        head = parse_request(raw, limits, peer, peer_names)
        line = _LENGTH_LINE.search(raw)
        if line is not None and not (head.expects_continue or head.body_encoded):
            head.drop({b"content-length"})
            self._head, self._before, self._after = head, raw[: line.start(1)], raw[line.end(1) :]
        return head


def parse_request(raw: bytes, limits: ServerLimits, peer: str, peer_names: tuple[str, ...]) -> RequestHead:
    """Read the head `raw`, which ends with its empty line; raises RequestError, after which the connection closes."""
    count = raw.count(b"\n") - 2
    if count > limits.headers_max:
        raise RequestError(
            ErrorKind.HEADERS_TOO_LARGE, f"{count} headers exceed the {limits.headers_max} allowed: send fewer"
        )
    headers, first = _read_headers(raw, count)
    line = raw[: raw.find(b"\r\n")].split(b" ")
    if len(line) != 3 or not line[0][:1].isalpha():
        raise bad_framing("the request line must be METHOD TARGET VERSION, one space apart")
    method_name, target, version = line
    method = _METHODS.get(method_name)
    if method is None:
        raise RequestError(ErrorKind.METHOD_NOT_ALLOWED, f"method {method_name.decode('ascii')} is not served here")
    if len(target) > limits.target_bytes_max:
        raise RequestError(
            ErrorKind.HEADERS_TOO_LARGE, f"the request target exceeds {limits.target_bytes_max} bytes: shorten it"
        )
    target = _origin_form(method, target)
    path, _, query = target.decode("ascii").partition("?")
    head = RequestHead(method, target, path, query, headers, peer, peer_names, first)
    if version == b"HTTP/1.0":
        head.http10 = True
        head.keep_alive = False
    elif version != b"HTTP/1.1":
        raise bad_framing("only HTTP/1.1 and HTTP/1.0 are spoken here")
    _judge(head, first)
    return head


def _read_headers(raw: bytes, count: int) -> tuple[Headers, dict[bytes, bytes]]:
    """The `count` headers of `raw` as a list and by name, in lower case, after llhttp accepted the whole head."""
    fields: dict[bytes, bytes] = {}
    # The dictionary's own method collects without a call into Python; only repeated names need the slower way.
    _run_parser(raw, fields.setdefault)
    first = {name.lower(): value for name, value in fields.items()}
    if len(first) == count:
        return list(first.items()), first
    headers: Headers = []
    _run_parser(raw, lambda name, value: headers.append((name.lower(), value)))
    return headers, _first_values(headers)


def _first_values(headers: Headers) -> dict[bytes, bytes]:
    """Index of headers with repeated names; those that frame the message must not be repeated."""
    first: dict[bytes, bytes] = {}
    for name, value in headers:
        if name not in first:
            first[name] = value
        elif name == b"connection":
            first[name] += b"," + value
        elif name in _ONCE:
            raise bad_framing(f"more than one {name.decode('ascii')} header")
    return first


def _run_parser(raw: bytes, on_header: Callable[[bytes, bytes], object]) -> None:
    parser = httptools.HttpRequestParser(_Sink(on_header))
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        # An offer to switch protocols is ignored; the request itself is served as HTTP/1.1.
        return
    except httptools.HttpParserError as error:
        raise bad_framing(str(error)) from None


def _judge(head: RequestHead, first: dict[bytes, bytes]) -> None:
    """Read off what frames the message: Host, lengths, Connection, Expect."""
    host = first.get(b"host")
    if host is None:
        if not head.http10:
            raise bad_framing("the Host header is missing")
    elif not _HOST.fullmatch(host):
        raise bad_framing("Host must be a name or address with an optional port")
    length = first.get(b"content-length")
    if length is not None:
        if length.startswith(b"0") and length.strip() != b"0":
            raise bad_framing("Content-Length must not have leading zeros")
        head.body_length = int(length)
    coding = first.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked" or head.http10:
            raise bad_framing("the only transfer coding accepted is chunked, in HTTP/1.1")
        head.body_length = CHUNKED
    encoding = first.get(b"content-encoding")
    if encoding is not None:
        head.body_encoded = encoding.lower() != b"identity"
    expectation = first.get(b"expect")
    if expectation is not None:
        if expectation.lower() != b"100-continue":
            raise bad_framing("the only expectation understood is 100-continue")
        head.expects_continue = not head.http10
    connection = first.get(b"connection")
    if connection is not None and connection != b"keep-alive":
        tokens = head.drop_named(connection)
        head.keep_alive = head.keep_alive and b"close" not in tokens


def _origin_form(method: str, target: bytes) -> bytes:
    """Path and query; a proxy-style absolute target loses its scheme and authority, which name us."""
    if not target.startswith(b"/"):
        scheme = _SCHEME.match(target)
        if scheme is not None:
            target = target[scheme.end() :]
            if not target.startswith(b"/"):
                target = b"/" + target
        elif target != b"*" or method != "OPTIONS":
            raise bad_framing("the request target must be a path or an http URL")
    if b"#" in target or not target.isascii():
        raise bad_framing("the request target must be ASCII, percent-encoded, without a fragment (#)")
    return target
