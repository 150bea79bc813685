"""Event streams of each API: captures of real engines, and others written in the shape of theirs."""

from pathlib import Path

import msgspec

from gir.model.request import Api, Usage

GOLDEN = Path(__file__).parent.parent / "golden" / "vllm-0.32.0"


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A whole stream and what it says."""

    api: Api
    body: bytes
    events: int
    finish_reason: str | None
    usage: Usage | None = None
    text: str = ""
    choices: int = 1


def captured(name: str) -> bytes:
    """Body of a capture, without its head."""
    return (GOLDEN / f"{name}.http").read_bytes().partition(b"\r\n\r\n")[2]


def _sse(*events: str, end: str = "\n") -> bytes:
    return "".join(event.replace("\n", end) + end * 2 for event in events).encode()


def _messages(end: str = "\n") -> bytes:
    return _sse(
        'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message",'
        '"role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":5,'
        '"output_tokens":1}}}',
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"text","text":""}}',
        'event: ping\ndata: {"type": "ping"}',
        'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hel"}}',
        'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"lo"}}',
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}',
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
        '"usage":{"output_tokens":15}}',
        'event: message_stop\ndata: {"type":"message_stop"}',
        end=end,
    )


_RESPONSES = _sse(
    'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1",'
    '"error":null,"status":"in_progress","usage":null}}',
    'event: response.output_item.added\ndata: {"type":"response.output_item.added","sequence_number":1}',
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":2,"delta":"Hel"}',
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":3,"delta":"lo"}',
    'event: response.completed\ndata: {"type":"response.completed","sequence_number":4,"response":{"id":"resp_1",'
    '"error":null,"status":"completed","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},'
    '"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":11}}}',
)

_SGLANG = _sse(
    'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    '{"role":"assistant","content":""},"finish_reason":null}],"usage":null}',
    'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    '{"content":"a \\"usage\\":{ b"},"finish_reason":null}],"usage":null}',
    'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    '{"content":"\\n\\ndata: [DONE]\\n\\n"},"finish_reason":null}],"usage":null}',
    'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},'
    '"finish_reason": "stop"}],"usage":null}',
    'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage": {"prompt_tokens":7,'
    '"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}',
    "data: [DONE]",
)

_COMMENTED = (
    b": hello\n\n\n"
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    b": ping\r\n\r\n"
    b'data:{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\r\n\r\n'
    b'id: 7\ndata: {"choices":[{"index":0,"delta":{"content":"\xc3\xa4\xf0\x9f\x98\x80"},"finish_reason":null}]}\n'
    b"retry: 10\n\n"
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
    b"data: [DONE]\n\n: bye\n\n"
)

_TWO_CHOICES = _sse(
    'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}',
    'data: {"choices":[{"index":1,"text":"b","finish_reason":null}]}',
    'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}',
    'data: {"choices":[{"index":1,"text":"c","finish_reason":"length"}]}',
    "data: [DONE]",
)

STREAMS = {
    "vllm chat": Stream(api=Api.CHAT, body=captured("chat-stream"), events=7, finish_reason="length"),
    "vllm chat with usage": Stream(
        api=Api.CHAT,
        body=captured("chat-stream-usage"),
        events=8,
        finish_reason="length",
        usage=Usage(prompt_tokens=23, completion_tokens=6),
        text="Ŗ\b",
    ),
    "vllm chat with continuous usage": Stream(
        api=Api.CHAT,
        body=captured("chat-stream-continuous-usage"),
        events=8,
        finish_reason="length",
        usage=Usage(prompt_tokens=23, completion_tokens=6),
        text="\r",
    ),
    "sglang chat": Stream(
        api=Api.CHAT,
        body=_SGLANG,
        events=5,
        finish_reason="stop",
        usage=Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2),
        text='a "usage":{ b\n\ndata: [DONE]\n\n',
    ),
    "comments, CRLF and LF": Stream(api=Api.CHAT, body=_COMMENTED, events=4, finish_reason="length", text="xä😀"),
    "completions, two choices": Stream(
        api=Api.COMPLETIONS, body=_TWO_CHOICES, events=4, finish_reason="length", text="a", choices=2
    ),
    "messages": Stream(
        api=Api.MESSAGES,
        body=_messages(),
        events=8,
        finish_reason="end_turn",
        usage=Usage(prompt_tokens=30, completion_tokens=15, cached_tokens=5),
        text="Hello",
    ),
    "messages, CRLF": Stream(
        api=Api.MESSAGES,
        body=_messages("\r\n"),
        events=8,
        finish_reason="end_turn",
        usage=Usage(prompt_tokens=30, completion_tokens=15, cached_tokens=5),
        text="Hello",
    ),
    "responses": Stream(
        api=Api.RESPONSES,
        body=_RESPONSES,
        events=5,
        finish_reason=None,
        usage=Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4, reasoning_tokens=1),
        text="Hello",
    ),
}
