"""A repeated head is recognised, and nothing else is taken for one."""

import pytest

from gir.model.errors import RequestError
from gir.net.limits import ServerLimits
from gir.net.message import RequestHead
from gir.net.request import HeadReader


def raw(*lines: bytes) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in (b"Host: a", *lines)) + b"\r\n"
    )


def read(reader: HeadReader, *lines: bytes) -> RequestHead:
    return reader.read(raw(*lines), ServerLimits(), "peer", ())


def test_a_head_that_differs_in_its_length_only_is_the_same_head() -> None:
    reader = HeadReader()
    first = read(reader, b"X: 1", b"Content-Length: 3")
    first.memo = "mine"
    again = read(reader, b"X: 1", b"Content-Length: 4000")
    assert again is first
    assert (again.body_length, again.memo, again.get(b"x")) == (4000, "mine", b"1")


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((b"X: 2", b"Content-Length: 3"), id="other value"),
        pytest.param((b"X: 1", b"Y: 1", b"Content-Length: 3"), id="one header more"),
        pytest.param((b"Content-Length: 3",), id="one header less"),
        pytest.param((b"X: 1",), id="no body"),
        pytest.param((b"X: 1", b"Transfer-Encoding: chunked"), id="chunked"),
    ],
)
def test_any_other_difference_makes_another_head(lines: tuple[bytes, ...]) -> None:
    reader = HeadReader()
    first = read(reader, b"X: 1", b"Content-Length: 3")
    first.memo = "mine"
    other = read(reader, *lines)
    assert other is not first
    assert other.memo is None


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((b"X: 1", b"Content-Length: 3", b"Content-Length: 3"), id="twice"),
        pytest.param((b"X: 1", b"Content-Length: 3", b"Content-Length: 4"), id="twice and different"),
        pytest.param((b"X: 1", b"Content-Length: 03"), id="leading zero"),
        pytest.param((b"X: 1", b"Content-Length: 3", b"Transfer-Encoding: chunked"), id="with a coding"),
        pytest.param((b"X: 1", b"Content-Length: -3"), id="negative"),
        pytest.param((b"X: 1", b"Content-Length : 3"), id="space before the colon"),
    ],
)
def test_strictness_does_not_depend_on_what_came_before(lines: tuple[bytes, ...]) -> None:
    reader = HeadReader()
    for _ in range(2):
        read(reader, b"X: 1", b"Content-Length: 3")
        with pytest.raises(RequestError):
            read(reader, *lines)


def test_a_head_that_asks_for_a_go_ahead_is_read_anew_each_time() -> None:
    reader = HeadReader()
    first = read(reader, b"Expect: 100-continue", b"Content-Length: 3")
    first.expects_continue = False
    assert read(reader, b"Expect: 100-continue", b"Content-Length: 3").expects_continue
