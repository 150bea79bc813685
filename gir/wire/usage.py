"""Token usage in whole JSON answers. What the fields mean is said in `gir.model.usage`."""

from typing import Any

import msgspec

from gir.model.request import Usage
from gir.model.usage import merge_usage


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
