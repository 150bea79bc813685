"""The event framer: what it passes, what it learns, when the first token is there and when the end is proved."""

import json

import pytest

from gir.model.errors import ErrorKind
from gir.model.request import Api, Usage
from gir.net.events import error_bytes, split_events
from gir.net.sse import EventFramer, StreamIdentity
from tests.support.streams import STREAMS, Stream, captured

ROLE = (
    b'data: {"id":"c1","created":5,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\n\n'
)
MESSAGE_START = b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'
MESSAGE_BLOCK = b'data: {"type":"content_block_start"}\n\nevent: ping\ndata: {"type":"ping"}\n\n'
MESSAGE_END = b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
EMPTY = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
FAULT = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_whole_streams_pass_unchanged_and_say_what_they_say(stream: Stream) -> None:
    framer = EventFramer(stream.api, keep_text=True, choices=stream.choices)
    assert framer.feed(stream.body) == stream.body
    assert framer.end() == b""
    assert framer.terminal_seen
    assert framer.content_seen
    assert framer.error_event is None
    assert (framer.events, framer.finish_reason, framer.usage, framer.text) == (
        stream.events,
        stream.finish_reason,
        stream.usage,
        stream.text,
    )


def test_a_plain_token_goes_on_as_the_same_object() -> None:
    framer = EventFramer(Api.CHAT)
    framer.feed(ROLE + TOKEN)
    token = bytes(bytearray(TOKEN))
    assert framer.feed(token) is token
    assert framer.feed(token * 3) == token * 3
    assert framer.events == 6


def test_half_an_event_waits_for_its_end() -> None:
    framer = EventFramer(Api.CHAT)
    assert framer.feed(ROLE + TOKEN[:20]) == ROLE
    assert framer.feed(TOKEN[20:-1]) == b""
    assert framer.feed(b"\n" + TOKEN[:5]) == TOKEN
    assert framer.end() == b""


def test_the_identity_is_that_of_the_first_event() -> None:
    framer = EventFramer(Api.CHAT)
    framer.feed(ROLE)
    assert framer.identity == StreamIdentity(id="c1", created=5, model="m")


