"""Heads of messages: what a header's value means."""

import pytest

from gir.net.message import ResponseHead


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"text/event-stream", True),
        (b"text/event-stream; charset=utf-8", True),
        (b"Text/Event-Stream;charset=UTF-8", True),
        (b"application/json", False),
        (b"text/event", False),
        (b"", False),
    ],
)
def test_an_event_stream_is_known_by_its_media_type_in_any_case(value: bytes, expected: bool) -> None:
    assert ResponseHead(200, [(b"content-type", value)]).is_event_stream is expected


def test_a_body_without_a_media_type_is_no_event_stream() -> None:
    assert not ResponseHead(200, []).is_event_stream
