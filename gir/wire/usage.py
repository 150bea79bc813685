"""Token usage in whole JSON answers. What the fields mean is said in `gir.model.usage`."""

import math
from typing import Any

import msgspec

from gir.model.prefix import BYTES_PER_TOKEN
from gir.model.request import Usage
from gir.model.usage import merge_usage

_ANSWERED_IN = ("choices", "content", "output")
"""Where whole answers hold what the model wrote: chat and completions, messages, responses."""
_WRITTEN = frozenset({"arguments", "content", "reasoning", "reasoning_content", "refusal", "text", "thinking"})


class _Answer(msgspec.Struct):
    usage: dict[str, Any] | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def read_usage(body: bytes) -> Usage | None:
    """Usage in a whole JSON answer; None when it holds none, or none that can be read."""
    try:
        fields = _decode_answer(body).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if fields is None else merge_usage(None, fields)


def written_tokens(body: bytes) -> int:
    """Estimate of the tokens in what a whole JSON answer says the model wrote, by length; 0 when it wrote nothing."""
    try:
        answer = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return 0
    left = [answer.get(name) for name in _ANSWERED_IN] if isinstance(answer, dict) else []
    written = 0
    while left:
        held = left.pop()
        if isinstance(held, list):
            left += held
        elif isinstance(held, dict):
            written += sum([len(text.encode()) for name in _WRITTEN if isinstance(text := held.get(name), str)])
            left += held.values()
    return math.ceil(written / BYTES_PER_TOKEN)
