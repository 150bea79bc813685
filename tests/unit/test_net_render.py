"""Heads as bytes: exact framing, and no way to smuggle a line into one."""

import pytest

from gir.net.message import Headers
from gir.net.render import CHUNKED, CLOSE, request_head, response_head

PLAIN: Headers = [(b"content-type", b"application/json")]


def test_a_request_head_carries_host_headers_and_length() -> None:
    assert request_head("POST", b"/v1/x?a=1", b"a:80", PLAIN, 12) == (
        b"POST /v1/x?a=1 HTTP/1.1\r\nhost: a:80\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n"
    )


@pytest.mark.parametrize(("method", "framed"), [("POST", True), ("PUT", True), ("GET", False), ("HEAD", False)])
def test_an_empty_body_is_declared_only_where_a_body_is_expected(method: str, framed: bool) -> None:
    assert (b"content-length: 0\r\n" in request_head(method, b"/", b"a", [], 0)) is framed


def test_a_response_head_carries_its_framing() -> None:
    assert response_head(200, PLAIN, CHUNKED + CLOSE) == (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    assert response_head(599, [], b"").startswith(b"HTTP/1.1 599 ")


@pytest.mark.parametrize("evil", [b"a\r\nx: y", b"a\nb", b"a\rb", b"a\0b", b"a\r\n\r\nGET / HTTP/1.1"])
def test_control_characters_in_headers_are_refused(evil: bytes) -> None:
    for headers in ([(b"x", evil)], [(evil, b"x")]):
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            request_head("POST", b"/", b"a", headers, 0)
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            response_head(200, headers, b"")


@pytest.mark.parametrize("target", [b"/a b", b"", b"/a\r\nx: y", b"/a\0"])
def test_odd_targets_are_refused(target: bytes) -> None:
    with pytest.raises(ValueError, match=r"target|holds"):
        request_head("POST", target, b"a", [], 0)


def test_an_odd_host_is_refused() -> None:
    with pytest.raises(ValueError, match="holds"):
        request_head("POST", b"/", b"a\r\nx: y", [], 0)
