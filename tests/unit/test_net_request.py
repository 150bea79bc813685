"""Request heads: what is read, and what is refused because a proxy must not guess."""

import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.net.limits import ServerLimits
from gir.net.message import RequestHead
from gir.net.request import CHUNKED, HeadReader, parse_request

LIMITS = ServerLimits()


def parse(raw: bytes, limits: ServerLimits = LIMITS) -> RequestHead:
    return parse_request(raw, limits, "10.0.0.1", ())


def post(*lines: bytes, host: bytes = b"host: a", line: bytes = b"POST /x HTTP/1.1") -> bytes:
    return b"\r\n".join([line, *([host] if host else []), *lines]) + b"\r\n\r\n"


def test_a_plain_request_is_read_into_lower_case_names_and_original_values() -> None:
    head = parse(post(b"Content-Length: 3", b"X-Thing: A b\tC", line=b"POST /v1/x?a=1&b=2 HTTP/1.1"))
    assert (head.method, head.path, head.query, head.target) == ("POST", "/v1/x", "a=1&b=2", b"/v1/x?a=1&b=2")
    assert head.headers == [(b"host", b"a"), (b"content-length", b"3"), (b"x-thing", b"A b\tC")]
    assert (head.body_length, head.keep_alive, head.http10, head.expects_continue) == (3, True, False, False)
    assert head.peer == "10.0.0.1"


def test_repeated_headers_are_kept_in_order_and_get_returns_the_first() -> None:
    head = parse(post(b"X: 1", b"Y: 2", b"x: 3"))
    assert head.headers[1:] == [(b"x", b"1"), (b"y", b"2"), (b"x", b"3")]
    assert head.get(b"x") == b"1"
    assert head.get(b"z") is None


def test_a_chunked_body_has_no_known_length() -> None:
    assert parse(post(b"Transfer-Encoding: Chunked")).body_length == CHUNKED


def test_an_absolute_target_loses_its_authority() -> None:
    head = parse(post(line=b"GET http://gir.example:80/v1/models?x=1 HTTP/1.1"))
    assert head.target == b"/v1/models?x=1", "what is sent on is for another authority"
    assert (head.path, head.query) == ("/v1/models", "x=1")
    assert parse(post(line=b"GET HTTP://gir.example HTTP/1.1")).path == "/"


@pytest.mark.parametrize("value", [b"close", b"Close", b"keep-alive, close", b"x-foo,close"])
def test_connection_close_is_obeyed(value: bytes) -> None:
    assert not parse(post(b"Connection: " + value)).keep_alive


def test_headers_named_by_connection_are_dropped() -> None:
    head = parse(post(b"X-Foo: 1", b"Connection: keep-alive, X-Foo", b"Connection: x-bar", b"X-Bar: 2", b"X-Baz: 3"))
    assert [name for name, _ in head.headers] == [b"host", b"connection", b"connection", b"x-baz"]
    assert head.get(b"x-foo") is None
    assert head.keep_alive


def test_connection_cannot_name_away_what_frames_the_message() -> None:
    head = parse(post(b"Connection: host, content-length", b"Content-Length: 5"))
    assert (head.get(b"host"), head.body_length) == (b"a", 5)


def test_http_1_0_needs_no_host_and_gets_one_answer_per_connection() -> None:
    head = parse(post(b"Connection: keep-alive", host=b"", line=b"GET /x HTTP/1.0"))
    assert (head.http10, head.keep_alive) == (True, False)


def test_an_upgrade_offer_is_ignored() -> None:
    head = parse(post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"Content-Length: 3"))
    assert (head.body_length, head.keep_alive) == (3, True)
    assert head.get(b"upgrade") is None


def test_expect_100_continue_is_noted() -> None:
    assert parse(post(b"Expect: 100-Continue", b"Content-Length: 3")).expects_continue


@pytest.mark.parametrize(("value", "encoded"), [(b"gzip", True), (b"identity", False), (b"Identity", False)])
def test_compressed_bodies_are_recognised(value: bytes, encoded: bool) -> None:
    assert parse(post(b"Content-Encoding: " + value)).body_encoded is encoded


