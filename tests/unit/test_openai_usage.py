"""Usage is read in the spelling of every API, and never invented."""

import pytest

from gir.model.request import Api, Usage
from gir.wire.openai import parse_usage, read_usage

CHAT = b"""{"id":"x","choices":[{"message":{"content":"usage"}}],"usage":{"prompt_tokens":12,"completion_tokens":3,
"total_tokens":15,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":2}}}"""
RESPONSES = b"""{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":2,
"output_tokens_details":{"reasoning_tokens":1}}}"""


@pytest.mark.parametrize(
    ("api", "body", "usage"),
    [
        (Api.CHAT, CHAT, Usage(prompt_tokens=12, completion_tokens=3, cached_tokens=8, reasoning_tokens=2)),
        (
            Api.COMPLETIONS,
            b'{"usage":{"prompt_tokens":2,"completion_tokens":3}}',
            Usage(prompt_tokens=2, completion_tokens=3),
        ),
        (Api.EMBEDDINGS, b'{"usage":{"prompt_tokens":7,"total_tokens":7}}', Usage(prompt_tokens=7)),
        (Api.RERANK, b'{"usage":{"total_tokens":56}}', Usage(prompt_tokens=56)),
        (
            Api.RESPONSES,
            RESPONSES,
            Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4, reasoning_tokens=1),
        ),
        (
            Api.MESSAGES,
            b'{"usage":{"input_tokens":9,"cache_read_input_tokens":4,"cache_creation_input_tokens":1,"output_tokens":2}}',
            Usage(prompt_tokens=14, completion_tokens=2, cached_tokens=4),
        ),
        (Api.CHAT, b'{"usage":{"prompt_tokens":-2,"completion_tokens":3}}', Usage(completion_tokens=3)),
        (Api.CHAT, b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}', Usage(prompt_tokens=5)),
        (Api.CHAT, b'{"usage":null}', None),
        (Api.CHAT, b'{"usage":{}}', None),
        (Api.CHAT, b'{"usage":{"prompt_tokens":"many"}}', None),
        (Api.CHAT, b'{"choices":[]}', None),
        (Api.CHAT, b"<html>", None),
        (Api.CHAT, b'{"usage":{"prompt_tokens":1}', None),
    ],
)
def test_usage_of_a_whole_answer(api: Api, body: bytes, usage: Usage | None) -> None:
    assert read_usage(api, body) == usage


def test_usage_object_alone() -> None:
    assert parse_usage(Api.CHAT, b'{"prompt_tokens":2}') == Usage(prompt_tokens=2)
    assert parse_usage(Api.CHAT, b"null") is None
    assert parse_usage(Api.CHAT, b"[") is None
