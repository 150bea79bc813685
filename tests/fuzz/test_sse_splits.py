"""However a stream is cut into reads, the framer passes the same bytes and learns the same things."""

import itertools
import random
from typing import Any

import pytest

from gir.net.sse import EventFramer
from tests.support.streams import STREAMS, Stream


def learnt(framer: EventFramer) -> tuple[Any, ...]:
    """Everything a framer knows."""
    return (
        framer.content_seen,
        framer.error_event,
        framer.late_error,
        framer.terminal_seen,
        framer.events,
        framer.usage,
        framer.finish_reason,
        framer.text,
        framer.identity,
    )


def run(stream: Stream, cuts: list[int], **options: Any) -> tuple[bytes, tuple[Any, ...]]:
    """Feed the stream cut at `cuts`; what passed and what was learnt. Held bytes never pass in part."""
    framer = EventFramer(stream.api, choices=stream.choices, **options)
    passed = b""
    edges = [0, *cuts, len(stream.body)]
    for start, end in itertools.pairwise(edges):
        piece = framer.feed(stream.body[start:end])
        assert piece == b"" or piece.endswith((b"\n\n", b"\n\r\n")), "half an event leaked"
        passed += piece
    return passed + framer.end(), learnt(framer)


@pytest.fixture(params=STREAMS.values(), ids=STREAMS.keys())
def stream(request: pytest.FixtureRequest) -> Stream:
    chosen: Stream = request.param
    return chosen


OPTIONS: list[dict[str, bool]] = [{}, {"keep_text": True}, {"hide_usage": True}]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "keep_text", "hide_usage"])
def test_every_byte_split_gives_the_same_events_and_state(stream: Stream, options: dict[str, bool]) -> None:
    whole = run(stream, [], **options)
    for cut in range(len(stream.body) + 1):
        assert run(stream, [cut], **options) == whole, f"cut at {cut}"


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "keep_text", "hide_usage"])
def test_byte_by_byte_gives_the_same_events_and_state(stream: Stream, options: dict[str, bool]) -> None:
    assert run(stream, list(range(1, len(stream.body))), **options) == run(stream, [], **options)


def test_random_cuts_give_the_same_events_and_state(stream: Stream) -> None:
    whole = run(stream, [])
    chance = random.Random(7)
    for _ in range(200):
        cuts = sorted(chance.randrange(len(stream.body)) for _ in range(chance.randrange(1, 30)))
        assert run(stream, cuts) == whole, cuts


def test_a_stream_cut_anywhere_passes_whole_events_only_and_proves_no_end_too_early(stream: Stream) -> None:
    whole, _ = run(stream, [])
    ends_seen = 0
    for cut in range(len(stream.body)):
        framer = EventFramer(stream.api, choices=stream.choices)
        passed = framer.feed(stream.body[:cut])
        assert whole.startswith(passed)
        assert stream.body[:cut].startswith(passed)
        ends_seen += framer.terminal_seen
        if framer.terminal_seen:
            assert b"finish" in passed or b"stop" in passed or b"completed" in passed
    assert ends_seen < len(stream.body) / 2


NOISE = [
    *(b"data:", b"\n", b"\r", b"\r\n", b"\n\n", b'{"choices":[]}', b'"usage":{', b"[DONE]", b"\xff\xfe", b"\0"),
    *(b"{" * 40, b"event: error", b": x", b'data: {"error":1}', b"}"),
]


@pytest.mark.parametrize("seed", range(20))
def test_no_bytes_make_the_framer_raise_or_lose_any(seed: int) -> None:
    chance = random.Random(seed)
    # A `[DONE]` after an error is lost on purpose, so they do not come together here.
    noise = [one for one in NOISE if one != (b"[DONE]" if seed % 2 else b'data: {"error":1}')]
    for api in {stream.api for stream in STREAMS.values()}:
        data = b"".join(chance.choice(noise) for _ in range(400))
        framer = EventFramer(api, event_bytes_max=300)
        passed, position = b"", 0
        while position < len(data):
            step = chance.randrange(1, 50)
            passed += framer.feed(data[position : position + step])
            position += step
            assert len(framer._held) <= 300 + 50
        assert data.startswith(passed)
        assert len(data) - len(passed) <= 300 + 50
