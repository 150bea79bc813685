"""Token counts are merged field by field, whatever the API calls them."""

from collections.abc import Mapping
from typing import Any

import pytest

from gir.model.request import Usage
from gir.net.usage import merge_usage


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
        ([{"prompt_tokens": -1, "completion_tokens": "6", "prompt_tokens_details": [1]}], Usage()),
        ([{"prompt_tokens": True, "completion_tokens": 1.5}], Usage()),
    ],
    ids=["chat", "continuous", "messages", "responses", "details stay", "null keeps", "nonsense", "no counts"],
)
def test_reports_add_up_to(reports: list[Mapping[str, Any]], total: Usage) -> None:
    usage = None
    for fields in reports:
        usage = merge_usage(usage, fields)
    assert usage == total
