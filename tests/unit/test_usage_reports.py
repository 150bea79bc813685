"""Usage is read in the spelling of every API, whole or report by report, and never invented."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gir.model.request import Usage
from gir.model.usage import merge_usage
from gir.net.sse import EventFramer
from gir.wire.openai import read_usage
from gir.wire.usage import written_tokens
from tests.support.streams import STREAMS

CHAT = b"""{"id":"x","choices":[{"message":{"content":"usage"}}],"usage":{"prompt_tokens":12,"completion_tokens":3,
"total_tokens":15,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":2}}}"""
RESPONSES = b"""{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":2,
"output_tokens_details":{"reasoning_tokens":1}}}"""


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (CHAT, Usage(prompt_tokens=12, completion_tokens=3, cached_tokens=8, reasoning_tokens=2)),
        (
            b'{"usage":{"prompt_tokens":2,"completion_tokens":3}}',
            Usage(prompt_tokens=2, completion_tokens=3),
        ),
        (b'{"usage":{"prompt_tokens":7,"total_tokens":7}}', Usage(prompt_tokens=7)),
        (b'{"usage":{"total_tokens":56}}', Usage(prompt_tokens=56)),
        (
            RESPONSES,
            Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4, reasoning_tokens=1),
        ),
        (
            b'{"usage":{"input_tokens":9,"cache_read_input_tokens":4,"cache_creation_input_tokens":1,"output_tokens":2}}',
            Usage(prompt_tokens=14, completion_tokens=2, cached_tokens=4),
        ),
        (b'{"usage":{"prompt_tokens":-2,"completion_tokens":3}}', Usage(completion_tokens=3)),
        (b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}', Usage(prompt_tokens=5)),
        (
            b'{"usage":{"input_tokens":9,"cache_read_input_tokens":4,"input_tokens_details":{"cached_tokens":4}}}',
            Usage(prompt_tokens=9, cached_tokens=4),
        ),
        (b'{"usage":{"prompt_tokens":1000000001,"completion_tokens":3}}', Usage(completion_tokens=3)),
        (b'{"usage":{"completion_tokens":99999999999999999999999999}}', None),
        (b'{"usage":null}', None),
        (b'{"usage":{}}', None),
        (b'{"usage":{"prompt_tokens":"many"}}', None),
        (b'{"choices":[]}', None),
        (b"<html>", None),
        (b'{"usage":{"prompt_tokens":1}', None),
    ],
)
def test_usage_of_a_whole_answer(body: bytes, usage: Usage | None) -> None:
    assert read_usage(body) == usage


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"id":"a long name","choices":[{"message":{"role":"assistant","content":"four five"}}]}', 3),
        (b'{"choices":[{"text":"abcd"},{"text":"efgh"}]}', 2),
        (b'{"choices":[{"message":{"content":null,"tool_calls":[{"function":{"arguments":"{\\"a\\":1}"}}]}}]}', 2),
        (b'{"content":[{"type":"text","text":"abcdefgh"},{"type":"thinking","thinking":"abcd"}]}', 3),
        (b'{"instructions":"not written","output":[{"content":[{"type":"output_text","text":"abcde"}]}]}', 2),
        ('{"choices":[{"text":"\u6a21\u578b"}]}'.encode(), 2),
        (b'{"data":[{"embedding":[0.5]}]}', 0),
        (b'{"choices":[{"message":{"content":""}}]}', 0),
        (b'{"choices":"abcdefgh"}', 0),
        (b"[]", 0),
        (b"<html>", 0),
        (b'{"choices":' + b"[" * 9_999, 0),
    ],
)
def test_what_a_whole_answer_says_is_counted_by_length_when_its_engine_does_not(body: bytes, tokens: int) -> None:
    assert written_tokens(body) == tokens


@pytest.mark.parametrize(
    ("reports", "total"),
    [
        (
            [{"prompt_tokens": 23, "completion_tokens": 6, "total_tokens": 29}],
            Usage(prompt_tokens=23, completion_tokens=6),
        ),
        (
            [{"prompt_tokens": 23, "completion_tokens": n} for n in range(7)],
            Usage(prompt_tokens=23, completion_tokens=6),
        ),
        (
            [
                {
                    "input_tokens": 10,
                    "cache_read_input_tokens": 5,
                    "cache_creation_input_tokens": 2,
                    "output_tokens": 1,
                },
                {"output_tokens": 40},
            ],
            Usage(prompt_tokens=17, completion_tokens=40, cached_tokens=5),
        ),
        (
            [
                {
                    "input_tokens": 9,
                    "output_tokens": 8,
                    "input_tokens_details": {"cached_tokens": 4},
                    "output_tokens_details": {"reasoning_tokens": 3},
                }
            ],
            Usage(prompt_tokens=9, completion_tokens=8, cached_tokens=4, reasoning_tokens=3),
        ),
        (
            [{"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, {"prompt_tokens_details": None}],
            Usage(prompt_tokens=9, cached_tokens=4),
        ),
        (
            [{"prompt_tokens": 5}, {"prompt_tokens": None, "completion_tokens": 2}],
            Usage(prompt_tokens=5, completion_tokens=2),
        ),
        ([{"prompt_tokens": 5}, {}, {"total_tokens": 9}], Usage(prompt_tokens=5)),
        ([{"prompt_tokens": -1, "completion_tokens": "6", "prompt_tokens_details": [1]}], None),
        ([{"prompt_tokens": True, "completion_tokens": 1.5}], None),
        ([{}], None),
    ],
    ids=[
        "chat",
        "continuous",
        "messages",
        "responses",
        "details stay",
        "null keeps",
        "nothing keeps",
        "nonsense",
        "no counts",
        "empty",
    ],
)
def test_reports_add_up_to(reports: list[Mapping[str, Any]], total: Usage | None) -> None:
    usage = None
    for fields in reports:
        usage = merge_usage(usage, fields)
    assert usage == total


@pytest.mark.parametrize("name", [name for name, stream in STREAMS.items() if stream.usage])
def test_a_whole_answer_is_counted_as_a_stream_is(name: str) -> None:
    stream = STREAMS[name]
    framer = EventFramer(stream.api, choices=stream.choices)
    framer.feed(stream.body)
    assert framer.usage == stream.usage
    reports = [usage for line in stream.body.splitlines() if (usage := usage_of(line)) is not None]
    whole = {field: count for report in reports for field, count in report.items()}
    assert read_usage(msgspec.json.encode({"choices": [], "usage": whole})) == stream.usage


def usage_of(line: bytes) -> dict[str, Any] | None:
    """Usage object of one line of a stream, wherever its API puts it."""
    try:
        event = msgspec.json.decode(line.removeprefix(b"data:"))
    except msgspec.DecodeError:
        return None
    holders = (event.get("response"), event.get("message"), event)
    return next((usage for holder in holders if holder and (usage := holder.get("usage"))), None)
