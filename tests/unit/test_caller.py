"""What is worked out once for a repeated head is what would be worked out each time."""

import pytest

from gir.caller import Caller, caller_of
from gir.model.errors import RequestError
from gir.model.request import Api
from gir.net.message import Headers, RequestHead

URL = "http://cluster.example:8000/base"


def head(*headers: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead("POST", b"/v1/chat/completions?a=b", "/v1/chat/completions", "a=b", list(headers))


def lines(start: bytes) -> Headers:
    return [(name, value) for name, _, value in (line.partition(b": ") for line in start.split(b"\r\n")[1:-1])]


def test_a_head_carries_its_caller() -> None:
    seen = head((b"authorization", b"Bearer secret"), (b"x-session-id", b"s" * 300), (b"x-gir-hops", b"2"))
    caller = caller_of(seen)
    assert caller_of(seen) is caller
    assert (caller.api, caller.credential, caller.hops) == (Api.CHAT, b"secret", 2)
    assert caller.session_key == "s" * 256


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer one"), (b"x-api-key", b"two")],
        [(b"authorization", b"Bearer one"), (b"authorization", b"Bearer two")],
        [(b"x-api-key", b"one"), (b"x-api-key", b"two")],
    ],
)
def test_contradicting_credentials_are_refused_each_time(headers: Headers) -> None:
    seen = head(*headers)
    for _ in range(2):
        with pytest.raises(RequestError):
            caller_of(seen)


def test_the_same_credential_twice_is_one() -> None:
    assert caller_of(head((b"authorization", b"Bearer one"), (b"authorization", b"Bearer one"))).credential == b"one"


def test_the_start_of_a_request_holds_the_allowed_headers_and_the_clusters_own_credential() -> None:
    caller = Caller(head((b"authorization", b"Bearer mine"), (b"content-type", b"a/b"), (b"cookie", b"c=1")))
    start = caller.start(URL, b"Bearer theirs", trusted=False)
    assert start.startswith(b"POST /base/v1/chat/completions?a=b HTTP/1.1\r\n")
    assert lines(start) == [
        (b"host", b"cluster.example:8000"),
        (b"content-type", b"a/b"),
        (b"authorization", b"Bearer theirs"),
    ]
    assert caller.start(URL, b"Bearer theirs", trusted=False) is start


def test_starts_differ_by_cluster_credential_and_trust() -> None:
    caller = Caller(head((b"x-gir-note", b"n")))
    plain = caller.start(URL, b"Bearer a", trusted=False)
    assert (b"x-gir-note", b"n") not in lines(plain)
    assert (b"x-gir-note", b"n") in lines(caller.start(URL, b"Bearer a", trusted=True))
    assert (b"authorization", b"Bearer b") in lines(caller.start(URL, b"Bearer b", trusted=False))
    assert (b"host", b"other:80") in lines(caller.start("http://other", b"Bearer a", trusted=False))


def test_more_clusters_than_are_kept_still_get_their_own_start() -> None:
    caller = Caller(head())
    for number in range(200):
        assert (b"host", b"c%d:80" % number) in lines(caller.start(f"http://c{number}", b"Bearer a", trusted=False))


def test_a_value_that_could_split_the_message_is_refused() -> None:
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        Caller(head()).start(URL, b"Bearer a\r\nx: y", trusted=False)
