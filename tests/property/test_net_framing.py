"""Framing laws that must hold for any input, not only for the ones somebody thought of."""

import asyncio
import itertools
import json

import h11
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gir.clock import ManualClock
from gir.model.request import Api
from gir.net.body import ChunkedReader
from gir.net.message import Headers
from gir.net.render import request_head, response_head
from gir.net.sse import EventFramer
from gir.net.wheel import SLOT_S, Wheel

LINE_END = st.sampled_from(["\n", "\r\n"])
TEXT = st.text(max_size=30)
DELTA = st.one_of(
    st.just({}), st.fixed_dictionaries({"content": TEXT}), st.fixed_dictionaries({"role": st.just("assistant")})
)
CHOICE = st.fixed_dictionaries(
    {"index": st.integers(0, 2), "delta": DELTA, "finish_reason": st.sampled_from([None, None, None, "stop"])}
)
CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(CHOICE, max_size=2)},
    optional={
        "usage": st.one_of(st.none(), st.fixed_dictionaries({"prompt_tokens": st.integers(0, 9)})),
        "error": st.one_of(st.none(), st.just({"message": "x"})),
        "id": TEXT,
    },
)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """One event: a chunk, a comment, the end, or text that is no JSON."""
    end = draw(LINE_END)
    compact = draw(st.booleans())
    chunk = json.dumps(draw(CHUNK), separators=(",", ":") if compact else None, ensure_ascii=draw(st.booleans()))
    lines = draw(
        st.sampled_from(
            [f"data: {chunk}", f"data:{chunk}", f"event: x{end}data: {chunk}", ": ping", "data: nonsense", "id: 1"]
        )
    )
    return (lines + end + end).encode()


STREAM = st.lists(events(), max_size=12).map(b"".join)


def learnt(framer: EventFramer) -> tuple[object, ...]:
    return (
        *(framer.content_seen, framer.error_event, framer.late_error, framer.terminal_seen, framer.events),
        *(framer.usage, framer.finish_reason, framer.text, framer.identity),
    )


@settings(max_examples=300, deadline=None)
@given(STREAM, st.booleans(), st.booleans(), st.lists(st.integers(0, 2_000), max_size=12))
def test_cuts_never_change_what_passes_or_what_is_learnt(body: bytes, done: bool, hide: bool, cuts: list[int]) -> None:
    body += b"data: [DONE]\n\n" if done else b""
    results = []
    for edges in ([0, len(body)], sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})):
        framer = EventFramer(Api.CHAT, hide_usage=hide, keep_text=hide)
        passed = b"".join(framer.feed(body[start:end]) for start, end in itertools.pairwise(edges))
        results.append((passed + framer.end(), learnt(framer)))
    assert results[0] == results[1]
    assert done <= results[0][1][3], "[DONE] proves the end"  # type: ignore[operator]


@settings(max_examples=200, deadline=None)
@given(STREAM, st.integers(0, 3_000))
def test_a_cut_stream_passes_a_prefix_made_of_whole_events(body: bytes, cut: int) -> None:
    framer = EventFramer(Api.CHAT)
    passed = framer.feed(body[:cut])
    assert body[:cut].startswith(passed)
    assert not passed or passed.endswith((b"\n\n", b"\n\r\n"))


NAME = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).filter(
    lambda name: name not in {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade"}
)
HEADERS = st.lists(st.tuples(NAME.map(str.encode), st.binary(max_size=20)), max_size=6)


@settings(max_examples=400, deadline=None)
@given(st.binary(min_size=1, max_size=30), HEADERS, st.binary(max_size=40))
def test_a_rendered_request_is_refused_or_read_as_exactly_one_request(
    target: bytes, headers: Headers, body: bytes
) -> None:
    try:
        data = request_head("POST", b"/" + target, b"engine", headers, len(body)) + body
    except ValueError:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        request = connection.next_event()
    except h11.RemoteProtocolError:
        # h11 also refuses bytes that are odd but harmless; none of them may be able to end a line.
        head = data.partition(b"\r\n\r\n")[0]
        assert head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == len(headers) + 2
        return
    assert isinstance(request, h11.Request)
    received = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        received += event.data
    assert received == body
    assert connection.trailing_data == (b"", False)


@given(HEADERS)
def test_a_rendered_response_head_is_refused_or_has_exactly_its_lines(headers: Headers) -> None:
    evil = any(set(value) & set(b"\r\n\0") for _, value in headers)
    if evil:
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            response_head(200, headers, b"content-length: 0\r\n")
    else:
        head = response_head(200, headers, b"content-length: 0\r\n")
        assert head.split(b"\r\n")[1:-3] == [b"%b: %b" % header for header in headers]


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10), st.binary(max_size=20), st.integers(1, 50))
def test_any_chunking_gives_the_body_back_and_leaves_what_follows(parts: list[bytes], behind: bytes, step: int) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n" + behind
    reader = ChunkedReader(1_000)
    rest = None
    position = 0
    while rest is None:
        assume(position < len(data))
        rest = reader.feed(data[position : position + step])
        position += step
    assert rest + data[position:] == behind
    assert reader.body() == b"".join(parts)


class Deadline:
    """An item of the wheel whose deadline moves."""

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.fired_at_s: float | None = None
        self.wheel_slot = 0

    def check(self, now_s: float) -> float | None:
        if now_s < self.due_s:
            return self.due_s
        self.fired_at_s = now_s
        return None


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20)), min_size=1, max_size=20))
def test_no_deadline_fires_early_or_more_than_a_slot_late_however_often_it_moves(
    moves: list[tuple[float, float]],
) -> None:
    async def run() -> list[Deadline]:
        clock = ManualClock(monotonic_s=0.0)
        wheel = Wheel(clock)
        items = []
        for first_s, second_s in moves:
            item = Deadline(first_s)
            wheel.watch(item, first_s)
            item.due_s = second_s
            wheel.watch(item, second_s)
            items.append(item)
        while clock.monotonic_s() < 21:
            clock.advance_s(SLOT_S / 2)
            wheel.run(clock.monotonic_s())
        wheel.close()
        return items

    for item in asyncio.run(run()):
        assert item.fired_at_s is not None
        assert item.due_s <= item.fired_at_s <= item.due_s + 2 * SLOT_S