REFUSED = {
    "content-length beside transfer-encoding": post(b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "transfer-encoding beside content-length": post(b"Transfer-Encoding: chunked", b"Content-Length: 3"),
    "content-length twice, equal": post(b"Content-Length: 3", b"Content-Length: 3"),
    "content-length twice, different": post(b"Content-Length: 3", b"Content-Length: 4"),
    "content-length list": post(b"Content-Length: 3, 3"),
    "content-length with sign": post(b"Content-Length: +3"),
    "content-length negative": post(b"Content-Length: -1"),
    "content-length hexadecimal": post(b"Content-Length: 0x3"),
    "content-length empty": post(b"Content-Length: "),
    "content-length with space inside": post(b"Content-Length: 3 3"),
    "content-length with leading zero": post(b"Content-Length: 010"),
    "content-length past 64 bits": post(b"Content-Length: 99999999999999999999999"),
    "coding xchunked": post(b"Transfer-Encoding: xchunked"),
    "coding identity": post(b"Transfer-Encoding: identity"),
    "coding gzip, chunked": post(b"Transfer-Encoding: gzip, chunked"),
    "coding chunked, gzip": post(b"Transfer-Encoding: chunked, gzip"),
    "coding chunked twice": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "coding chunked, chunked": post(b"Transfer-Encoding: chunked, chunked"),
    "coding with vertical tab": post(b"Transfer-Encoding: \x0bchunked"),
    "coding in HTTP/1.0": post(b"Transfer-Encoding: chunked", line=b"POST /x HTTP/1.0"),
    "obs-fold": post(b"X: a", b" b"),
    "leading fold": b"GET /x HTTP/1.1\r\n X: a\r\nHost: a\r\n\r\n",
    "bare LF after the request line": b"GET /x HTTP/1.1\nHost: a\r\n\r\n",
    "bare LF between headers": b"GET /x HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "bare CR between headers": b"GET /x HTTP/1.1\r\nHost: a\rX: y\r\n\r\n",
    "NUL in a value": post(b"X: a\0b"),
    "NUL in a name": post(b"X\0: a"),
    "control character in a value": post(b"X: a\x01b"),
    "space before the colon": post(b"X : a"),
    "tab before the colon": post(b"X\t: a"),
    "space before the colon of a length": post(b"Content-Length : 3"),
    "empty name": post(b": a"),
    "no colon": post(b"nonsense"),
    "Host missing": post(host=b""),
    "Host twice": post(b"Host: b"),
    "Host twice, equal": post(b"Host: a"),
    "Host empty": post(host=b"Host: "),
    "Host with a path": post(host=b"Host: a/b"),
    "Host with a space": post(host=b"Host: a b"),
    "Host with user": post(host=b"Host: u@a"),
    "HTTP/2.0": post(line=b"GET /x HTTP/2.0"),
    "HTTP/0.9": b"GET /x\r\n\r\n",
    "HTTP/1.2": post(line=b"GET /x HTTP/1.2"),
    "RTSP": post(line=b"OPTIONS /x RTSP/1.0"),
    "two spaces before the target": post(line=b"GET  /x HTTP/1.1"),
    "two spaces after the target": post(line=b"GET /x  HTTP/1.1"),
    "tab in the request line": post(line=b"GET\t/x HTTP/1.1"),
    "lower-case method": post(line=b"get /x HTTP/1.1"),
    "unknown method": post(line=b"BREW /x HTTP/1.1"),
    "relative target": post(line=b"GET x HTTP/1.1"),
    "other scheme": post(line=b"GET ftp://a/x HTTP/1.1"),
    "asterisk for GET": post(line=b"GET * HTTP/1.1"),
    "fragment in the target": post(line=b"GET /a#b HTTP/1.1"),
    "raw UTF-8 in the target": post(line="GET /ä HTTP/1.1".encode()),
    "control character in the target": post(line=b"GET /\x01 HTTP/1.1"),
    "unknown expectation": post(b"Expect: 200-ok"),
    "empty line first": b"\r\n" + post(),
    "bare LF first": b"\n" + post(),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
def test_heads_that_parsers_might_read_differently_are_refused(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse(raw)
    assert caught.value.kind is ErrorKind.BAD_FRAMING


@pytest.mark.parametrize("method", [b"CONNECT a:1", b"TRACE /x"])
def test_methods_that_are_not_served_are_named(method: bytes) -> None:
    with pytest.raises(RequestError, match=method.split()[0].decode()) as caught:
        parse(post(line=method + b" HTTP/1.1"))
    assert caught.value.kind is ErrorKind.METHOD_NOT_ALLOWED


def test_the_bounds_of_headers_and_target_are_exact() -> None:
    limits = ServerLimits(headers_max=3, target_bytes_max=10)
    assert len(parse(post(b"A: 1", b"B: 2"), limits).headers) == 3
    assert parse(post(line=b"GET /234567890 HTTP/1.1"), limits).path == "/234567890"
    for raw in (post(b"A: 1", b"B: 2", b"C: 3"), post(line=b"GET /2345678901 HTTP/1.1")):
        with pytest.raises(RequestError) as caught:
            parse(raw, limits)
        assert caught.value.kind is ErrorKind.HEADERS_TOO_LARGE


def test_the_same_head_reads_the_same_after_any_other() -> None:
    """A fresh parser each time: a refused head leaves nothing behind."""
    good = post(b"Content-Length: 3")
    for raw in REFUSED.values():
        with pytest.raises(RequestError):
            parse(raw)
        assert parse(good).body_length == 3


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
def test_a_good_head_before_makes_no_bad_one_good(raw: bytes) -> None:
    reader = HeadReader()
    for good in (post(b"Content-Length: 3"), post(b"X: a", b"Content-Length: 3"), post(b"Transfer-Encoding: chunked")):
        reader.read(good, LIMITS, "peer", ())
        with pytest.raises(RequestError):
            reader.read(raw, LIMITS, "peer", ())
        for line in (b"Content-Length: 3\r\n", b"Content-Length: 0\r\n"):
            first, _, rest = raw.partition(b"\r\n")
            with pytest.raises(RequestError):
                reader.read(first + b"\r\n" + line + rest, LIMITS, "peer", ())