FIRST_TOKEN = {
    "role only": (Api.CHAT, ROLE, False),
    "comment only": (Api.CHAT, b": ping\n\n" * 5, False),
    "empty content first": (Api.CHAT, EMPTY, False),
    "content": (Api.CHAT, TOKEN, True),
    "role and content": (Api.CHAT, b'data: {"choices":[{"delta":{"role":"assistant","content":"x"}}]}\n\n', True),
    "reasoning": (Api.CHAT, b'data: {"choices":[{"delta":{"reasoning_content":"x"}}]}\n\n', True),
    "tool call": (Api.CHAT, b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n', True),
    "null beside the role": (Api.CHAT, b'data: {"choices":[{"delta":{"role":"a","content":null}}]}\n\n', False),
    "finish at once": (Api.CHAT, STOP, True),
    "second event, though empty": (Api.CHAT, ROLE + EMPTY, True),
    "second choice has it": (Api.CHAT, b'data: {"choices":[{"delta":{}},{"delta":{"content":"x"}}]}\n\n', True),
    "completions text": (Api.COMPLETIONS, b'data: {"choices":[{"index":0,"text":""}]}\n\n', True),
    "completions without choices": (Api.COMPLETIONS, b'data: {"choices":[]}\n\n', False),
    "messages start, block, ping": (Api.MESSAGES, MESSAGE_START + MESSAGE_BLOCK, False),
    "messages delta": (Api.MESSAGES, b'data: {"type":"content_block_delta","delta":{"text":""}}\n\n', True),
    "messages end without a delta": (Api.MESSAGES, MESSAGE_END, True),
    "responses before output": (
        Api.RESPONSES,
        b'data: {"type":"response.created"}\n\ndata: {"type":"response.output_item.added"}\n\n',
        False,
    ),
    "responses text": (Api.RESPONSES, b'data: {"type":"response.output_text.delta","delta":"x"}\n\n', True),
    "responses call": (Api.RESPONSES, b'data: {"type":"response.function_call_arguments.delta"}\n\n', True),
    "other, first": (Api.OTHER, b'data: {"x":1}\n\n', False),
    "other, second": (Api.OTHER, b'data: {"x":1}\n\ndata: {"x":2}\n\n', True),
    "not JSON, first": (Api.CHAT, b"data: hello\n\n", False),
    "not JSON, second": (Api.CHAT, b"data: hello\n\ndata: world\n\n", True),
    "usage only, first": (Api.CHAT, USAGE, False),
}  # fmt: skip


@pytest.mark.parametrize(("api", "data", "content"), FIRST_TOKEN.values(), ids=FIRST_TOKEN.keys())
def test_the_first_token_is_there(api: Api, data: bytes, content: bool) -> None:
    framer = EventFramer(api)
    framer.feed(data)
    assert framer.content_seen is content


ERRORS = {
    "chat": (Api.CHAT, FAULT),
    "chat, bare string": (Api.CHAT, b'data: {"error":"cuda","error_type":"generation"}\n\n'),
    "chat, old shape": (Api.CHAT, b'data: {"object":"error","message":"cuda","code":400}\n\n'),
    "messages": (Api.MESSAGES, b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'),
    "responses": (Api.RESPONSES, b'data: {"type":"error","code":"x","message":"y"}\n\n'),
    "responses failed": (Api.RESPONSES, b'data: {"type":"response.failed","response":{"error":{"code":"x"}}}\n\n'),
}  # fmt: skip


@pytest.mark.parametrize(("api", "event"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_before_content_is_told_apart_from_one_after(api: Api, event: bytes) -> None:
    payload = event.partition(b"data: ")[2].strip()
    before = EventFramer(api)
    before.feed(event)
    assert (before.error_event, before.late_error, before.content_seen) == (payload, None, False)

    first = {Api.MESSAGES: b'data: {"type":"content_block_delta"}\n\n', Api.RESPONSES: b'data: {"type":"x.delta"}\n\n'}
    after = EventFramer(api)
    after.feed(first.get(api, TOKEN))
    assert after.feed(event) == event
    assert (after.error_event, after.late_error) == (None, payload)


def test_an_error_after_the_role_event_is_still_before_content() -> None:
    framer = EventFramer(Api.CHAT)
    framer.feed(ROLE + FAULT)
    assert framer.error_event is not None
    assert not framer.content_seen


@pytest.mark.parametrize("hidden", [False, True])
def test_done_after_a_late_error_proves_nothing(hidden: bool) -> None:
    framer = EventFramer(Api.CHAT, hide_late_error=hidden)
    assert framer.feed(ROLE + TOKEN + FAULT + DONE) == ROLE + TOKEN + (b"" if hidden else FAULT)
    assert framer.feed(DONE) == b""
    assert not framer.terminal_seen


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("done", [b"", DONE])
def test_an_error_after_the_end_breaks_nothing(done: bytes, hidden: bool) -> None:
    framer = EventFramer(Api.CHAT, hide_late_error=hidden, keep_text=hidden)
    ended = ROLE + TOKEN + STOP
    passed = framer.feed(ended) + framer.feed(FAULT) + framer.feed(done)
    assert passed + framer.missing_end == ended + DONE
    assert framer.terminal_seen
    assert framer.late_error is None


def test_a_late_error_can_be_kept_from_the_client() -> None:
    framer = EventFramer(Api.CHAT, hide_late_error=True)
    assert framer.feed(TOKEN + FAULT) == TOKEN
    assert framer.late_error is not None


def test_the_word_error_in_text_is_no_error() -> None:
    framer = EventFramer(Api.CHAT)
    text = (
        b'data: {"choices":[{"index":0,"delta":{"content":"\\"error\\": {}"},"finish_reason":null}],"error":null}\n\n'
    )
    assert framer.feed(TOKEN + text) == TOKEN + text
    assert (framer.error_event, framer.late_error) == (None, None)


@pytest.mark.parametrize("name", ["chat-stream-usage", "chat-stream-continuous-usage"])
def test_hiding_usage_removes_exactly_the_usage_only_chunk(name: str) -> None:
    body = captured(name)
    events = body.split(b"\n\n")
    hidden = [event for event in events if b'"choices":[]' in event]
    assert len(hidden) == 1
    framer = EventFramer(Api.CHAT, hide_usage=True)
    assert framer.feed(body) == body.replace(hidden[0] + b"\n\n", b"")
    assert framer.usage == Usage(prompt_tokens=23, completion_tokens=6)
    assert framer.events == len(events) - 3


def test_hiding_usage_leaves_chunks_with_choices_and_usage_of_other_apis_alone() -> None:
    framer = EventFramer(Api.CHAT, hide_usage=True)
    mixed = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":3}}\n\n'
    empty = b'data: {"choices":[],"usage":null}\n\n'
    assert framer.feed(mixed + empty) == mixed + empty


END = {
    "done": (ROLE + EMPTY + DONE, 1, True),
    "done without space": (ROLE + b"data:[DONE]\n\n", 1, True),
    "finish reason": (TOKEN + STOP, 1, True),
    "finish reason, spaced": (
        TOKEN + b'data: {"choices":[{"index":0,"delta":{},"finish_reason" : "stop"}]}\n\n',
        1,
        True,
    ),
    "null finish reason": (TOKEN * 3, 1, False),
    "finish reason in text": (TOKEN + TOKEN.replace(b"hi", b'\\"finish_reason\\":\\"stop\\"'), 1, False),
    "done in text": (TOKEN + TOKEN.replace(b"hi", b"data: [DONE]"), 1, False),
    "one of two choices": (TOKEN + STOP, 2, False),
    "both choices": (TOKEN + STOP + STOP.replace(b'"index":0', b'"index":1'), 2, True),
    "the same choice twice": (TOKEN + STOP + STOP, 2, False),
}


@pytest.mark.parametrize("event_by_event", [False, True])
@pytest.mark.parametrize(("data", "choices", "proved"), END.values(), ids=END.keys())
def test_the_end_is_proved(data: bytes, choices: int, proved: bool, event_by_event: bool) -> None:
    framer = EventFramer(Api.CHAT, choices=choices)
    pieces = list(split_events(data)) if event_by_event else [data]
    assert b"".join(map(framer.feed, pieces)) == data
    assert framer.terminal_seen is proved


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        (TOKEN + STOP, b"data: [DONE]\n\n"),
        (TOKEN + STOP + USAGE, b"data: [DONE]\n\n"),
        (TOKEN + STOP + DONE, b""),
        (TOKEN, b""),
        (TOKEN + STOP + FAULT, b"data: [DONE]\n\n"),
        (TOKEN + FAULT, b""),
    ],
    ids=[
        "cut after the last token",
        "cut after the usage",
        "whole",
        "cut before",
        "failed after the last token",
        "failed",
    ],
)
def test_a_complete_stream_that_was_cut_before_its_done_is_given_one(data: bytes, missing: bytes) -> None:
    framer = EventFramer(Api.CHAT)
    framer.feed(data)
    assert framer.missing_end == missing


def test_apis_that_end_with_an_event_of_their_own_get_no_done() -> None:
    framer = EventFramer(Api.MESSAGES)
    framer.feed(b'data: {"type":"content_block_delta"}\n\ndata: {"type":"message_stop"}\n\n')
    assert framer.terminal_seen
    assert framer.missing_end == b""


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete", "response.failed"])
def test_every_last_event_of_the_responses_api_proves_the_end(kind: str) -> None:
    framer = EventFramer(Api.RESPONSES)
    framer.feed(b'data: {"type":"response.output_text.delta","delta":"x"}\n\n')
    framer.feed(b'data: {"type":"%b","response":{}}\n\n' % kind.encode())
    assert framer.terminal_seen


LAST = {
    "done without blank line": (TOKEN + STOP, b"data: [DONE]\n", True),
    "done without any line end, as the only proof": (TOKEN, b"data: [DONE]", True),
    "finish without blank line": (TOKEN, STOP[:-1], True),
    "usage after the end": (TOKEN + STOP, USAGE[:-1], True),
    "cut usage after the end": (TOKEN + STOP, USAGE[:30], False),
    "cut finish": (TOKEN, STOP[:-10], False),
    "whole token, no proof": (TOKEN, TOKEN[:-1], False),
}


@pytest.mark.parametrize(("data", "rest", "passes"), LAST.values(), ids=LAST.keys())
def test_an_unfinished_last_event_passes_only_if_the_end_is_proved(data: bytes, rest: bytes, passes: bool) -> None:
    framer = EventFramer(Api.CHAT)
    assert framer.feed(data + rest) == data
    assert framer.end() == (rest if passes else b"")


def test_an_event_past_the_bound_passes_raw_and_framing_goes_on_after_it() -> None:
    framer = EventFramer(Api.CHAT, event_bytes_max=1_000)
    huge = b'data: {"choices":[{"delta":{"content":"' + b"x" * 5_000 + b'"}}]}\n\n'
    data = ROLE + huge + TOKEN + STOP + DONE
    passed = b""
    for start in range(0, len(data), 100):
        passed += framer.feed(data[start : start + 100])
        assert len(framer._held) <= 1_100
    assert passed == data
    assert framer.content_seen
    assert framer.terminal_seen
    assert framer.events == 4


def test_usage_survives_odd_spelling() -> None:
    framer = EventFramer(Api.CHAT)
    framer.feed(TOKEN)
    framer.feed(b'data: {"choices": [], "usage" : { "prompt_tokens" : 3 , "completion_tokens":null}}\r\n\r\n')
    assert framer.usage == Usage(prompt_tokens=3)


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.OTHER])
def test_the_terminal_error_event_is_an_openai_error(api: Api) -> None:
    event = error_bytes(api, ErrorKind.UPSTREAM_FAILED, "the stream broke", "gir")
    assert event.endswith(b"\n\n")
    body = json.loads(event.removeprefix(b"data: "))
    assert body["error"]["message"] == "gir: the stream broke"
    assert body["error"]["code"] == "upstream_failed"


@pytest.mark.parametrize("api", list(Api))
def test_the_framer_knows_our_own_error_event_as_one(api: Api) -> None:
    """A router above another must see what the lower one says."""
    framer = EventFramer(api)
    framer.feed(error_bytes(api, ErrorKind.UPSTREAM_FAILED, "x", "gir"))
    assert framer.error_event is not None
    assert not framer.terminal_seen


@pytest.mark.parametrize("api", [Api.MESSAGES, Api.RESPONSES])
def test_typed_apis_get_a_typed_error_event(api: Api) -> None:
    event = error_bytes(api, ErrorKind.UPSTREAM_FAILED, "x", "gir")
    name, _, data = event.partition(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["type"] == "error"
    assert json.loads(data.removeprefix(b"data: "))["error"]["message"] == "gir: x"
